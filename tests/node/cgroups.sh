# Functions for cgroups of both versions. A Node has a cgroup of its own, which is the root of all that its programs see.
#
# With version 2, all controllers are in one hierarchy, and a cgroup that gives controllers to its children has no processes itself. With
# version 1, each controller has a hierarchy.
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    hierarchies=("")
    wanted=(cpu cpuset io memory pids)
else
    hierarchies=(cpu cpuacct cpuset memory devices freezer blkio pids systemd)
fi

# delegate CGROUP: gives its children those controllers that kubelets want. With version 2.
delegate() {
    local at=/sys/fs/cgroup/$1 controller
    for controller in "${wanted[@]}"; do
        ! grep -qw "$controller" "$at/cgroup.controllers" || echo "+$controller" >"$at/cgroup.subtree_control" || return
    done
}

# make_cgroup CGROUP: in every hierarchy, with those that it is in. Its processes may use all controllers.
make_cgroup() {
    local hierarchy at=. part file
    for hierarchy in "${hierarchies[@]}"; do mkdir -p "/sys/fs/cgroup/$hierarchy/$1" || return; done
    for part in ${1//\// }; do
        [ -z "${wanted:-}" ] || delegate "$at" || return
        # A cgroup of processors takes no process before it has some.
        for file in /sys/fs/cgroup/cpuset/"$at"/cpuset.{cpus,mems}; do
            [ ! -e "$file" ] || cp "$file" "/sys/fs/cgroup/cpuset/$at/$part/" || return
        done
        at=$at/$part
    done
}

# enter_cgroup CGROUP: with this process.
enter_cgroup() {
    local hierarchy
    for hierarchy in "${hierarchies[@]}"; do echo 0 >"/sys/fs/cgroup/$hierarchy/$1/cgroup.procs"; done
}

# remove_cgroup CGROUP: with all that are in it. One with processes stays.
remove_cgroup() {
    local hierarchy at
    for hierarchy in "${hierarchies[@]}"; do
        at=/sys/fs/cgroup/$hierarchy/$1
        [ ! -d "$at" ] || find "$at" -depth -type d -exec rmdir {} \; 2>/dev/null || true
    done
}

# mount_cgroups: where programs look for them, in a namespace of cgroups whose root is that of this process.
mount_cgroups() {
    if [ -n "${wanted:-}" ]; then
        mount -t cgroup2 cgroup /sys/fs/cgroup
        mkdir /sys/fs/cgroup/system
        enter_cgroup system
        delegate .
        return
    fi
    mount -t tmpfs tmpfs /sys/fs/cgroup
    local hierarchy options
    for hierarchy in "${hierarchies[@]}"; do
        options=$hierarchy
        [ "$hierarchy" != systemd ] || options=none,name=systemd
        mkdir "/sys/fs/cgroup/$hierarchy"
        mount -t cgroup -o "$options" cgroup "/sys/fs/cgroup/$hierarchy"
    done
}
