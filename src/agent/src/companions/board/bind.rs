//! Pods that aren't bound before their companions are Ready: what the conditions of their claims have to say.
//!
//! Level-based, as the conditions of Pods are, in a queue of its own: nothing else delays the binding of Pods.

use std::time::Duration;

use outrigger_core::fault;
use outrigger_core::ids::WorkloadId;
use outrigger_core::map::remove_from;
use outrigger_core::reason::Cause;
use outrigger_runtime::bucket::Rate;
use tokio::time::Instant;

use super::{Board, ClaimName, State};
use crate::binding::Allocation;
use crate::companions::decide::{self, Knowledge};
use crate::metrics::WriteOutcome;
use crate::paced::{self, Wait};

/// Writes of conditions of all claims. Pods are bound no faster than that.
pub(super) const BINDS: Rate = Rate { burst: 200.0, minute: 6000.0 };
/// Hosts without devices that are remembered. Kubernetes is made for 5,000 Nodes.
const MAX_WITHDRAWN: usize = 20_000;

/// The condition that is to be True.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It may be bound.
    Ready,
    /// The Node has no devices any longer, for this cause: the scheduler has to choose again.
    Unavailable(Cause),
}

/// A write of a claim's condition.
#[derive(Debug)]
pub(crate) struct Bind {
    /// The Pod.
    pub id: WorkloadId,
    pub claim: ClaimName,
    pub allocation: Allocation,
    pub verdict: Verdict,
}

impl Board {
    /// Records on which Node the claim of a Pod is allocated that isn't bound yet.
    pub(crate) fn allocated(&self, id: &WorkloadId, allocation: Option<Allocation>) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let State { pods, allocated, .. } = &mut *state;
        let Some(known) = pods.get_mut(id) else { return };
        if known.allocation == allocation {
            return;
        }
        if let Some(before) = &known.allocation {
            remove_from(allocated, &before.node, |ids| ids.remove(id));
        }
        if let Some(allocation) = &allocation {
            allocated.entry(allocation.node.clone()).or_default().insert(id.clone());
        }
        known.allocate(allocation, now);
        state.push(id);
        drop(state);
        self.notify();
    }

    /// Records whether a Node has no devices any longer because its DPU takes no companions, and why.
    pub(crate) fn withdrawn(&self, node: &str, cause: Option<Cause>) {
        let mut state = self.state.lock();
        if state.withdrawn.len() >= MAX_WITHDRAWN {
            // Nodes that no longer exist, for which no Pod waits.
            let State { allocated, withdrawn, .. } = &mut *state;
            withdrawn.retain(|node, _| allocated.contains_key(node));
        }
        let changed = match cause {
            Some(_) if state.withdrawn.len() >= MAX_WITHDRAWN => false,
            Some(cause) => state.withdrawn.insert(node.to_owned(), cause) != Some(cause),
            None => {
                state.withdrawn.remove(node);
                false
            }
        };
        if !changed {
            return;
        }
        let State { allocated, binds, .. } = &mut *state;
        for id in allocated.get(node).into_iter().flatten() {
            binds.push(id.clone(), true);
        }
        drop(state);
        self.notify();
    }

    /// Waits for the next write of a claim.
    pub(crate) async fn next_bind(&self) -> Bind {
        paced::next(&self.bindable, || self.take_bind()).await
    }

    /// Returns the next write of a claim, or when there may be one.
    pub(super) fn take_bind(&self) -> Result<Bind, Option<Instant>> {
        let now = self.clock.now();
        let examine = |state: &mut State, id: &WorkloadId| state.examine_bind(id, self.after, now);
        paced::take(&mut *self.state.lock(), |state| &mut state.binds, now, examine)
    }

    /// Records what came of a write of a claim.
    pub(crate) fn bind_done(&self, id: &WorkloadId, outcome: WriteOutcome, jitter: f64) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let Some(known) = state.pods.get_mut(id) else { return };
        // A right that is missing is tried again with each claim.
        let outcome = if outcome == WriteOutcome::Forbidden { WriteOutcome::Refused } else { outcome };
        known.bind_pace.done(outcome, now, jitter);
        // It may have changed meanwhile.
        state.binds.push(id.clone(), true);
        drop(state);
        self.bindable.notify_one();
    }
}

impl State {
    /// Compares the claim of a Pod with what it should say. A claim that says something already stays as it is: the scheduler acts
    /// on it at any moment.
    fn examine_bind(&mut self, id: &WorkloadId, after: Duration, now: Instant) -> Result<Bind, Wait> {
        let known = self.pods.get_mut(id).ok_or(Wait::Change)?;
        let (Some(allocation), Some(claim)) = (&known.allocation, &known.claim) else {
            return Err(Wait::Change);
        };
        if allocation.decided || known.deleted || known.bind_pace.is_busy() {
            return Err(Wait::Change);
        }
        let ordered = self.ordered.as_ref().ok_or(Wait::Change)?;
        let (knowledge, due) = known.knowledge(self.link, self.stream, after, now);
        let waits = decide::start(knowledge, known.awaited_to_start(ordered)).is_some();
        let verdict = match self.withdrawn.get(&allocation.node) {
            _ if !waits || fault("waiting-pod-is-bound") => Verdict::Ready,
            Some(cause) if matches!(knowledge, Knowledge::Reported(_)) => Verdict::Unavailable(*cause),
            _ => return Err(Wait::until(due.filter(|due| *due > now))),
        };
        known.bind_pace.begin(None, (&mut self.binding, BINDS), 1.0, now)?;
        Ok(Bind { id: id.clone(), claim: claim.clone(), allocation: allocation.clone(), verdict })
    }
}

#[cfg(test)]
mod tests;
