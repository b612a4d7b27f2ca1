//! The pure domain of Outrigger.
//!
//! **In**: workloads and rules that `outrigger-api` has made out of wire messages and custom resources, and Pods as raw
//! JSON. **Out**: which workload matches which rule ([`index`]), what its companion looks like ([`companion`]), and how
//! a Pod is changed at admission ([`mutate`]). **Callers**: the manager, the webhook, and the offline commands, so that
//! all three decide alike.
//!
//! Nothing in here does I/O, reads a clock, or knows a Kubernetes client: the crate's dependencies keep it so. Every
//! function is synchronous and deterministic.

pub mod admin;
pub mod amounts;
pub mod annotations;
pub mod bounds;
pub mod claim;
pub mod companion;
pub mod device;
pub mod fault;
pub mod field;
pub mod gate;
pub mod groups;
pub mod host;
pub mod ids;
pub mod index;
pub mod json;
pub mod keys;
pub mod lint;
pub mod machine;
pub mod map;
pub mod mutate;
pub mod node;
pub mod offloading;
pub mod ordering;
pub mod path;
pub mod progress;
pub mod quantity;
mod read;
pub mod reason;
pub mod rollout;
pub mod rule;
pub mod selector;
pub mod slots;
pub mod steps;
pub mod syntax;
pub mod template;
pub mod tenant;
pub mod text;
pub mod texts;
pub mod unplaced;
pub mod validate;
pub mod workload;
pub mod yaml;

pub use fault::fault;
