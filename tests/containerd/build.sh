#!/usr/bin/env bash
# Builds containerd, its shim and ctr, unless they are built already, and prints the directory that they are in.
#
# Debian's is 1.6: it knows no CDI, by which devices come into containers, and Kubernetes 1.36 asks for 2.2 or later.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
commands=github.com/containerd/containerd/v2/cmd
exec ../go-program.sh containerd "$commands/containerd $commands/containerd-shim-runc-v2 $commands/ctr"
