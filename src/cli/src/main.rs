//! The `outrigger` command: see `outrigger --help`.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests measure with the system's clocks"))]

mod admission;
mod attributes;
mod bundle;
mod cases;
mod check;
mod claims;
mod cluster;
mod command;
mod companion;
mod condition;
mod console;
mod crd;
mod diff;
mod document;
mod explain;
mod files;
mod linger;
mod program;
mod reference;
mod render;
mod review;
mod rules;
mod sent;
mod slots;
mod state;
mod status;
mod style;
mod webhooks;

use std::process::ExitCode;

/// Reflector caches live long beside requests that don't: jemalloc keeps the former from fragmenting the heap.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A program that users get has no switches of faults.
const _: () = assert!(!outrigger_core::fault::COMPILED, "build without the feature faults of outrigger-core");

fn main() -> ExitCode {
    program::main()
}
