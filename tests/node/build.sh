#!/usr/bin/env bash
# Builds the program that is the kubelet, the kube-proxy, the CoreDNS and a driver of devices of real Nodes, unless it is built already, and prints its path.
# Installs what they need beside it and containerd: runc, the plugins for networks, iptables and busybox, from Debian's packages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
declare -A packages=([runc]=runc [iptables]=iptables [busybox]=busybox-static [ip]=iproute2)
missing=()
for program in "${!packages[@]}"; do
    PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || missing+=("${packages[$program]}")
done
[ -x /usr/lib/cni/bridge ] || missing+=(containernetworking-plugins)
[ ${#missing[@]} = 0 ] || ../debian.sh "${missing[@]}"
# A kubelet is of the version that it says, and the API server's must not be older.
version=$(sed -n 's/^\tk8s.io\/kubernetes \(v[0-9.]*\)$/\1/p' go.mod)
export GOFLAGS="'-ldflags=-s -w -X k8s.io/component-base/version.gitVersion=$version'"
exec ../go-program.sh node . main.go dns.go
