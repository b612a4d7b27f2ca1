// Command node has the programs of a Node: kubelet, kube-proxy, CoreDNS, and the driver for devices of Kubernetes' own end-to-end tests, chosen
// by its first argument. Each is the real one, as it is.
package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/component-base/cli"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
	driver "k8s.io/kubernetes/test/e2e/dra/test-driver/app"

	// The kubelet and the proxy count by these.
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

func main() {
	name := ""
	if len(os.Args) > 1 {
		// Each program believes to be alone.
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	switch name {
	case "kubelet":
		os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background())))
	case "kube-proxy":
		os.Exit(cli.Run(proxy.NewProxyCommand()))
	case "coredns":
		runDNS()
	case "dra-test-driver":
		os.Exit(cli.Run(driver.NewCommand()))
	default:
		fmt.Fprintln(os.Stderr, "usage: node kubelet|kube-proxy|coredns|dra-test-driver [FLAGS]")
		os.Exit(2)
	}
}
