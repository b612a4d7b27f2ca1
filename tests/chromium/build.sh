#!/usr/bin/env bash
# Installs Chromium and its driver from Debian's packages, unless they are there already, and prints the path of the driver.
set -euo pipefail
export LC_ALL=C

missing=()
command -v chromium >/dev/null || missing+=(chromium)
command -v chromedriver >/dev/null || missing+=(chromium-driver)
# Without a font there are no letters to measure, and no shapes of states.
[ -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf ] || missing+=(fonts-dejavu-core)
[ ${#missing[@]} = 0 ] || "$(dirname "${BASH_SOURCE[0]}")/../debian.sh" "${missing[@]}"
command -v chromedriver
