//! The Pods or Nodes that have to be examined, now or later.
//!
//! Each is in it at most once for now and once for later, so however often something changes, memory doesn't grow.

use std::collections::BTreeSet;
use std::hash::Hash;
use std::time::Duration;

use outrigger_core::map::HashMap;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Longest pause after a write has failed.
const MAX_PAUSE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Queue<K> {
    /// Those that wait for it: Pods whose readiness depends on it.
    urgent: BTreeSet<K>,
    others: BTreeSet<K>,
    later: BTreeSet<(Instant, K)>,
    /// When each of `later` is due.
    due: HashMap<K, Instant>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self {
            urgent: BTreeSet::new(),
            others: BTreeSet::new(),
            later: BTreeSet::new(),
            due: HashMap::default(),
        }
    }
}

impl<K: Ord + Hash + Clone> Queue<K> {
    /// Adds one for now.
    pub(crate) fn push(&mut self, id: K, urgent: bool) {
        if urgent {
            self.urgent.insert(id)
        } else {
            self.others.insert(id)
        };
    }

    /// Adds one for later, in place of an earlier entry for later.
    pub(crate) fn push_later(&mut self, id: K, at: Instant) {
        if let Some(before) = self.due.insert(id.clone(), at) {
            self.later.remove(&(before, id.clone()));
        }
        self.later.insert((at, id));
    }

    /// Returns the next one that is due, urgent ones first.
    pub(crate) fn pop(&mut self, now: Instant, urgent: impl Fn(&K) -> bool) -> Option<K> {
        while self.later.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, id)) = self.later.pop_first()
        {
            self.due.remove(&id);
            let urgent = urgent(&id);
            self.push(id, urgent);
        }
        self.urgent.pop_first().or_else(|| self.others.pop_first())
    }

    /// Returns when the next one of those for later is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.later.first().map(|(at, _)| *at)
    }

    /// Removes one.
    pub(crate) fn remove(&mut self, id: &K) {
        self.urgent.remove(id);
        self.others.remove(id);
        if let Some(at) = self.due.remove(id) {
            self.later.remove(&(at, id.clone()));
        }
    }
}

/// Waits until `take` returns something to do. Otherwise it returns when there may be something; `changed` wakes those who wait.
pub(crate) async fn next<T>(changed: &Notify, take: impl Fn() -> Result<T, Option<Instant>>) -> T {
    loop {
        let woken = changed.notified();
        let wake = match take() {
            Ok(next) => {
                // Another writer may have something to do too.
                changed.notify_one();
                return next;
            }
            Err(wake) => wake,
        };
        let Some(at) = wake else {
            woken.await;
            continue;
        };
        tokio::select! {
            biased;
            () = woken => {}
            () = sleep_until(at) => {}
        }
    }
}

/// The pause after a write has failed, after so many failures in a row before. `jitter` is from 0 to 1.
pub(crate) fn pause(failures: u32, jitter: f64) -> Duration {
    Duration::from_secs(1 << failures.min(6)).min(MAX_PAUSE).mul_f64(0.5 + jitter / 2.0)
}

#[cfg(test)]
mod tests {
    use outrigger_core::ids::WorkloadId;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_is_due_once_and_urgent_ones_first() {
        let id = |name: &str| WorkloadId::new(name).unwrap();
        let (mut queue, now) = (Queue::<WorkloadId>::default(), Instant::now());
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
