package main

import (
	"fmt"
	"path/filepath"
)

// endpoint is an etcd and how to talk to it.
type endpoint struct {
	url, ca string
	client  pair
}

// newEtcd writes what the etcd of all clusters needs and names it; it doesn't run yet.
func (u *up) newEtcd() (endpoint, error) {
	dir := filepath.Join(u.dir, "etcd")
	authority, err := newAuthority(dir, "etcd")
	if err != nil {
		return endpoint{}, err
	}
	serving, err := authority.issue("server", "etcd")
	if err != nil {
		return endpoint{}, err
	}
	client, err := authority.issue("client", "kube-apiserver")
	if err != nil {
		return endpoint{}, err
	}
	ports, err := freePorts(2)
	if err != nil {
		return endpoint{}, err
	}
	url := fmt.Sprintf("https://127.0.0.1:%d", ports[0])
	peer := fmt.Sprintf("https://127.0.0.1:%d", ports[1])
	u.etcd = u.process("", "etcd",
		"--data-dir="+filepath.Join(dir, "data"), "--name=etcd",
		"--listen-client-urls="+url, "--advertise-client-urls="+url,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=etcd="+peer,
		"--cert-file="+serving.cert, "--key-file="+serving.key,
		"--trusted-ca-file="+authority.file(), "--client-cert-auth",
		"--peer-cert-file="+serving.cert, "--peer-key-file="+serving.key, "--peer-trusted-ca-file="+authority.file(),
		"--log-level=warn",
	)
	if u.noFsync {
		// What is written here is thrown away with the directory.
		u.etcd.args = append(u.etcd.args, "--unsafe-no-fsync")
	}
	if u.etcdQuota > 0 {
		u.etcd.args = append(u.etcd.args, fmt.Sprintf("--quota-backend-bytes=%d", u.etcdQuota))
	}
	return endpoint{url: url, ca: authority.file(), client: client}, nil
}
