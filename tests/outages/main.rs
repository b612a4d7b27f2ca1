//! Outages of what Outrigger relies on: etcd, API servers, disks, pipes, certificates, other replicas. These tests break the
//! control plane for everybody, so they have one of their own, and run one after the other.
// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod authority;
mod etcd;
mod leaders;
mod log;
mod processes;
mod stage;
