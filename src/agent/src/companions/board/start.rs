//! Pods that don't start before their companions: which Pod a claim belongs to, and who waits for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outrigger_core::fault;
use outrigger_core::ids::WorkloadId;
use outrigger_core::map::{HashMap, remove_from};
use outrigger_core::reason::Cause;
use outrigger_runtime::pod::Pod;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::{Board, State};
use crate::companions::decide;

/// A ResourceClaim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ClaimName {
    pub namespace: String,
    pub name: String,
}

impl ClaimName {
    /// The claim by which a Pod waits. Its name is generated after the Pod is created.
    pub(crate) fn of(pod: &Pod) -> Option<Self> {
        pod.spec.as_ref()?.held?;
        let name = pod.status.as_ref()?.companions_claim.clone()?;
        Some(Self { namespace: pod.metadata.namespace.clone()?, name })
    }
}

/// Whether the Pod of a claim may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    Ready,
    /// It has to wait.
    Waits {
        /// Why, in one word.
        cause: String,
        /// Why, for people.
        message: String,
    },
    /// It is bound to another Node.
    Elsewhere,
}

impl Start {
    fn waits(cause: Cause) -> Self {
        Self::Waits { cause: cause.as_str().to_owned(), message: cause.message() }
    }
}

/// The Pods of claims, and who waits.
#[derive(Debug, Default)]
pub(super) struct Starts {
    /// A claim has one Pod, unless somebody else has written the Pods' status.
    pods: HashMap<ClaimName, BTreeSet<WorkloadId>>,
    waiting: HashMap<ClaimName, Arc<Notify>>,
}

impl Starts {
    /// The claim of a Pod has changed.
    pub(super) fn moved(&mut self, id: &WorkloadId, before: Option<ClaimName>, now: Option<ClaimName>) {
        if before == now {
            return;
        }
        if let Some(before) = before {
            remove_from(&mut self.pods, &before, |ids| ids.remove(id));
            self.wake(&before);
        }
        if let Some(now) = now {
            self.pods.entry(now).or_default().insert(id.clone());
        }
    }

    /// Wakes those who wait for a claim.
    pub(super) fn wake(&self, claim: &ClaimName) {
        if let Some(waiting) = self.waiting.get(claim) {
            waiting.notify_waiters();
        }
    }

    /// Wakes all.
    pub(super) fn wake_all(&self) {
        self.waiting.values().for_each(|waiting| waiting.notify_waiters());
    }
}

impl Board {
    /// Waits until the Pod of a claim may start, or until then. Returns the last answer. `node` is the Node that asks. A Pod of another Node
    /// is waited for as one that isn't known: an earlier answer would disclose that there is such a Pod.
    pub(crate) async fn start(&self, node: &str, claim: &ClaimName, until: Instant) -> Start {
        let waiting = Waiting::new(self, claim);
        loop {
            let mut changed = std::pin::pin!(waiting.changed.notified());
            // A change from here on is noticed.
            changed.as_mut().enable();
            let now = self.clock.now();
            let (start, due) = self.state.lock().start(node, claim, self.after, now);
            if matches!(start, Start::Ready) || now >= until {
                return start;
            }
            let wake = due.filter(|due| *due > now).map_or(until, |due| due.min(until));
            tokio::select! {
                () = changed => {}
                () = sleep_until(wake) => {}
            }
        }
    }
}

impl State {
    /// Returns whether the Pod of a claim may start, and when the answer may become another one without an event.
    fn start(
        &self,
        node: &str,
        claim: &ClaimName,
        after: Duration,
        now: Instant,
    ) -> (Start, Option<Instant>) {
        let unknown = (Start::waits(Cause::PodUnknown), None);
        let Some(ids) = self.starts.pods.get(claim) else { return unknown };
        let pods = || ids.iter().filter_map(|id| self.pods.get(id));
        for known in pods() {
            match known.node() {
                None => return unknown,
                Some(of) if of != node && !fault("pod-of-another-node-starts") => {
                    return (Start::Elsewhere, None);
                }
                Some(_) => {}
            }
        }
        let Some(ordered) = &self.ordered else { return (Start::waits(Cause::ManagerUnreachable), None) };
        for known in pods() {
            let (knowledge, due) = known.knowledge(self.link, self.stream, after, now);
            if let Some((cause, message)) = decide::start(knowledge, known.awaited_to_start(ordered)) {
                return (Start::Waits { cause, message }, due);
            }
        }
        (Start::Ready, None)
    }
}

#[cfg(test)]
impl Board {
    /// The manager says that no companion keeps a Pod from starting.
    pub(crate) fn permit(&self, id: &WorkloadId) {
        let stream = self.opened();
        self.received(stream, id, crate::companions::received::Companions::default());
    }
}

/// One who waits for a claim.
struct Waiting<'a> {
    board: &'a Board,
    claim: &'a ClaimName,
    changed: Arc<Notify>,
}

impl<'a> Waiting<'a> {
    fn new(board: &'a Board, claim: &'a ClaimName) -> Self {
        let changed = board.state.lock().starts.waiting.entry(claim.clone()).or_default().clone();
        Self { board, claim, changed }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.board.state.lock();
        // The map's, and this one: nobody else waits.
        if Arc::strong_count(&self.changed) <= 2 {
            state.starts.waiting.remove(self.claim);
        }
    }
}

#[cfg(test)]
mod tests;
