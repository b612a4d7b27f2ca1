#!/usr/bin/env bash
# Builds mdBook out of its crate, unless it is built already, and prints the path of the program.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")"

version=0.5.4
cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
out=$cache/mdbook-$version/bin/mdbook
mkdir -p "$(dirname "$out")"
exec 9>"$cache/mdbook.lock"
flock 9
if [ ! -x "$out" ]; then
    # Not in the work tree's target: it would be built anew with each change of flags there. Of its features the search is
    # what a reader has something of; the rest is for writing.
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
    (cd / && CARGO_TARGET_DIR=$build ${CARGO:-cargo} install mdbook --version "=$version" --locked --no-track --quiet \
        --no-default-features --features search --root "$cache/mdbook-$version") >&2
fi
echo "$out"
