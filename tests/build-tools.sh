#!/usr/bin/env bash
# Builds what tests need beside the control plane, unless it is built already: grpcurl, Helm, promtool, mdBook, Chromium...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
for tool in grpcurl mdbook helm prometheus buf crdify patches kubelet gitops/judge yaml/judge cyclonedx chromium axe; do
    "$tool/build.sh" >/dev/null
done
