//! Tenants: who they are, what is theirs, and who may speak for them.
//!
//! [`crate::state::registry`] is what is known, on every replica; [`crate::identity`] reads who calls; [`claim`] says which replica serves a
//! tenant's stream; [`controller`] makes namespaces and DPUs what they should be, on the replica that leads.

pub mod claim;
pub mod controller;
pub mod namespace;
pub mod nodes;
mod status;
