//! What a tenant, a stranger or a stolen account may try against the others, on a real control plane: the attack is refused, no
//! process takes more memory than 60 % of what the shipped Pods have, and whoever else is served goes on.
// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod grpc;
