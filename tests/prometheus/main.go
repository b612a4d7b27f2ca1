// Command series tells which series PromQL expressions ask for, by Prometheus' own parser.
//
// Standard input is a list of expressions in JSON. Standard output is, for each of them in order, an object: "error", or
// "selectors", each with the metric's name, what it asks of labels, and the labels that the expression groups by or joins on.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// matcher is what is asked of one label.
type matcher struct {
	Label string `json:"label"`
	Type  string `json:"type"`
	Value string `json:"value"`
}

// selector is one choice of series in an expression.
type selector struct {
	Metric   string    `json:"metric"`
	Matchers []matcher `json:"matchers"`
	// Labels are those that aggregations around it keep or drop, and that binary operations around it match on.
	Labels []string `json:"labels"`
}

// answer is the result for one expression.
type answer struct {
	Error     string     `json:"error,omitempty"`
	Selectors []selector `json:"selectors"`
}

func main() {
	var expressions []string
	if err := json.NewDecoder(os.Stdin).Decode(&expressions); err != nil {
		fmt.Fprintln(os.Stderr, "series:", err)
		os.Exit(2)
	}
	p := parser.NewParser(parser.Options{})
	answers := make([]answer, 0, len(expressions))
	for _, text := range expressions {
		answers = append(answers, explain(p, text))
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		fmt.Fprintln(os.Stderr, "series:", err)
		os.Exit(1)
	}
}

func explain(p parser.Parser, text string) answer {
	expression, err := p.ParseExpr(text)
	if err != nil {
		return answer{Error: err.Error()}
	}
	found := answer{Selectors: []selector{}}
	parser.Inspect(expression, func(node parser.Node, path []parser.Node) error {
		if vector, ok := node.(*parser.VectorSelector); ok {
			found.Selectors = append(found.Selectors, of(vector, path))
		}
		return nil
	})
	return found
}

func of(vector *parser.VectorSelector, path []parser.Node) selector {
	s := selector{Metric: vector.Name, Matchers: []matcher{}, Labels: []string{}}
	for _, m := range vector.LabelMatchers {
		if m.Name == labels.MetricName {
			continue
		}
		s.Matchers = append(s.Matchers, matcher{m.Name, m.Type.String(), m.Value})
	}
	for _, node := range path {
		switch node := node.(type) {
		case *parser.AggregateExpr:
			s.Labels = append(s.Labels, node.Grouping...)
		case *parser.BinaryExpr:
			if node.VectorMatching != nil {
				s.Labels = append(s.Labels, node.VectorMatching.MatchingLabels...)
			}
		}
	}
	return s
}
