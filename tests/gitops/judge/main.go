// Command gitops judges objects as GitOps tools do: by kstatus, which is Flux' default; by expressions for Flux'
// healthCheckExprs; and by health checks in Lua for Argo CD.
//
// Usage: gitops CONFIGMAP FLUX, where CONFIGMAP is the file with Argo CD's ConfigMap and FLUX that with Flux' Kustomization. It
// reads lines of JSON on its standard input, one object each, and writes a line of JSON for each.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// verdict is what the tools say of one object.
type verdict struct {
	KStatus        string `json:"kstatus"`
	KStatusMessage string `json:"kstatusMessage"`
	Flux           string `json:"flux"`
	ArgoCD         health `json:"argocd"`
}

func judge(text []byte, argo *argoCD, flux *flux) (*verdict, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(text); err != nil {
		return nil, fmt.Errorf("the object can't be read: %w", err)
	}
	plain, err := status.Compute(object)
	if err != nil {
		return nil, fmt.Errorf("kstatus: %w", err)
	}
	byExpressions, err := flux.judge(object)
	if err != nil {
		return nil, fmt.Errorf("healthCheckExprs: %w", err)
	}
	byScript, err := argo.judge(object)
	if err != nil {
		return nil, fmt.Errorf("health check of Argo CD: %w", err)
	}
	return &verdict{
		KStatus:        plain.Status.String(),
		KStatusMessage: plain.Message,
		Flux:           byExpressions,
		ArgoCD:         *byScript,
	}, nil
}

func run(lines io.Reader, out io.Writer, configMap, kustomization string) error {
	argo, err := readArgoCD(configMap)
	if err != nil {
		return err
	}
	flux, err := readFlux(kustomization)
	if err != nil {
		return err
	}
	scanner := bufio.NewScanner(lines)
	scanner.Buffer(nil, 64<<20)
	for scanner.Scan() {
		verdict, err := judge(scanner.Bytes(), argo, flux)
		if err != nil {
			return fmt.Errorf("%w: %s", err, scanner.Bytes())
		}
		if err := json.NewEncoder(out).Encode(verdict); err != nil {
			return err
		}
	}
	return scanner.Err()
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: gitops CONFIGMAP FLUX")
		os.Exit(2)
	}
	if err := run(os.Stdin, os.Stdout, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
