//! The common base of webhook, manager and agent.
//!
//! **In**: command-line settings, certificate files, sockets, signals. **Out**: running servers with telemetry, readiness, metrics
//! and a graceful shutdown. **Callers**: the three server crates; this crate doesn't know what they serve.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests measure with the system's clocks"))]

pub mod admin;
mod api_metrics;
pub mod bind;
pub mod bucket;
pub mod cache;
pub mod callers;
pub mod calls;
pub mod cluster;
pub mod debug;
pub mod environment;
pub mod events;
pub mod expiry;
#[cfg(any(test, feature = "testing"))]
pub mod fake_api;
pub mod lease;
pub mod metrics;
pub mod probe;
pub mod process;
pub mod ready;
pub mod self_signed;
pub mod serve;
pub mod telemetry;
pub mod tls;
pub mod watch;

pub use outrigger_api::{node, pod};
pub use process::Process;

#[cfg(test)]
mod testing;

use std::time::Duration;

/// Parses a duration such as `500ms`, `10s`, `1m 30s`, for clap.
///
/// # Errors
/// If the text is no duration.
pub fn duration(text: &str) -> Result<Duration, humantime::DurationError> {
    humantime::parse_duration(text)
}
