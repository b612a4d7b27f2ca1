#!/usr/bin/env bash
# Builds the program of the last recorded version from its commit, unless it is built already, and prints its path. It fails where
# git doesn't have the commit.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")"

version=$(printf '%s\n' */commit | sort -V | tail -1)
version=${version%/commit}
commit=$(cat "$version/commit")
cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
out=$cache/outrigger-$version-${commit:0:12}/outrigger
mkdir -p "$(dirname "$out")"
exec 9>"$cache/outrigger-$version.lock"
flock 9
if [ ! -x "$out" ]; then
    source=$(mktemp -d)
    trap 'rm -rf "$source"' EXIT
    git -C ../.. archive --format=tar "$commit" | tar -C "$source" -xf -
    (cd "$source" && CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=$source/target \
        "${CARGO:-cargo}" build --locked --quiet --bin outrigger) >&2
    cp "$source/target/debug/outrigger" "$out.part"
    mv "$out.part" "$out"
fi
echo "$out"
