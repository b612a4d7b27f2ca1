#!/usr/bin/env bash
# Builds a program out of the Go module in the working directory, unless it is built already, and prints its path.
# Usage: go-program.sh NAME PACKAGE [SOURCE]..., where the sources are those of the module itself. Of several packages, separated by
# spaces, it prints the directory of the programs.
set -euo pipefail
export LC_ALL=C
export GOTOOLCHAIN=${GOTOOLCHAIN:-auto}
name=$1 package=$2

key=$(sha256sum go.mod go.sum build.sh "${@:3}" | sha256sum | cut -c1-16)
cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
out=$cache/$name-$key/$name
mkdir -p "$(dirname "$out")"
exec 9>"$cache/$name.lock"
flock 9
if [ ! -x "$out" ]; then
    read -ra packages <<<"$package"
    [ ${#packages[@]} = 1 ] || mkdir -p "$out.part"
    CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$out.part" "${packages[@]}" >&2
    mv "$out.part" "$out"
fi
echo "$out"
