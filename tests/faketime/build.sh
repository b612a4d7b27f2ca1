#!/usr/bin/env bash
# Fetches libfaketime from Debian's packages, unless it is there already, and prints the path of the library. A process that
# preloads it sees another time.
set -euo pipefail
export LC_ALL=C

cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
out=$cache/faketime/libfaketime.so.1
mkdir -p "$cache"
exec 9>"$cache/faketime.lock"
flock 9
if [ ! -f "$out" ]; then
    command -v apt-get >/dev/null || {
        echo "build.sh: libfaketime comes from Debian's packages; put the library at $out" >&2
        exit 1
    }
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
    (cd "$build" && apt-get download --quiet libfaketime >&2 && dpkg-deb -x libfaketime_*.deb .)
    mkdir -p "$(dirname "$out")"
    # The one for programs with threads.
    found=$(find "$build" -name libfaketimeMT.so.1)
    cp "$found" "$out.part"
    mv "$out.part" "$out"
fi
echo "$out"
