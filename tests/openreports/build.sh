#!/usr/bin/env bash
# Downloads the CRDs of OpenReports, unless they are there already, and prints their directory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
go mod download github.com/openreports/reports-api >&2
echo "$(go list -m -f '{{.Dir}}' github.com/openreports/reports-api)/config/crd"
