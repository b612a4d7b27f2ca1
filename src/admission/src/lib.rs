//! Admission decisions.
//!
//! **In**: AdmissionReview requests, changes of watched objects, the time. **Out**: decisions with minimal JSON patches, and
//! the reservations that they depend on. **Callers**: the webhook's server, and the offline commands.
//!
//! [`webhooks`] is the table of all webhooks: routes, metric labels, the shipped configurations and offline decisions derive
//! from it. A handler reads nothing but the request, the [`caches`] and the settings. It neither waits nor calls the API
//! server. Where a cache is stale it says so, and waiting is up to the caller. What can be given away once only (slots,
//! groups and nodes of Machines) it returns as a [`Reservation`], which the caller makes.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests measure with the system's clocks"))]

mod admin;
mod bindings;
pub mod caches;
mod claims;
mod companions;
mod decision;
mod gates;
mod handler;
pub mod machines;
mod mutate;
mod offloading;
mod pods;
pub mod provenance;
pub mod review;
mod rules;
mod steps;
mod tenants;
pub mod webhooks;

pub use decision::{CONTRADICTION, Decision};
pub use handler::{Admission, CacheStale, Context, Settings, StepObserver};
pub use machines::{GuestOutcome, Reservation};

#[cfg(test)]
mod tests;
