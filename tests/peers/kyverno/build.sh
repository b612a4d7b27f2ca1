#!/usr/bin/env bash
# Builds Kyverno's admission controller, unless it is built already, and prints the path of the program.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec ../../go-program.sh peer-kyverno github.com/kyverno/kyverno/cmd/kyverno
