//! What one neighbour, a stolen account, or a stranger on the network may do to all others: nothing. Each test is an attack on real
//! processes on a real control plane.

// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod agent;
