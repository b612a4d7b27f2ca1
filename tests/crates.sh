#!/usr/bin/env bash
# crates.sh restore|save: keeps compiled dependencies for runs from a clean checkout.
#
# `restore` copies them into target/debug, and `save` copies them from there, unless these are kept already. They are of one compiler, one
# Cargo.lock and one set of features, and never of the work tree's own crates. Cargo compares its fingerprints of them as ever.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
key=$({ rustc -vV && cat Cargo.lock && git ls-files '*Cargo.toml' | xargs cat; } | sha256sum | cut -c1-16)
kept=$cache/crates
has() { [ "$(cat "$kept/key" 2>/dev/null)" = "$key" ]; }
mkdir -p "$cache"
exec 9>"$cache/crates.lock"
flock 9

case $1 in
restore)
    if has && [ ! -d target/debug/deps ]; then
        mkdir -p target/debug
        cp -a "$kept/debug/." target/debug/
    fi
    ;;
save)
    ! has || exit 0
    new=$(mktemp -d "$cache/crates.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    mkdir "$new/debug"
    (
        cd target/debug
        find .fingerprint build -mindepth 1 -maxdepth 1 ! -name 'outrigger*' -print0
        find deps -name 'lib*.r*' ! -name 'liboutrigger*' -print0
        find deps -name 'lib*.so' -print0
    ) | (cd target/debug && xargs -0 cp -a --parents -t "$new/debug")
    # What libraries in C were made of.
    find "$new" -name '*.o' -delete
    echo "$key" >"$new/key"
    rm -rf "$kept"
    mv "$new" "$kept"
    ;;
esac
