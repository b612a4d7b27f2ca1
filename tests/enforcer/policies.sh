#!/usr/bin/env bash
# policies.sh NAME NUMBER SERVER ACCOUNT PROGRAM: enforces the NetworkPolicies of a cluster on a Node that runs, until it is killed. After
# that, connections from and to the Node's Pods are no longer opened.
#
# PROGRAM is kube-network-policies. It judges the first packet of each connection that the kernel sends to its queue. Its own rule for that
# needs nftables with queues (NFT_QUEUE), which not every kernel has, so these are the same in iptables: what is established, and what
# root on the Node sends, such as a kubelet's probes, isn't judged. SERVER is the API server's port, ACCOUNT a directory with the token and
# the CA of a service account.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
source "${BASH_SOURCE[0]%/*}/../node/network.sh"
name=$1 number=$2 server=$3 account=$4 program=$5
if [ "${6:-}" != inside ]; then
    exec nsenter --net="/run/netns/$name" unshare --mount "$0" "$@" inside
fi
pods=$(subnet "$number")
rule() { iptables --wait --table mangle --append POSTROUTING "$@"; }
rule --match conntrack --ctstate ESTABLISHED,RELATED --jump ACCEPT
rule --match owner --uid-owner 0 --jump ACCEPT
for direction in source destination; do rule "--$direction" "$pods" --jump NFQUEUE --queue-num 100; done

# It takes itself for a container of a Pod.
mount -t tmpfs tmpfs /run
mkdir -p /run/secrets/kubernetes.io
cp -r "$account" /run/secrets/kubernetes.io/serviceaccount
export KUBERNETES_SERVICE_HOST=10.77.0.1 KUBERNETES_SERVICE_PORT=$server
exec "$program" --hostname-override "$name"
