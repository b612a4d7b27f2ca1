//! Tenants: their namespaces, their DPUs, and which replica serves their streams.
//!
//! [`crate::state::registry`] is what is known, on every replica; [`claim`] says which replica serves a tenant's stream;
//! `controller` makes namespaces and DPUs what they should be, on the replica that leads.

pub(crate) mod claim;
mod controller;
mod enforcement;
pub(crate) mod first;
mod former;
pub(crate) mod namespace;
mod nodes;
pub(crate) mod replicas;
mod second;
mod status;

pub(crate) use controller::Key;
pub(crate) use controller::Tenants;
pub(crate) use former::Former;
pub(crate) use status::ControllerStatus;
