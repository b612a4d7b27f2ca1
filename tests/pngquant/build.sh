#!/usr/bin/env bash
# Installs pngquant, which makes pictures small, from Debian's packages, unless it is there already, and prints its path.
set -euo pipefail
command -v pngquant >/dev/null || "$(dirname "${BASH_SOURCE[0]}")/../debian.sh" pngquant
command -v pngquant
