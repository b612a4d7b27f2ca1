//! Outages of what Outrigger relies on: etcd, API servers, disks, pipes, certificates, other replicas. These tests break the
//! control plane for everybody, so they have one of their own, and run one after the other.

mod authority;
mod etcd;
mod leaders;
mod log;
mod processes;
mod stage;
