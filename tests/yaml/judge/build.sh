#!/usr/bin/env bash
# Builds the program that reads manifests as kubectl does, unless it is built already, and prints its path.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec ../../go-program.sh manifests . main.go
