//! The Pods that have to be examined, now or later.
//!
//! Each Pod is in it at most once for now and once for later, so however often something changes, memory doesn't grow.

use std::collections::BTreeSet;

use outrigger_core::ids::WorkloadId;
use outrigger_core::map::HashMap;
use tokio::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Pods whose readiness depends on it.
    urgent: BTreeSet<WorkloadId>,
    others: BTreeSet<WorkloadId>,
    later: BTreeSet<(Instant, WorkloadId)>,
    /// When each Pod of `later` is due.
    due: HashMap<WorkloadId, Instant>,
}

impl Queue {
    /// Adds a Pod for now.
    pub(super) fn push(&mut self, id: WorkloadId, urgent: bool) {
        if urgent {
            self.urgent.insert(id)
        } else {
            self.others.insert(id)
        };
    }

    /// Adds a Pod for later, in place of an earlier entry for later.
    pub(super) fn push_later(&mut self, id: WorkloadId, at: Instant) {
        if let Some(before) = self.due.insert(id.clone(), at) {
            self.later.remove(&(before, id.clone()));
        }
        self.later.insert((at, id));
    }

    /// Returns the next Pod that is due, urgent ones first.
    pub(super) fn pop(&mut self, now: Instant, urgent: impl Fn(&WorkloadId) -> bool) -> Option<WorkloadId> {
        while self.later.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, id)) = self.later.pop_first()
        {
            self.due.remove(&id);
            let urgent = urgent(&id);
            self.push(id, urgent);
        }
        self.urgent.pop_first().or_else(|| self.others.pop_first())
    }

    /// Returns when the next Pod of those for later is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.later.first().map(|(at, _)| *at)
    }

    /// Removes a Pod.
    pub(super) fn remove(&mut self, id: &WorkloadId) {
        self.urgent.remove(id);
        self.others.remove(id);
        if let Some(at) = self.due.remove(id) {
            self.later.remove(&(at, id.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_pod_is_due_once_and_urgent_ones_first() {
        let id = |name: &str| WorkloadId::new(name).unwrap();
        let (mut queue, now) = (Queue::default(), Instant::now());
        let second = |n| now + Duration::from_secs(n);
        queue.push(id("a"), false);
        queue.push(id("a"), false);
        queue.push_later(id("b"), second(9));
        queue.push_later(id("b"), second(1));
        queue.push_later(id("c"), second(2));
        queue.remove(&id("c"));
        assert_eq!(queue.next_due(), Some(second(1)));
        let mut pop = |at| queue.pop(at, |id| id.as_str() == "b");
        assert_eq!(pop(second(1)), Some(id("b")), "it is urgent");
        assert_eq!([pop(second(9)), pop(second(9))], [Some(id("a")), None]);
        assert_eq!(queue.next_due(), None);
    }
}
