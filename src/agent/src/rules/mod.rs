//! Synchronization of the tenant's rules: from the tenant's cluster to the infrastructure cluster, and their status
//! back.
//!
//! Level-based, in rounds. A round compares a brief list of the infrastructure cluster's rules with the rules of one
//! namespace of the tenant's cluster. It writes each rule that differs once, and each status that has changed. A round
//! without differences writes nothing.

mod budget;
mod pace;
mod sanitize;
mod skew;
mod status;
mod store;
mod sync;
pub mod wire;

pub(crate) use sanitize::printable;
pub(crate) use status::ORDERING_NOT_ENFORCED;
pub(crate) use store::RuleStore;
pub(crate) use sync::Syncer;
