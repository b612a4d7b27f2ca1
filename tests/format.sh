#!/usr/bin/env bash
# Fails if sources aren't formatted: Rust by rustfmt, Go by gofmt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
"${CARGO:-cargo}" fmt --check
found=$(gofmt -l tests)
[ -z "$found" ] || { echo "run gofmt -w: $found" >&2; exit 1; }
