#!/usr/bin/env bash
# Builds the program that applies patches as the API server does, unless it is built already, and prints its path.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec ../go-program.sh patches . main.go
