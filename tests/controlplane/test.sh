#!/usr/bin/env bash
# Runs the tests of the control plane's own code.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export GOTOOLCHAIN=${GOTOOLCHAIN:-auto}
go generate
CGO_ENABLED=0 go test -trimpath .
