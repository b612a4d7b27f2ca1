package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// oldest is the first minor release of Kubernetes 1 that has all we need: resource.k8s.io/v1.
const oldest = 34

// assets says where the programs come from: a directory of somebody's own, or ourselves.
type assets struct {
	self string
	dir  string
}

// findAssets looks for a control plane that is there already: in $KUBEBUILDER_ASSETS, else beside the kube-apiserver on
// the PATH. What is missing there we are ourselves.
func findAssets() (assets, error) {
	self, err := os.Executable()
	if err != nil {
		return assets{}, err
	}
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		minor, err := apiserverMinor(filepath.Join(dir, "kube-apiserver"))
		if err != nil {
			return assets{}, fmt.Errorf("KUBEBUILDER_ASSETS=%s: %w", dir, err)
		}
		if minor < oldest {
			return assets{}, fmt.Errorf("KUBEBUILDER_ASSETS=%s holds Kubernetes 1.%d; 1.%d or later is needed, or unset it", dir, minor, oldest)
		}
		return assets{self: self, dir: dir}, nil
	}
	if path, err := exec.LookPath("kube-apiserver"); err == nil {
		if minor, err := apiserverMinor(path); err == nil && minor >= oldest {
			return assets{self: self, dir: filepath.Dir(path)}, nil
		}
	}
	return assets{self: self}, nil
}

// command is how a program is called.
func (a assets) command(program string) []string {
	if a.dir != "" {
		path := filepath.Join(a.dir, program)
		if info, err := os.Stat(path); err == nil && info.Mode()&0o111 != 0 && !info.IsDir() {
			return []string{path}
		}
	}
	return []string{a.self, program}
}

func apiserverMinor(path string) (int, error) {
	output, err := exec.Command(path, "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("%s --version: %w", path, err)
	}
	return parseMinor(string(output))
}

// parseMinor reads the minor release out of "Kubernetes v1.36.3".
func parseMinor(version string) (int, error) {
	_, rest, found := strings.Cut(version, "v1.")
	digits, _, _ := strings.Cut(rest, ".")
	minor, err := strconv.Atoi(digits)
	if !found || err != nil {
		return 0, fmt.Errorf("%q is no version of Kubernetes 1", strings.TrimSpace(version))
	}
	return minor, nil
}
