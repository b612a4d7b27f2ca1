// Command manifests reads manifests as kubectl does, with the code of kubectl.
//
// Each line of its standard input is a manifest, in base64. It writes a line of JSON for each: the documents as kubectl decodes them
// and the objects that it finds in the same text as a file, each with an error if kubectl refuses the text.
package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
	"k8s.io/apimachinery/pkg/runtime"
	jsonutil "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/cli-runtime/pkg/resource"
)

// reading is what kubectl makes of a text. Without an error it has no other meaning.
type reading struct {
	Documents []any  `json:"documents"`
	Error     string `json:"error"`
	Objects   []any  `json:"objects"`
	NoObjects string `json:"noObjects"`
}

// documents decodes a text as resource.FileVisitor and StreamVisitor do.
func documents(text []byte) ([]any, error) {
	decoded := transform.NewReader(bytes.NewReader(text), unicode.BOMOverride(unicode.UTF8.NewDecoder()))
	decoder := yaml.NewYAMLOrJSONDecoder(decoded, 4096)
	found := []any{}
	for {
		var raw runtime.RawExtension
		if err := decoder.Decode(&raw); err == io.EOF {
			return found, nil
		} else if err != nil {
			return nil, err
		}
		raw.Raw = bytes.TrimSpace(raw.Raw)
		if len(raw.Raw) == 0 || bytes.Equal(raw.Raw, []byte("null")) {
			continue
		}
		var value any
		// As the decoder of unstructured objects does: numbers become int64 or float64.
		if err := jsonutil.Unmarshal(raw.Raw, &value); err != nil {
			return nil, err
		}
		found = append(found, value)
	}
}

// objects reads a file as `kubectl annotate --local -f` does.
func objects(file string) ([]any, error) {
	options := &resource.FilenameOptions{Filenames: []string{file}}
	infos, err := resource.NewLocalBuilder().Unstructured().FilenameParam(false, options).Flatten().Do().Infos()
	if err != nil {
		return nil, err
	}
	found := []any{}
	for _, info := range infos {
		found = append(found, info.Object)
	}
	return found, nil
}

func read(text []byte, file string) (*reading, error) {
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	var result reading
	var err error
	if result.Documents, err = documents(text); err != nil {
		result.Error = err.Error()
	}
	if result.Objects, err = objects(file); err != nil {
		result.NoObjects = err.Error()
	}
	return &result, nil
}

func run(in io.Reader, out io.Writer) error {
	dir, err := os.MkdirTemp("", "manifests")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, 64<<20)
	buffer := bufio.NewWriter(out)
	encoder := json.NewEncoder(buffer)
	for scanner.Scan() {
		text, err := base64.StdEncoding.DecodeString(scanner.Text())
		if err != nil {
			return err
		}
		result, err := read(text, filepath.Join(dir, "manifest.yaml"))
		if err != nil {
			return err
		}
		if err := encoder.Encode(result); err != nil {
			return err
		}
	}
	if err := scanner.Err(); err != nil {
		return err
	}
	return buffer.Flush()
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "manifests:", err)
		os.Exit(1)
	}
}
