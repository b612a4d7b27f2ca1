#!/usr/bin/env bash
# node.sh DIR CLUSTER NAME NUMBER CGROUP PROGRAM CONTAINERD: runs a Node in the rack that it is started in, until it is killed.
#
# DIR is the control plane's directory, CGROUP the directory in each hierarchy of cgroups that the Node's are in, PROGRAM what build.sh builds,
# CONTAINERD the directory of what ../containerd/build.sh builds.
# The Node has namespaces of its own for all that the kernel has them for but users: so each program has the paths, the processes and
# the cgroups that it has on a machine of its own, and whoever kills the first process has switched the Node off. Its disk is
# DIR/nodes/NAME, which stays.
set -euo pipefail
PATH=$7:$PATH:/usr/sbin:/sbin
dir=$1 cluster=$2 name=$3 number=$4 cgroup=$5 program=$6 containerd=$7
source "${BASH_SOURCE[0]%/*}/cgroups.sh"
source "${BASH_SOURCE[0]%/*}/network.sh"

plug_in() {
    ip netns add "$name"
    ip -n switch link add "$name" type veth peer name eth0 netns "$name"
    ip -n switch link set "$name" master rack up
    ip -n "$name" link set lo up
    ip -n "$name" address add "10.77.0.$number/16" dev eth0
    ip -n "$name" link set eth0 up
    ip netns exec "$name" sysctl -qw net.ipv4.ip_forward=1
    # Routes to all Pods there could be, also those of Nodes that come later.
    local other
    for other in $(ip netns list | cut -d' ' -f1); do
        [ "$other" = switch ] || ip -n "$other" route replace "$(subnet "$number")" via "10.77.0.$number" 2>/dev/null || true
    done
    ip -n "$name" route delete "$(subnet "$number")" 2>/dev/null || true
    for other in $(seq 2 60); do
        [ "$other" = "$number" ] || ip -n "$name" route replace "$(subnet "$other")" via "10.77.0.$other"
    done
}

case ${8:-} in
'')
    [ -e "/run/netns/$name" ] || plug_in
    # A Node that is switched on again gets new ones: those of before may have processes that are about to end.
    cgroup=$cgroup/$$
    make_cgroup "$cgroup"
    exec nsenter --net="/run/netns/$name" unshare --mount --pid --fork --kill-child --uts --ipc \
        "$0" "$dir" "$cluster" "$name" "$number" "$cgroup" "$program" "$containerd" outside
    ;;
outside)
    enter_cgroup "$cgroup"
    exec unshare --cgroup "$0" "${@:1:7}" inside
    ;;
esac

disk=$dir/nodes/$name
keys=$dir/$cluster/nodes/$name
hostname "$name"
mount --make-rprivate /
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount_cgroups
mount -t tmpfs tmpfs /run
mkdir -p "$disk" /run/disk
mount --bind "$disk" /run/disk
disk=/run/disk
# What programs create where they expect it on a machine of their own, the machine doesn't get.
for at in /opt /usr /var; do
    mkdir -p "/run/upper$at" "/run/work$at"
    mount -t overlay overlay -o "lowerdir=$at,upperdir=/run/upper$at,workdir=/run/work$at" "$at"
done
for directory in kubelet containerd; do
    mkdir -p "$disk/$directory" "/var/lib/$directory"
    mount --bind "$disk/$directory" "/var/lib/$directory"
done
# A disk that can be full is in memory: nothing of it is left on the machine.
[ ! -e "$disk/kubelet.size" ] || mount -t tmpfs -o "size=$(cat "$disk/kubelet.size")" tmpfs /var/lib/kubelet
mkdir -p "$disk"/{log,kubelet.conf.d,manifests}
mount --bind "$disk/log" /var/log
# A kubelet's volumes have to be seen by containers that were started before.
mount --make-rshared /

mkdir -p /run/cni
echo "nameserver 127.0.0.1" >/run/resolv.conf
cat >/run/cni/pods.conflist <<X
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true, "ipam": {"type": "host-local", "dataDir": "/run/cni/addresses",
   "ranges": [[{"subnet": "$(subnet "$number")"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
X
cat >/run/containerd.toml <<X
version = 3
oom_score = 0
[grpc]
address = "/run/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "pause:1"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "/run/cni"
X
cat >/run/kubelet.yaml <<X
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, x509: {clientCAFile: $dir/$cluster/ca.crt}}
tlsCertFile: $keys.crt
tlsPrivateKeyFile: $keys.key
containerRuntimeEndpoint: unix:///run/containerd.sock
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
resolvConf: /run/resolv.conf
staticPodPath: $disk/manifests
evictionHard: {memory.available: 50Mi}
# Images come from no registry, so none may be removed because the machine's disk is full.
imageGCHighThresholdPercent: 100
# The machine has processors for two Nodes at most.
nodeStatusUpdateFrequency: 5s
X
sed 's#https://127.0.0.1#https://10.77.0.1#' "$dir/$cluster.kubeconfig" >/run/proxy.kubeconfig
cat >/run/proxy.yaml <<X
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clientConnection: {kubeconfig: /run/proxy.kubeconfig}
clusterCIDR: 10.78.0.0/16
hostnameOverride: $name
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
X

# again WORD...: runs a program, and runs it again when it ends, as a machine's service manager does.
again() {
    while true; do
        "$@" >>"$disk/log/$1.log" 2>&1 || true
        sleep 1
    done
}
containerd() { command containerd --config /run/containerd.toml; }
proxy() { "$program" kube-proxy --config /run/proxy.yaml; }
kubelet() {
    "$program" kubelet --config /run/kubelet.yaml --config-dir "$disk/kubelet.conf.d" --kubeconfig "$keys.kubeconfig" \
        --hostname-override "$name" --node-ip "10.77.0.$number"
}
again containerd &
until ctr --address /run/containerd.sock version >/dev/null 2>&1; do sleep 0.1; done
for image in "$dir"/images/*.tar; do
    ctr --address /run/containerd.sock --namespace k8s.io images import "$image" >/dev/null
done
again proxy &
again kubelet &
wait
