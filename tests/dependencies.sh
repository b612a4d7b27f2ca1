#!/usr/bin/env bash
# Judges licenses, sources and versions of dependencies (deny.toml), and finds those that nothing uses.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
"$(tests/shear/build.sh)"
"$(tests/deny/build.sh)" --locked --log-level error check licenses sources bans

# The tests' static program has the features of the workspace's tests, so that nearly none of its dependencies is compiled again.
features() { cargo tree --locked --prefix none --format '{p} {f}' "$@" | sed 's/ (\*)$//' | sort -u; }
static=$(features --package outrigger-cli --features as-tested --edges normal)
tested=$(features --workspace --edges normal,dev,build)
others=$(comm -23 <(echo "$static") <(echo "$tested") | grep -v '^outrigger-cli\|^getrandom') || true
[ -z "$others" ] || { printf 'src/cli/Cargo.toml: as-tested lacks features that tests have:\n%s\n' "$others" >&2; exit 1; }
