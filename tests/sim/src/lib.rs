//! The deterministic simulation: Outrigger's servers and a model of the API server on one thread, under virtual time.
//!
//! Nothing here starts a thread, reads a system clock or draws a random number that doesn't come from the seed.
// It is for tests, and a failure of it is a failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission;
pub mod faults;
pub mod history;
pub mod judge;
pub mod model;
pub mod network;
pub mod older;
pub mod process;
pub mod trace;
pub mod world;
