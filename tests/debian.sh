#!/usr/bin/env bash
# debian.sh PACKAGE...: installs packages of Debian's, beside what others may be installing.
set -euo pipefail
command -v apt-get >/dev/null || { echo "please install: $*" >&2; exit 1; }
sudo=$([ "$(id -u)" = 0 ] || echo sudo)
# apt-get waits for others while it installs, and not while it updates its lists.
cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
mkdir -p "$cache"
exec 9>"$cache/debian.lock"
flock 9
apt=($sudo apt-get -qq -o DPkg::Lock::Timeout=600)
"${apt[@]}" update >&2
DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y --no-install-recommends "$@" >&2
