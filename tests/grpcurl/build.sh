#!/usr/bin/env bash
# Builds grpcurl, unless it is built already, and prints the path of the program.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec ../go-program.sh grpcurl github.com/fullstorydev/grpcurl/cmd/grpcurl
