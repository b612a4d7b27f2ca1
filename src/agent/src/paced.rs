//! Objects that are written at a pace: which of them have to be examined, now or later, and when each may be written.
//!
//! Each is in the queue at most once for now and once for later, so however often something changes, memory doesn't grow.

use std::collections::BTreeSet;
use std::hash::Hash;
use std::time::Duration;

use outrigger_core::map::HashMap;
use outrigger_runtime::bucket::{Bucket, Rate};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::metrics::WriteOutcome;
use crate::waits::until;

/// Longest pause after a write has failed.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Pause after the API server has refused a write of an object, and the longest after it has forbidden a kind of write. Only an
/// administrator can change that.
pub(crate) const FORBIDDEN: Duration = Duration::from_secs(300);
/// First pause after it has forbidden a kind of write: one that has just started does so until it has read the roles.
const FORBIDDEN_FIRST: Duration = Duration::from_secs(5);

/// A kind of write that the API server has forbidden, and when it is tried again. Each time in a row it waits twice as long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Forbidden {
    until: Instant,
    pause: Duration,
}

impl Forbidden {
    /// It is forbidden after what it was before. Of several writes in progress one counts.
    pub(crate) fn again(before: Option<Self>, now: Instant) -> Self {
        match before {
            Some(before) if before.until > now => before,
            before => {
                let pause = before.map_or(FORBIDDEN_FIRST, |before| (2 * before.pause).min(FORBIDDEN));
                Self { until: now + pause, pause }
            }
        }
    }

    /// Until when nothing is written; `None` if it may be tried.
    pub(crate) fn paused(self, now: Instant) -> Option<Instant> {
        Some(self.until).filter(|until| *until > now)
    }
}

/// Until when an object isn't written.
pub(crate) enum Wait {
    /// Until something changes.
    Change,
    /// It is examined again then.
    Until(Instant),
    /// No object is written before that.
    Full(Instant),
}

impl Wait {
    /// Until something changes, or until then.
    pub(crate) fn until(time: Option<Instant>) -> Self {
        time.map_or(Self::Change, Self::Until)
    }
}

/// When an object may be written.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// It is being written.
    busy: bool,
    /// Failed writes in a row.
    failures: u32,
    /// No write before that.
    pause: Option<Instant>,
    writes: Option<Bucket>,
}

impl Pace {
    /// It is being written. The end of the write has it examined once more.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Begins a write of so many requests, no more often than at the rate of this object, if it has one, and no more of all objects
    /// than at theirs.
    ///
    /// # Errors
    /// How long it has to wait.
    pub(crate) fn begin(
        &mut self,
        own: Option<Rate>,
        (all, rate): (&mut Bucket, Rate),
        requests: f64,
        now: Instant,
    ) -> Result<(), Wait> {
        if let Some(pause) = self.pause.filter(|pause| *pause > now) {
            return Err(Wait::Until(pause));
        }
        let own = own.map(|rate| (self.writes.get_or_insert_with(|| Bucket::new(now)), rate));
        if let Some(at) = own.as_ref().map(|(writes, rate)| writes.next(*rate, now)).filter(|at| *at > now) {
            return Err(Wait::Until(at));
        }
        let at = all.next(rate, now);
        if at > now {
            return Err(Wait::Full(at));
        }
        if let Some((writes, rate)) = own {
            writes.spend(rate, 1.0, now);
        }
        all.spend(rate, requests, now);
        self.busy = true;
        Ok(())
    }

    /// A write has ended. `jitter` is from 0 to 1. What is forbidden concerns more than this object, so the caller records it.
    pub(crate) fn done(&mut self, outcome: WriteOutcome, now: Instant, jitter: f64) {
        self.busy = false;
        match outcome {
            WriteOutcome::Ok => self.renew(),
            WriteOutcome::Failed => {
                let pause = Duration::from_secs(1 << self.failures.min(6)).min(MAX_PAUSE);
                self.pause = Some(now + pause.mul_f64(0.5 + jitter / 2.0));
                self.failures = self.failures.saturating_add(1);
            }
            WriteOutcome::Refused => self.pause = Some(now + FORBIDDEN),
            WriteOutcome::Forbidden => {}
        }
    }

    /// No write before that.
    pub(crate) fn pause(&mut self, until: Instant) {
        self.pause = Some(until);
    }

    /// Earlier failures say nothing of the next write.
    pub(crate) fn renew(&mut self) {
        (self.failures, self.pause) = (0, None);
    }
}

#[derive(Debug)]
pub(crate) struct Queue<K> {
    /// Those that somebody waits for: Pods whose readiness depends on it.
    urgent: BTreeSet<K>,
    others: BTreeSet<K>,
    later: BTreeSet<(Instant, K)>,
    /// When each of `later` is due, and whether it is urgent then.
    due: HashMap<K, (Instant, bool)>,
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
    fn push_later(&mut self, id: K, at: Instant, urgent: bool) {
        if let Some((before, _)) = self.due.insert(id.clone(), (at, urgent)) {
            self.later.remove(&(before, id.clone()));
        }
        self.later.insert((at, id));
    }

    /// Returns the next one that is due, urgent ones first, and whether it is urgent.
    fn pop(&mut self, now: Instant) -> Option<(K, bool)> {
        while self.later.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, id)) = self.later.pop_first()
        {
            let urgent = self.due.remove(&id).is_some_and(|(_, urgent)| urgent);
            self.push(id, urgent);
        }
        let urgent = self.urgent.pop_first().map(|id| (id, true));
        urgent.or_else(|| Some((self.others.pop_first()?, false)))
    }

    /// Returns when the next one of those for later is due.
    fn next_due(&self) -> Option<Instant> {
        self.later.first().map(|(at, _)| *at)
    }

    /// Removes one.
    pub(crate) fn remove(&mut self, id: &K) {
        self.urgent.remove(id);
        self.others.remove(id);
        if let Some((at, _)) = self.due.remove(id) {
            self.later.remove(&(at, id.clone()));
        }
    }
}

/// Examines those that are due until one of them has to be written. Otherwise it returns when there may be something to write.
pub(crate) fn take<S, K: Ord + Hash + Clone, W>(
    state: &mut S,
    queue: impl Fn(&mut S) -> &mut Queue<K>,
    now: Instant,
    examine: impl Fn(&mut S, &K) -> Result<W, Wait>,
) -> Result<W, Option<Instant>> {
    while let Some((id, urgent)) = queue(state).pop(now) {
        match examine(state, &id) {
            Ok(write) => return Ok(write),
            Err(Wait::Change) => {}
            Err(Wait::Until(at)) => queue(state).push_later(id, at, urgent),
            Err(Wait::Full(at)) => {
                let queue = queue(state);
                queue.push(id, urgent);
                // One that others don't wait with may be due before that.
                return Err(Some(queue.next_due().map_or(at, |due| due.min(at))));
            }
        }
    }
    Err(queue(state).next_due())
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
        tokio::select! {
            biased;
            () = woken => {}
            () = until(wake) => {}
        }
    }
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
        queue.push_later(id("b"), second(9), true);
        queue.push_later(id("b"), second(1), true);
        queue.push_later(id("c"), second(2), false);
        queue.remove(&id("c"));
        assert_eq!(queue.next_due(), Some(second(1)));
        assert_eq!(queue.pop(second(1)), Some((id("b"), true)));
        assert_eq!([queue.pop(second(9)), queue.pop(second(9))], [Some((id("a"), false)), None]);
        assert_eq!(queue.next_due(), None);
    }
}
