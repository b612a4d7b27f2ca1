#!/usr/bin/env bash
# debian.sh PACKAGE...: installs packages of Debian's, beside what others may be installing.
set -euo pipefail
command -v apt-get >/dev/null || { echo "please install: $*" >&2; exit 1; }
sudo=$([ "$(id -u)" = 0 ] || echo sudo)
apt=($sudo apt-get -qq -o DPkg::Lock::Timeout=600)
"${apt[@]}" update >&2
DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y --no-install-recommends "$@" >&2
