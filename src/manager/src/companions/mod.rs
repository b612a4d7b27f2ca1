//! The companion controller: takes a key, compares what is wanted with what there is, and makes one step.

pub(crate) mod location;
pub mod object;
pub mod observe;
pub mod templates;

mod reconcile;
pub(crate) mod refusal;

pub use reconcile::{Controller, MAX_IN_FLIGHT, MAX_OF_ONE_TENANT};
