#!/usr/bin/env bash
# Builds Kueue's controller, unless it is built already, and prints the path of the program. Beside it is config/: the manifests of its
# module, with which Kueue is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
program=$(../go-program.sh kueue sigs.k8s.io/kueue/cmd/kueue)
config=$(dirname "$program")/config
if [ ! -d "$config" ]; then
    go mod download sigs.k8s.io/kueue
    part=$(mktemp -d "$config.XXXX")
    cp -r --no-preserve=mode "$(go list -m -f '{{.Dir}}' sigs.k8s.io/kueue)/config" "$part"
    # Another build may have been faster.
    mv -T "$part/config" "$config" 2>/dev/null || true
    rm -rf "$part"
fi
echo "$program"
