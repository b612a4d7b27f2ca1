#!/usr/bin/env bash
# rack.sh CGROUP CONTROLPLANE ARGUMENT...: runs a control plane with a network of its own, to which Nodes can be added by node.sh.
#
# It runs in namespaces of its own for networks, mounts and processes, so nothing of the machine is touched, and all of it ends with the
# control plane. What only the machine can have are cgroups: those of Nodes are below CGROUP, whose name ends with the id of a process.
# They are removed in the end. If this script was killed, the next one removes them.
#
# The network is a switch, 10.77.0.0/16, as between the servers of a rack. The control plane has 10.77.0.1, Node N 10.77.0.N, and the Pods
# of each Node have a part of 10.78.0.0/16, to which every other Node has a route.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

source "${BASH_SOURCE[0]%/*}/cgroups.sh"

if [ "$1" != inside ]; then
    cgroup=$1
    for left in /sys/fs/cgroup/"${hierarchies[0]}"/"${cgroup%%-*}"-*; do
        [ -e "/proc/${left##*-}" ] || remove_cgroup "${left##*/}"
    done
    make_cgroup "$cgroup" || { echo "real Nodes need cgroups: this machine doesn't let its root make any" >&2; exit 1; }
    status=0
    unshare --net --mount --pid --fork --kill-child "$0" inside "${@:2}" || status=$?
    remove_cgroup "$cgroup"
    exit $status
fi

mount --make-rprivate /
mount -t proc proc /proc
# Names of network namespaces are files here.
mount -t tmpfs tmpfs /run
for name in switch plane; do
    ip netns add $name
    ip -n $name link set lo up
done
ip -n switch link add rack type bridge
ip -n switch link set rack up
ip -n switch link add plane type veth peer name eth0 netns plane
ip -n switch link set plane master rack up
ip -n plane address add 10.77.0.1/16 dev eth0
ip -n plane link set eth0 up
exec nsenter --net=/run/netns/plane "${@:2}"
