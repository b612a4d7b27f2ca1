//! Flux and Argo CD with Outrigger's kinds: what their health checks say of each documented state, and of real objects.
// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod components;
mod judge;
mod live;
mod states;
