//! The DPUs of hosts, reported at the tenant's own Nodes: a condition, [`outrigger_core::keys::DPU_READY`], and a taint,
//! [`outrigger_core::keys::DPU_NOT_READY`]. Both are off unless the tenant switches them on.
//!
//! **In**: what the manager reports of hosts, on the stream that [`crate::companions`] follows, and a watch of the tenant's Nodes.
//! **Out**: one condition, written by a strategic merge patch of `nodes/status` that holds nothing else, and one taint, written by
//! a JSON patch that fails if the list of taints isn't the one that it was computed from.
//!
//! The manager is another party. Of what it says only the name of a Node and one word of a closed set are used, all texts are the
//! agent's own, and the number of writes is bounded in all and for each Node ([`board`]). The taint has the effect `NoSchedule`: a
//! manager that is wrong keeps new Pods away, and ends none.

mod board;
mod decide;
mod received;
mod writer;

pub(crate) use board::{Hosts, Part};
pub(crate) use decide::Knowledge;
pub(crate) use received::{HostListener, ReceivedHosts};
pub(crate) use writer::{start, watch};
