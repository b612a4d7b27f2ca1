#!/usr/bin/env bash
# Builds what tests need beside the control plane, unless it is built already: grpcurl, Helm, promtool, mdBook, Chromium, the programs of real Nodes...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# Pages ask the audit log by it.
command -v jq >/dev/null || ./debian.sh jq
for tool in grpcurl mdbook helm prometheus buf crdify patches kubelet node containerd gitops/judge yaml/judge cyclonedx openreports chromium axe; do
    "$tool/build.sh" >/dev/null
done
