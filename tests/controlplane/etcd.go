package main

import (
	"fmt"
	"path/filepath"
)

// Sockets of etcd in its directory, which is the working directory of all processes. etcd wants the form of an address, so their
// names have a number.
const (
	etcdClients = "unix://clients:1"
	etcdPeers   = "unix://peers:1"
)

// etcdDir is where etcd has its data and its sockets.
func (u *up) etcdDir() string { return filepath.Join(u.dir, "etcd") }

// newEtcd names the etcd of all clusters; it doesn't run yet.
//
// API servers reach it by a socket that only its owner can open. TLS instead of it cost each API server half a second of processor time
// for the hundred connections that it opens as it starts, and etcd as much.
func (u *up) newEtcd() {
	u.etcd = u.process("", "etcd",
		"--data-dir="+filepath.Join(u.etcdDir(), "data"), "--name=etcd",
		"--listen-client-urls="+etcdClients, "--advertise-client-urls="+etcdClients,
		"--listen-peer-urls="+etcdPeers, "--initial-advertise-peer-urls="+etcdPeers, "--initial-cluster=etcd="+etcdPeers,
		"--log-level=warn",
	)
	if u.noFsync {
		// What is written here is thrown away with the directory.
		u.etcd.args = append(u.etcd.args, "--unsafe-no-fsync")
	}
	if u.etcdQuota > 0 {
		u.etcd.args = append(u.etcd.args, fmt.Sprintf("--quota-backend-bytes=%d", u.etcdQuota))
	}
}
