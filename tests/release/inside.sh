#!/usr/bin/env bash
# inside.sh ROOT SHARED ARGUMENT...: runs an unpacked image as a kubelet does: its user, its root and nothing else, which is
# read-only, with /proc, the devices that every runtime of containers provides, and with the file SHARED/hosts as /etc/hosts. The
# directory SHARED has the path that it has outside.
#
# No container runtime is needed, and no privilege: namespaces of users and mounts are enough. The process keeps its id.
set -euo pipefail
exec unshare --user --map-root-user --mount bash -c '
    set -euo pipefail
    root=$1 shared=$2
    shift 2
    # On a copy of the directories of the image, without its files: a read-only root has nowhere to mount.
    mount -t tmpfs -o mode=0755 tmpfs "$root.run"
    for file in LICENSE outrigger; do
        touch "$root.run/$file"
        mount --bind "$root/$file" "$root.run/$file"
    done
    cp -r "$root/etc" "$root.run/etc"
    cp "$shared/hosts" "$root.run/etc/hosts"
    mkdir -p "$root.run/proc" "$root.run/dev" "$root.run$shared"
    for device in full null random urandom zero; do
        touch "$root.run/dev/$device"
        mount --bind "/dev/$device" "$root.run/dev/$device"
    done
    mount --rbind /proc "$root.run/proc"
    mount --rbind "$shared" "$root.run$shared"
    mount -o remount,ro "$root.run"
    exec unshare --user --map-user=65532 --map-group=65532 --root="$root.run" --wd=/ /outrigger "$@"
' inside "$@"
