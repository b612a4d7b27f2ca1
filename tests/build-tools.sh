#!/usr/bin/env bash
# Builds what tests need beside the control plane, unless it is built already: grpcurl, Helm, promtool, mdBook, Chromium, the programs of real Nodes...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
for tool in grpcurl mdbook helm prometheus buf crdify patches kubelet node gitops/judge yaml/judge cyclonedx chromium axe; do
    "$tool/build.sh" >/dev/null
done
