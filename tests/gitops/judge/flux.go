package main

import (
	"context"
	"fmt"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling/engine"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/runtime/cel"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// flux reads the status of objects by the expressions of a Kustomization, with the code of Flux' controllers.
type flux struct{ reader engine.StatusReader }

func readFlux(path string) (*flux, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var kustomization struct {
		Spec struct {
			HealthCheckExprs []kustomize.CustomHealthCheck `json:"healthCheckExprs"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(text, &kustomization); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	reader, err := cel.NewStatusReader(kustomization.Spec.HealthCheckExprs)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &flux{reader: reader(nil)}, nil
}

// judge returns the status. It is Unknown where an expression can't be evaluated; Flux then waits, as for InProgress.
func (flux *flux) judge(object *unstructured.Unstructured) (string, error) {
	result, err := flux.reader.ReadStatusForObject(context.Background(), nil, object)
	if err != nil {
		return "", err
	}
	return result.Status.String(), nil
}
