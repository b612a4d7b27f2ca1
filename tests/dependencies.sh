#!/usr/bin/env bash
# Judges licenses, sources and versions of dependencies (deny.toml), and finds those that nothing uses.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
"$(tests/shear/build.sh)"
"$(tests/deny/build.sh)" --locked --log-level error check licenses sources bans
