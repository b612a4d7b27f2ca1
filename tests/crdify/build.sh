#!/usr/bin/env bash
# Builds crdify, unless it is built already, and prints the path of the program.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec ../go-program.sh crdify sigs.k8s.io/crdify
