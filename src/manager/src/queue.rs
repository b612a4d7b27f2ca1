//! A queue of keys to look at again, with the guarantees of client-go's workqueue: a key waits at most once however
//! often it is added, it is never handed out twice at the same time, and one that is added while it is being worked on
//! comes back afterwards.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A queue for many producers and one consumer.
#[derive(Debug)]
pub struct Queue<K> {
    inner: Mutex<Inner<K>>,
    /// Wakes the consumer. One permit is enough: there is one consumer, and it looks at everything when it wakes.
    wake: Notify,
    backoff: ExponentialBuilder,
}

#[derive(Debug)]
struct Inner<K> {
    ready: VecDeque<K>,
    /// Keys in `ready`, and keys in `busy` that have to come back.
    dirty: HashSet<K>,
    busy: HashSet<K>,
    timers: BTreeSet<(Instant, K)>,
    due: HashMap<K, Instant>,
    failures: HashMap<K, ExponentialBackoff>,
}

impl<K: Clone + Eq + Hash + Ord> Queue<K> {
    /// An empty queue. `min` and `max` bound the pause after the first and after many failures of one key; jitter is
    /// added, so that keys which failed together don't come back together.
    pub fn new(min: Duration, max: Duration) -> Self {
        Self {
            inner: Mutex::new(Inner {
                ready: VecDeque::new(),
                dirty: HashSet::new(),
                busy: HashSet::new(),
                timers: BTreeSet::new(),
                due: HashMap::new(),
                failures: HashMap::new(),
            }),
            wake: Notify::new(),
            backoff: ExponentialBuilder::default()
                .with_min_delay(min)
                .with_max_delay(max)
                .with_factor(2.0)
                .with_jitter()
                .without_max_times(),
        }
    }

    /// Adds keys, to be handed out as soon as possible.
    pub fn add(&self, keys: impl IntoIterator<Item = K>) {
        let mut any = false;
        {
            let mut inner = self.inner.lock();
            for key in keys {
                any |= inner.add(key);
            }
        }
        if any {
            self.wake.notify_one();
        }
    }

    /// Adds a key, to be handed out after `delay` at the earliest. An earlier time that it is waiting for stays.
    pub fn add_after(&self, key: K, delay: Duration) {
        let at = Instant::now() + delay;
        {
            let mut inner = self.inner.lock();
            match inner.due.get(&key).copied() {
                Some(before) if before <= at => return,
                Some(before) => {
                    inner.timers.remove(&(before, key.clone()));
                }
                None => {}
            }
            inner.due.insert(key.clone(), at);
            inner.timers.insert((at, key));
        }
        self.wake.notify_one();
    }

    /// Adds a key that could not be dealt with, after a pause that grows with each failure in a row.
    pub fn retry(&self, key: K) {
        let pause = {
            let mut inner = self.inner.lock();
            let backoff = inner.failures.entry(key.clone()).or_insert_with(|| self.backoff.build());
            backoff.next().unwrap_or(Duration::from_secs(60))
        };
        self.add_after(key, pause);
    }

    /// Says that a key was dealt with: its next failure counts as the first again.
    pub fn forget(&self, key: &K) {
        self.inner.lock().failures.remove(key);
    }

    /// Says that the work on a key that [`Self::next`] handed out is over.
    pub fn done(&self, key: &K) {
        let again = {
            let mut inner = self.inner.lock();
            inner.busy.remove(key);
            let again = inner.dirty.contains(key);
            if again {
                inner.ready.push_back(key.clone());
            }
            again
        };
        if again {
            self.wake.notify_one();
        }
    }

    /// The next key; waits for one. To be called from one task only. Dropping the future loses nothing.
    pub async fn next(&self) -> K {
        loop {
            let timer = {
                let mut inner = self.inner.lock();
                inner.expire(Instant::now());
                if let Some(key) = inner.ready.pop_front() {
                    inner.dirty.remove(&key);
                    inner.busy.insert(key.clone());
                    return key;
                }
                inner.timers.first().map(|(at, _)| *at)
            };
            match timer {
                Some(at) => {
                    let _ = tokio::time::timeout_at(at, self.wake.notified()).await;
                }
                None => self.wake.notified().await,
            }
        }
    }

    /// Keys that wait to be handed out now.
    pub fn len(&self) -> usize {
        self.inner.lock().ready.len()
    }

    /// Whether no key waits to be handed out now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: Clone + Eq + Hash + Ord> Inner<K> {
    fn add(&mut self, key: K) -> bool {
        if !self.dirty.insert(key.clone()) || self.busy.contains(&key) {
            return false;
        }
        self.ready.push_back(key);
        true
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

    fn queue() -> Queue<&'static str> {
        Queue::new(Duration::from_millis(100), Duration::from_secs(10))
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_once_and_is_worked_on_once() {
        let q = queue();
        q.add(["a", "b", "a"]);
        assert_eq!(q.next().await, "a");
        q.add(["a"]);
        assert_eq!(q.next().await, "b");
        assert!(tokio::time::timeout(Duration::from_secs(60), q.next()).await.is_err(), "a is busy");
        q.done(&"a");
        assert_eq!(q.next().await, "a");
        q.done(&"a");
        assert!(q.is_empty());
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
