#!/usr/bin/env bash
# Builds Helm out of its Go module, unless it is built already, and prints the path of the program.
set -euo pipefail
export LC_ALL=C
export GOTOOLCHAIN=${GOTOOLCHAIN:-auto}
cd "$(dirname "${BASH_SOURCE[0]}")"

key=$(sha256sum go.mod go.sum build.sh | sha256sum | cut -c1-16)
cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
out=$cache/helm-$key/helm
mkdir -p "$(dirname "$out")"
exec 9>"$cache/helm.lock"
flock 9
if [ ! -x "$out" ]; then
    CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$out.part" helm.sh/helm/v4/cmd/helm >&2
    mv "$out.part" "$out"
fi
echo "$out"
