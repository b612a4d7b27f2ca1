//! A queue of keys to look at again, with the guarantees of client-go's workqueue: a key waits at most once however
//! often it is added, it is never handed out twice at the same time, and one that is added while it is being worked on
//! comes back afterwards.
//!
//! And it is fair: keys belong to groups (tenants' namespaces), the groups take turns, and none may have more than its
//! share under way. A tenant with ten thousand keys makes another one's single key wait for one turn, not for all of them.

use outrigger_core::fault;
use outrigger_core::map::{HashMap, HashSet};
use std::collections::{BTreeSet, VecDeque};
use std::fmt::Display;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use outrigger_runtime::environment::Environment;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A key of a [`Queue`]. Logs show it as its [`Display`].
pub(crate) trait Key: Clone + Eq + Hash + Ord + Display + Send + Sync + 'static {
    /// The group that the key belongs to; by default it has one of its own.
    fn group(&self) -> Group {
        self.to_string().into()
    }
}

/// A group of keys that share a turn.
pub(crate) type Group = Arc<str>;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// To be handed out now.
    pub ready: usize,
    /// For their time.
    pub delayed: usize,
    /// Nothing: they are being worked on.
    pub busy: usize,
}

/// A queue for many producers and one consumer.
#[derive(Debug)]
pub(crate) struct Queue<K: Key> {
    data: Mutex<QueueData<K>>,
    /// Wakes the consumer. One permit is enough: there is one consumer, and it looks at everything when it wakes.
    wake: Notify,
    environment: Environment,
    backoff: ExponentialBuilder,
    max: Duration,
}

#[derive(Debug)]
struct QueueData<K: Key> {
    ready: HashMap<Group, VecDeque<K>>,
    /// Groups that have a key in `ready`, in the order of their turns.
    turns: VecDeque<Group>,
    /// How many keys of each group are in `busy`.
    busy_of: HashMap<Group, usize>,
    /// The most keys of one group in `busy`.
    share: usize,
    /// Keys in `ready`, and keys in `busy` that have to come back.
    dirty: HashSet<K>,
    busy: HashSet<K>,
    timers: BTreeSet<(Instant, K)>,
    due: HashMap<K, Instant>,
    failures: HashMap<K, ExponentialBackoff>,
}

impl<K: Key> Queue<K> {
    /// An empty queue. `min` and `max` bound the pause after the first and after many failures of one key. Pauses are random
    /// within a factor of two, so that keys which failed together don't come back together, and none is longer than `max`.
    pub(crate) fn new(environment: &Environment, min: Duration, max: Duration) -> Self {
        Self {
            data: Mutex::new(QueueData {
                ready: HashMap::default(),
                turns: VecDeque::new(),
                busy_of: HashMap::default(),
                share: usize::MAX,
                dirty: HashSet::default(),
                busy: HashSet::default(),
                timers: BTreeSet::new(),
                due: HashMap::default(),
                failures: HashMap::default(),
            }),
            wake: Notify::new(),
            environment: environment.clone(),
            max,
            backoff: ExponentialBuilder::default()
                .with_min_delay(min)
                // Jitter adds up to as much again.
                .with_max_delay(max / 2)
                .with_factor(2.0)
                .with_jitter()
                .without_max_times(),
        }
    }

    /// At most so many keys of one group are handed out at the same time, 1 at least.
    #[must_use]
    pub(crate) fn share(self, share: usize) -> Self {
        self.data.lock().share = share.max(1);
        self
    }

    /// Adds keys, to be handed out as soon as possible.
    pub(crate) fn add(&self, keys: impl IntoIterator<Item = K>) {
        let mut any = false;
        {
            let mut data = self.data.lock();
            for key in keys {
                any |= data.add(key);
            }
        }
        if any {
            self.wake.notify_one();
        }
    }

    /// Adds a key, to be handed out after `delay` at the earliest. An earlier time that it is waiting for stays.
    pub(crate) fn add_after(&self, key: K, delay: Duration) {
        let at = self.environment.clock.now() + delay;
        {
            let mut data = self.data.lock();
            match data.due.get(&key).copied() {
                Some(before) if before <= at => return,
                Some(before) => {
                    data.timers.remove(&(before, key.clone()));
                }
                None => {}
            }
            data.due.insert(key.clone(), at);
            data.timers.insert((at, key));
        }
        self.wake.notify_one();
    }

    /// Adds a key that could not be dealt with, after a pause that grows with each failure in a row.
    pub(crate) fn retry(&self, key: K) {
        let pause = {
            let mut data = self.data.lock();
            // Each key has its own jitter.
            let begin = || self.backoff.with_jitter_seed(self.environment.random.seed()).build();
            let backoff = data.failures.entry(key.clone()).or_insert_with(begin);
            backoff.next().unwrap_or(self.max).min(self.max)
        };
        self.add_after(key, pause);
    }

    /// Says that a key was dealt with: its next failure counts as the first again.
    pub(crate) fn forget(&self, key: &K) {
        self.data.lock().failures.remove(key);
    }

    /// Says that the work on a key that [`Self::next`] handed out is over.
    pub(crate) fn done(&self, key: &K) {
        let any = {
            let mut data = self.data.lock();
            if data.busy.remove(key) {
                data.give_back(&key.group());
            }
            if data.dirty.contains(key) {
                if fault("key-that-is-busy-is-lost") {
                    data.dirty.remove(key);
                } else {
                    data.line_up(key.clone());
                }
            }
            // Also one that only waited for its group's share.
            !data.turns.is_empty()
        };
        if any {
            self.wake.notify_one();
        }
    }

    /// The next key; waits for one. To be called from one task only. Dropping the future loses nothing.
    pub(crate) async fn next(&self) -> K {
        loop {
            let timer = {
                let mut data = self.data.lock();
                data.expire(self.environment.clock.now());
                if let Some(key) = data.take() {
                    return key;
                }
                data.timers.first().map(|(at, _)| *at)
            };
            match timer {
                Some(at) => {
                    let _ = tokio::time::timeout_at(at, self.wake.notified()).await;
                }
                None => self.wake.notified().await,
            }
        }
    }

    /// How many keys wait for what.
    pub(crate) fn counts(&self) -> Counts {
        let data = self.data.lock();
        let ready = data.ready.values().map(VecDeque::len).sum();
        Counts { ready, delayed: data.timers.len(), busy: data.busy.len() }
    }
}

impl<K: Key> QueueData<K> {
    fn add(&mut self, key: K) -> bool {
        if !self.dirty.insert(key.clone()) || self.busy.contains(&key) {
            return false;
        }
        self.line_up(key);
        true
    }

    fn line_up(&mut self, key: K) {
        let group = key.group();
        let line = self.ready.entry(group.clone()).or_default();
        line.push_back(key);
        if line.len() == 1 {
            self.turns.push_back(group);
        }
    }

    /// The first key of the first group that has not its full share under way.
    fn take(&mut self) -> Option<K> {
        let under_way = |group: &Group| self.busy_of.get(group).copied().unwrap_or_default();
        let turn = self.turns.iter().position(|group| under_way(group) < self.share)?;
        let group = self.turns.remove(turn)?;
        let line = self.ready.get_mut(&group)?;
        let key = line.pop_front()?;
        if line.is_empty() {
            self.ready.remove(&group);
        } else {
            self.turns.push_back(group.clone());
        }
        *self.busy_of.entry(group).or_default() += 1;
        self.dirty.remove(&key);
        self.busy.insert(key.clone());
        Some(key)
    }

    fn give_back(&mut self, group: &Group) {
        if let Some(count) = self.busy_of.get_mut(group) {
            *count -= 1;
            if *count == 0 {
                self.busy_of.remove(group);
            }
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some((at, _)) = self.timers.first() {
            if *at > now {
                break;
            }
            if let Some((_, key)) = self.timers.pop_first() {
                self.due.remove(&key);
                self.add(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The group is the first letter.
    impl Key for &'static str {
        fn group(&self) -> Group {
            self[..1].into()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn groups_take_turns_and_none_takes_more_than_its_share() {
        let q = queue().share(2);
        q.add(["a1", "a2", "a3", "a4", "b1", "b2", "c1"]);
        let mut order = Vec::new();
        for _ in 0..5 {
            order.push(q.next().await);
        }
        assert_eq!(order, ["a1", "b1", "c1", "a2", "b2"]);
        assert!(
            tokio::time::timeout(Duration::from_secs(60), q.next()).await.is_err(),
            "two of a are under way"
        );
        q.done(&"c1");
        assert!(tokio::time::timeout(Duration::from_secs(60), q.next()).await.is_err());
        q.done(&"a1");
        assert_eq!(q.next().await, "a3");
        q.add(["c1"]);
        assert_eq!(q.next().await, "c1");
        assert_eq!(q.counts().ready, 1);
    }

    fn queue() -> Queue<&'static str> {
        Queue::new(&Environment::system(), Duration::from_millis(100), Duration::from_secs(10))
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_once_and_is_worked_on_once() {
        let q = queue();
        q.add(["a", "b", "a"]);
        assert_eq!(q.next().await, "a");
        q.add(["a"]);
        assert_eq!(q.next().await, "b");
        assert!(tokio::time::timeout(Duration::from_secs(60), q.next()).await.is_err(), "a is busy");
        assert_eq!(q.counts(), Counts { ready: 0, delayed: 0, busy: 2 });
        q.done(&"a");
        assert_eq!(q.next().await, "a");
        q.done(&"a");
        assert_eq!(q.counts().ready, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_time_counts() {
        let q = queue();
        let start = Instant::now();
        q.add_after("a", Duration::from_secs(9));
        q.add_after("a", Duration::from_secs(3));
        q.add_after("a", Duration::from_secs(5));
        assert_eq!(q.next().await, "a");
        assert_eq!(start.elapsed().as_secs(), 3);
        q.done(&"a");
        assert!(tokio::time::timeout(Duration::from_secs(60), q.next()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn no_pause_is_longer_than_the_longest() {
        let q = queue();
        for _ in 0..100 {
            let start = Instant::now();
            q.retry("a");
            q.next().await;
            q.done(&"a");
            assert!(start.elapsed() < Duration::from_millis(10_010), "{:?}", start.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_are_forgotten() {
        let q = queue();
        let mut pauses = Vec::new();
        for _ in 0..4 {
            let start = Instant::now();
            q.retry("a");
            assert_eq!(q.next().await, "a");
            q.done(&"a");
            pauses.push(start.elapsed());
        }
        assert!(pauses[3] > pauses[0] * 2, "{pauses:?}");
        q.forget(&"a");
        let start = Instant::now();
        q.retry("a");
        q.next().await;
        assert!(start.elapsed() < pauses[3]);
    }
}
