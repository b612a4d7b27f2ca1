//! Offloading of namespaces: what NamespaceOffloadings ask for becomes the label by which admission is asked about a
//! namespace's Pods, and their status says which virtual nodes were selected.
//!
//! `cache` is what is known, `status` is computed from it, `controller` writes, on the replica that leads. A cluster that
//! doesn't have the kind has nothing to do here, and waits for nothing.

mod cache;
mod controller;
mod status;

pub(crate) use cache::OffloadingCache;
pub(crate) use controller::Offloadings;
