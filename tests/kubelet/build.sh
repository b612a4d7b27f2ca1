#!/usr/bin/env bash
# Builds the program that runs a kubelet's plugin manager and DRA manager, unless it is built already, and prints its path.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec ../go-program.sh kubelet . main.go run.go
