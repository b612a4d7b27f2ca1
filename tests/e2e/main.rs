//! Tests of the whole: real clusters, real processes. One control plane serves all tests of this binary; each test has
//! tenants of its own.
// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod admin_rules;
mod admission;
mod audit;
mod before_binding;
mod claims;
mod companions;
mod companions_first;
mod connections;
mod console;
mod console_server;
mod control_plane;
mod devices;
mod diff;
mod documented;
mod escape;
mod explain;
mod grpc;
mod identity;
mod large;
mod leaks;
mod lifecycle;
mod linger;
mod machines;
mod monitoring;
mod nodes;
mod offline;
mod offloading;
mod operation;
mod ordering;
mod pod;
mod queries;
mod rollout;
mod rule_sync;
mod rules;
mod second_webhook;
mod skew;
mod status;
mod subjects;
mod tenancy;
mod unread;
mod wrong_rules;
