#!/usr/bin/env bash
# Builds the server with Liqo's webhook, unless it is built already, and prints the path of the program.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec ../../go-program.sh peer-liqo . main.go
