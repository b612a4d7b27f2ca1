//! Machines: groups of nodes that are assigned by the slot. For each there are a MachineNodePool, which marks the nodes, and
//! for each type a StatefulSet of reservations that hold slots open until guests take their places.
//!
//! `cache` is what is known; `machine`, `pool` and `left` take one step for an object or a group each and write the difference, on the replica
//! that leads. A cluster that doesn't have the kinds has nothing to do here, and waits for nothing.

mod cache;
mod controller;
mod left;
mod machine;
mod nodes;
mod objects;
mod pods;
mod pool;

pub(crate) use cache::{MachineCache, Touched};
pub(crate) use controller::Key;
pub(crate) use controller::Machines;
pub(crate) use machine::SETTLE;
