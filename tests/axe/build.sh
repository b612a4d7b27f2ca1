#!/usr/bin/env bash
# Fetches axe-core, which finds what screen readers can't use in a page, unless it is there already, and prints the path of the
# script. The package has the checksum that is written here.
set -euo pipefail
export LC_ALL=C

version=4.14.1
# SHA-512, as the registry has it.
checksum=1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b734f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5
cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
out=$cache/axe-core-$version/axe.min.js
mkdir -p "$(dirname "$out")"
exec 9>"$cache/axe-core.lock"
flock 9
if [ ! -f "$out" ]; then
    command -v npm >/dev/null || "$(dirname "${BASH_SOURCE[0]}")/../debian.sh" npm
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
    (cd "$build" && npm pack --silent "axe-core@$version" >&2)
    package=$build/axe-core-$version.tgz
    echo "$checksum  $package" | sha512sum --check --quiet >&2
    tar -xzf "$package" -C "$build" package/axe.min.js
    cp "$build/package/axe.min.js" "$out.part"
    mv "$out.part" "$out"
fi
echo "$out"
