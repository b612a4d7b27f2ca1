package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/component-base/version"
)

// oldest is the first minor release of Kubernetes 1 that has all we need: resource.k8s.io/v1.
const oldest = 34

// assets says where the programs come from: a directory of the user's, or this program.
type assets struct {
	self string
	dir  string
	// minor is the release of the API server in dir, 0 when the API server is our own.
	minor int
}

// findAssets looks for a control plane that is there already: in $KUBEBUILDER_ASSETS, else beside the kube-apiserver on
// the PATH. What is missing there we are ourselves.
func findAssets() (assets, error) {
	self, err := os.Executable()
	if err != nil {
		return assets{}, err
	}
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		found, err := assetsIn(self, dir)
		if err != nil {
			return assets{}, fmt.Errorf("KUBEBUILDER_ASSETS=%s: %w; correct it, or unset it to use what is built in", dir, err)
		}
		return found, nil
	}
	// One on the PATH may be there for another purpose: nothing about it is an error.
	if path, err := exec.LookPath("kube-apiserver"); err == nil {
		if found, err := assetsIn(self, filepath.Dir(path)); err == nil {
			return found, nil
		}
	}
	return assets{self: self}, nil
}

func assetsIn(self, dir string) (assets, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return assets{}, err
	}
	a := assets{self: self, dir: dir}
	path := filepath.Join(dir, "kube-apiserver")
	if !executable(path) {
		if !executable(filepath.Join(dir, "etcd")) && !executable(filepath.Join(dir, "kubectl")) {
			return assets{}, errors.New("there is neither kube-apiserver nor etcd nor kubectl")
		}
		return a, nil
	}
	output, err := exec.Command(path, "--version").Output()
	if err != nil {
		return assets{}, fmt.Errorf("%s --version: %w", path, err)
	}
	if a.minor, err = parseMinor(string(output)); err != nil {
		return assets{}, fmt.Errorf("%s --version: %w", path, err)
	}
	if a.minor < oldest {
		return assets{}, fmt.Errorf("kube-apiserver is of Kubernetes 1.%d; 1.%d or later is needed", a.minor, oldest)
	}
	return a, nil
}

// command is how a program is called.
func (a assets) command(program string) []string {
	if a.dir != "" {
		if path := filepath.Join(a.dir, program); executable(path) {
			return []string{path}
		}
	}
	command := []string{a.self, program}
	switch program {
	case "kubectl":
		// It is a program of its own beside this one.
		return []string{filepath.Join(filepath.Dir(a.self), program)}
	case "kube-controller-manager", "kube-scheduler":
		// These may not be newer than the API server: they would wait for APIs that it doesn't have.
		if own, err := strconv.Atoi(version.Get().Minor); err == nil && a.minor != 0 && a.minor < own {
			command = append(command, fmt.Sprintf("--emulated-version=1.%d", a.minor))
		}
	}
	return command
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
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
