// Command controlplane is a Kubernetes control plane in one program, for Outrigger's tests and demo.
//
// It runs the real programs as they are, chosen by its first argument: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, kwok (which lets Nodes and Pods "run" without kubelets) and cert-manager; kubectl is beside it. `up` starts two
// clusters of them on one etcd and takes them all down again, however it ends.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// program is one of the programs inside: it takes os.Args as if it were alone, and ends the process itself or returns
// its exit code.
type program struct {
	name string
	run  func() int
	help string
}

var programs = []program{
	{"up", runUp, "starts clusters and keeps them until it ends"},
	{"etcd", runEtcd, "the etcd server"},
	{"etcdctl", runEtcdctl, "etcd's command line: snapshots, compaction, alarms"},
	{"etcdutl", runEtcdutl, "restores snapshots of etcd"},
	{"kube-apiserver", runAPIServer, "the Kubernetes API server"},
	{"kube-controller-manager", runControllerManager, "the Kubernetes controllers"},
	{"kube-scheduler", runScheduler, "the Kubernetes scheduler"},
	{"kwok", runKwok, "makes Nodes ready and Pods run"},
	{"cert-manager", runCertManager, "cert-manager's controllers and cainjector"},
}

func main() {
	// A link named etcd to this program is etcd.
	run(filepath.Base(os.Args[0]))
	if len(os.Args) < 2 {
		usage(os.Stderr)
		os.Exit(2)
	}
	switch os.Args[1] {
	case "help", "--help", "-help", "-h":
		usage(os.Stdout)
		return
	}
	// Each program believes to be alone: etcdctl, for one, prints os.Args[0] in its usage.
	os.Args = os.Args[1:]
	run(os.Args[0])
	fmt.Fprintf(os.Stderr, "controlplane: there is no program %q; see 'controlplane help'\n", os.Args[0])
	os.Exit(2)
}

// run runs the program of that name and ends with it; it returns only when there is none.
func run(name string) {
	for _, p := range programs {
		if p.name == name {
			os.Exit(p.run())
		}
	}
}

func usage(out io.Writer) {
	fmt.Fprint(out, "A Kubernetes control plane in one program, for tests and demos.\n\nUsage: controlplane PROGRAM [FLAGS]\n\n")
	for _, p := range programs {
		fmt.Fprintf(out, "  %-24s %s\n", p.name, p.help)
	}
	fmt.Fprint(out, "\n'controlplane PROGRAM --help' tells the flags of each. A link to this program that is named as one of them is that one.\n")
}
