// Command kubectl is the Kubernetes command line, of the same release as the control plane. It is a program of its own, because tests start
// it many hundred times, and as a part of the control plane each start took five times as long.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		// It tells the error as kubectl does, and ends with kubectl's exit code.
		util.CheckErr(err)
	}
	os.Exit(0)
}
