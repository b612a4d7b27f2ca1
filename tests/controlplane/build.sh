#!/usr/bin/env bash
# Builds the control plane, unless it is built already, and prints the path of the program. kubectl is beside it.
#
# It takes minutes and changes rarely, so it lives in a cache outside the work tree, under a name made from all that goes
# into it. Two builds at once wait for each other; a build that is cut off leaves nothing that could be taken for whole.
#
# go.mod names the release of Kubernetes. OUTRIGGER_KUBERNETES=1.34 builds another one, which versions/1.34.mod names.
set -euo pipefail
# The order of the files below is part of the name.
export LC_ALL=C
# An older Go fetches the one that go.mod names; GOTOOLCHAIN=local forbids it.
export GOTOOLCHAIN=${GOTOOLCHAIN:-auto}
cd "$(dirname "${BASH_SOURCE[0]}")"

fail() {
    echo "build.sh: $*" >&2
    exit 1
}

# The version of Kubernetes that a file such as go.mod requires.
kubernetes_of() {
    sed -n 's/^\s*k8s.io\/kubernetes \(v[0-9.]*\).*/\1/p' "$1"
}

modfile=go.mod
release=${OUTRIGGER_KUBERNETES:-}
if [ -n "$release" ] && [[ $(kubernetes_of go.mod) != "v$release."* ]]; then
    modfile=versions/$release.mod
    [ -f "$modfile" ] || fail "OUTRIGGER_KUBERNETES=$release: there is no tests/controlplane/$modfile; unset it, or name another release"
fi

sources=()
for file in *.go; do
    [[ $file == *_test.go ]] || sources+=("$file")
done
key=$(sha256sum "$modfile" "${modfile%.mod}.sum" "${sources[@]}" kubectl/* stages/* build.sh | sha256sum | cut -c1-16)
cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
dir=$cache/controlplane-$key
out=$dir/outrigger-controlplane
if [ -x "$out" ]; then
    echo "$out"
    exit 0
fi

wanted=$(sed -n 's/^go \([0-9]*\.[0-9]*\).*/\1/p' "$modfile")
command -v go >/dev/null || fail "Go $wanted or later is needed to build the control plane; install it, or put it on the PATH"
found=$(go env GOVERSION) || fail "Go $wanted or later is needed to build the control plane, and $(command -v go) can't fetch it"
found=${found#go}
[ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ] ||
    fail "Go $wanted or later is needed to build the control plane, and $(command -v go) is $found"
kubernetes=$(kubernetes_of "$modfile")
[ -n "$kubernetes" ] || fail "$modfile doesn't name the version of k8s.io/kubernetes"
IFS=. read -r major minor _ <<<"${kubernetes#v}"

mkdir -p "$cache"
exec 9>"$cache/controlplane.lock"
flock 9
if [ ! -x "$out" ]; then
    echo "building the control plane (Kubernetes $kubernetes): several minutes the first time" >&2
    mkdir -p "$dir"
    cp "$modfile" "$dir/go.mod"
    cp "${modfile%.mod}.sum" "$dir/go.sum"
    # In the environment, because go generate runs go commands too.
    GOFLAGS="$(go env GOFLAGS) -modfile=$dir/go.mod"
    export GOFLAGS
    # KWOK 0.7, the last release for Kubernetes before 1.36, insists on an annotation of a watch that Kubernetes 1.34 has removed.
    # It is built without these lines, which later releases don't have.
    # `go list` names no directory of a module that isn't downloaded yet.
    go mod download sigs.k8s.io/kwok
    kwok=$(go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)
    informer=pkg/utils/informer/informer.go
    if grep -q InitialEventsListBlueprintAnnotationKey "$kwok/$informer"; then
        rm -rf "$dir/kwok"
        cp -r --no-preserve=mode "$kwok" "$dir/kwok"
        sed -i '/base64EncodedInitialEventsListBlueprint := /,/^\t*}$/d' "$dir/kwok/$informer"
        go mod edit -replace "sigs.k8s.io/kwok=$dir/kwok" "$dir/go.mod"
    fi
    go generate >&2
    v=k8s.io/component-base/version
    flags="-s -w -X $v.gitVersion=$kubernetes -X $v.gitMajor=$major -X $v.gitMinor=$minor \
        -X $v.gitTreeState=clean -X $v.buildDate=1970-01-01T00:00:00Z"
    CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$dir/kubectl" -ldflags "$flags" ./kubectl >&2
    CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$out.part" -ldflags "$flags" . >&2
    mv "$out.part" "$out"
    rm -rf "$dir/kwok"
    # Earlier builds are no longer of use, except to another work tree.
    find "$cache" -maxdepth 1 -name 'controlplane-*' ! -path "$dir" -mtime +7 -exec rm -rf {} + 2>/dev/null || true
fi
echo "$out"
