//! The state of the companions of the tenant's workloads, reported at the workloads themselves: conditions and Events of
//! Pods in the tenant's cluster.
//!
//! **In**: a stream from the manager ([`follow`]), which holds for each workload the current state of its companions, and
//! the Pods that the agent watches anyway. **Out**: two conditions, [`outrigger_core::keys::COMPANIONS_CONDITION`] and
//! [`outrigger_core::keys::COMPANIONS_GATE`], and an Event when a reason changes ([`writer`]).
//!
//! The manager is another party. What it says is bounded when it arrives ([`received`]), concerns only Pods that the agent itself
//! watches ([`board`]), and can cause nothing but these conditions and Events: [`decide`] is a pure function of it. The number of
//! writes is bounded in all and for each Pod.

mod board;
mod decide;
mod follow;
mod received;
mod writer;

pub(crate) use board::{Bind, Board, ClaimName, Link, Start, Verdict};
pub(crate) use follow::Follower;
#[cfg(test)]
pub(crate) use received::Companions;
pub(crate) use received::revision;
pub(crate) use writer::Writer;
