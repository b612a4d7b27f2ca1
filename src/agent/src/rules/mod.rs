//! The tenant's rules: from its own cluster into the infrastructure cluster, and what became of them back.
//!
//! Level-based, in rounds: one brief list of the infrastructure cluster's rules, compared with those of one namespace
//! here. What differs is made so, with at most one write for a rule; what became of a rule is written into its status
//! here, if it isn't there already. A round that finds nothing to do writes nothing.

mod budget;
mod pace;
mod sanitize;
mod skew;
mod status;
mod store;
mod sync;
pub mod wire;

pub use store::RuleStore;
pub use sync::Syncer;
