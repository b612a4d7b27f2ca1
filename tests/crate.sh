#!/usr/bin/env bash
# crate.sh NAME VERSION [FLAG...]: builds a program out of its crate, unless it is built already, and prints its path.
#
# Two builds at once wait for each other.
set -euo pipefail
export LC_ALL=C
# Lints are for the work tree's own code.
unset RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS

name=$1 version=$2
shift 2
cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
out=$cache/$name-$version/bin/$name
mkdir -p "$(dirname "$out")"
exec 9>"$cache/$name.lock"
flock 9
if [ ! -x "$out" ]; then
    # Not in the work tree's target: a change of flags there would build the program again.
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
    (cd / && CARGO_TARGET_DIR=$build ${CARGO:-cargo} install "$name" --version "=$version" --locked --no-track --quiet \
        "$@" --root "$cache/$name-$version") >&2
fi
echo "$out"
