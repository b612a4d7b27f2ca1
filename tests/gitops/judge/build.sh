#!/usr/bin/env bash
# Builds the program that judges objects as Flux and Argo CD do, unless it is built already, and prints its path.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec ../../go-program.sh gitops . main.go argocd.go flux.go
