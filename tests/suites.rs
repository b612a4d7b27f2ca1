//! The suites: all tests that need clusters, or the whole work tree. They are one program to compile and to link
//! instead of nineteen, each of which contained the same libraries.
//!
//! Each module is a suite, and the runner starts one process for each: its tests share the control planes of that process. By hand
//! too a suite's name belongs to the command: `cargo test -p outrigger-tests --test suites e2e::`.
// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod abuse;
mod book;
mod boot;
mod certificates;
mod console;
mod crash;
mod deploy;
mod docs;
mod e2e;
mod faults;
mod gitops;
mod host;

mod model;

mod outages;
mod policies;
mod rack;
mod release;
mod restarts;
mod rolling;
mod upgrades;
mod yaml;
