#!/usr/bin/env bash
# Builds kube-network-policies, which enforces NetworkPolicies on a Node, unless it is built already, and prints the path of the program.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec ../go-program.sh enforcer sigs.k8s.io/kube-network-policies/cmd
