// Command controlplane is a Kubernetes control plane in one program, for Outrigger's tests and demo.
//
// It runs the real programs as they are, chosen by its first argument: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, kubectl, kwok (which lets Nodes and Pods "run" without kubelets) and cert-manager. `up` starts two
// clusters of them on one etcd and takes them all down again, however it ends.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// program is one of the programs inside: it takes os.Args as if it were alone, and ends the process itself or returns
// its exit code.
type program struct {
	run  func() int
	help string
}

var programs = map[string]program{
	"etcd":                    {runEtcd, "the etcd server"},
	"kube-apiserver":          {runAPIServer, "the Kubernetes API server"},
	"kube-controller-manager": {runControllerManager, "the Kubernetes controllers"},
	"kube-scheduler":          {runScheduler, "the Kubernetes scheduler"},
	"kubectl":                 {runKubectl, "the Kubernetes command line"},
	"kwok":                    {runKwok, "makes Nodes ready and Pods run"},
	"cert-manager":            {runCertManager, "cert-manager's controllers and cainjector"},
	"up":                      {runUp, "starts clusters and keeps them until it ends"},
}

func main() {
	// A link named kubectl to this program is kubectl.
	if p, ok := programs[filepath.Base(os.Args[0])]; ok {
		os.Exit(p.run())
	}
	if len(os.Args) > 1 {
		if p, ok := programs[os.Args[1]]; ok {
			// Each program believes to be alone: kubectl, for one, prints os.Args[0] in its usage.
			os.Args = append([]string{os.Args[1]}, os.Args[2:]...)
			os.Exit(p.run())
		}
		if !strings.Contains(os.Args[1], "help") && os.Args[1] != "-h" {
			fmt.Fprintf(os.Stderr, "controlplane: there is no program %q; see 'controlplane help'\n", os.Args[1])
			os.Exit(2)
		}
	}
	usage()
}

func usage() {
	fmt.Println("Usage: controlplane PROGRAM [FLAGS]")
	fmt.Println()
	for _, name := range []string{"up", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok", "cert-manager"} {
		fmt.Printf("  %-24s %s\n", name, programs[name].help)
	}
	fmt.Println()
	fmt.Println("'controlplane PROGRAM --help' tells the flags of each.")
}
