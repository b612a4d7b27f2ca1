#!/usr/bin/env bash
# Builds promtool out of Prometheus' module, and our program `series` on its parser, unless they are built already; prints
# the directory that they are in. Beside them is crds/: the Prometheus Operator's definitions.
set -euo pipefail
export LC_ALL=C
export GOTOOLCHAIN=${GOTOOLCHAIN:-auto}
cd "$(dirname "${BASH_SOURCE[0]}")"

operator=github.com/prometheus-operator/prometheus-operator@v0.85.0
operator_sum=h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=

key=$(sha256sum go.mod go.sum main.go build.sh | sha256sum | cut -c1-16)
cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
out=$cache/prometheus-$key
mkdir -p "$cache"
exec 9>"$cache/prometheus.lock"
flock 9
if [ ! -d "$out" ]; then
    echo "building promtool: a few minutes the first time" >&2
    rm -rf "$out.part" && mkdir -p "$out.part/crds"
    # Only files are wanted of this module, so it is in no go.mod; its sum is compared here.
    found=$(cd / && go mod download -json "$operator" | sed -n 's/^\t"\(Dir\|Sum\)": "\(.*\)",\?$/\1=\2/p')
    grep -qxF "Sum=$operator_sum" <<<"$found" || { echo "build.sh: $operator is not what it was: $found" >&2; exit 1; }
    definitions=$(sed -n 's/^Dir=//p' <<<"$found")/example/prometheus-operator-crd
    install -m 644 "$definitions"/*_{podmonitors,prometheusrules}.yaml "$out.part/crds/"
    # It reads rules, and discovers no targets: without that it is a tenth of the code.
    CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags remove_all_sd -o "$out.part/promtool" \
        github.com/prometheus/prometheus/cmd/promtool >&2
    CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$out.part/series" . >&2
    mv "$out.part" "$out"
fi
echo "$out"
