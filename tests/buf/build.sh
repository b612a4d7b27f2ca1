#!/usr/bin/env bash
# Builds buf, unless it is built already, and prints the path of the program.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec ../go-program.sh buf github.com/bufbuild/buf/cmd/buf
