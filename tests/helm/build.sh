#!/usr/bin/env bash
# Builds Helm, unless it is built already, and prints the path of the program.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec ../go-program.sh helm helm.sh/helm/v4/cmd/helm
