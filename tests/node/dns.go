package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	// The plugins that cluster DNS needs.
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func runDNS() {
	dnsserver.Directives = []string{"errors", "ready", "kubernetes"}
	coremain.Run()
}
