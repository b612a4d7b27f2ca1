#!/usr/bin/env bash
# Builds the control plane, unless it is built already, and prints the path of the program.
#
# It takes minutes and changes rarely, so it lives in a cache outside the work tree, under a name made from all that goes
# into it. Two builds at once wait for each other; a build that is cut off leaves nothing that could be taken for whole.
set -euo pipefail
export GOTOOLCHAIN=${GOTOOLCHAIN:-auto}
cd "$(dirname "${BASH_SOURCE[0]}")"

kubernetes=$(sed -n 's/^\s*k8s.io\/kubernetes \(v[0-9.]*\).*/\1/p' go.mod)
[ -n "$kubernetes" ] || { echo "build.sh: go.mod doesn't name the version of k8s.io/kubernetes" >&2; exit 1; }
IFS=. read -r major minor _ <<<"${kubernetes#v}"

key=$(cat go.mod go.sum ./*.go ./stages/* build.sh | sha256sum | cut -c1-16)
cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
dir=$cache/controlplane-$key
out=$dir/outrigger-controlplane
if [ -x "$out" ]; then
    echo "$out"
    exit 0
fi
command -v go >/dev/null || { echo "build.sh: Go 1.26 or later is needed to build the control plane" >&2; exit 1; }

mkdir -p "$cache"
exec 9>"$cache/controlplane.lock"
flock 9
if [ ! -x "$out" ]; then
    echo "building the control plane (Kubernetes $kubernetes): several minutes the first time" >&2
    mkdir -p "$dir" generated/crds
    # cert-manager's own definitions are embedded; they come with its module.
    go mod download github.com/cert-manager/cert-manager
    cp "$(go list -m -f '{{.Dir}}' github.com/cert-manager/cert-manager)"/deploy/crds/*.yaml generated/crds/
    chmod -R u+w generated
    v=k8s.io/component-base/version
    CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$out.part" -ldflags "-s -w \
        -X $v.gitVersion=$kubernetes -X $v.gitMajor=$major -X $v.gitMinor=$minor \
        -X $v.gitTreeState=clean -X $v.buildDate=1970-01-01T00:00:00Z" . >&2
    mv "$out.part" "$out"
    # Earlier builds are of no use any more.
    find "$cache" -maxdepth 1 -name 'controlplane-*' ! -path "$dir" -mtime +7 -exec rm -rf {} + 2>/dev/null || true
fi
echo "$out"
