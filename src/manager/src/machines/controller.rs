//! The controllers of Machines and MachineNodePools. One replica runs them, under the manager's Lease.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Client;
use outrigger_api::conditions::{self, Status};
use outrigger_core::machine::usage::Ledger;
use outrigger_runtime::lease::Leadership;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use super::Feeds;
use super::cache::MachineCache;
use super::objects::Settings;
use crate::events::Events;
use crate::queue::Queue;
use crate::worker;

/// Keys that are worked on at once.
const AT_ONCE: usize = 8;

/// What there is to look at.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A Machine, by its name.
    Machine(Arc<str>),
    /// A MachineNodePool, by its name.
    Pool(Arc<str>),
}

impl crate::queue::Key for Key {
    type Group = Self;

    fn group(&self) -> Self {
        self.clone()
    }
}

/// What is remembered of a Machine.
#[derive(Debug, Default)]
pub(super) struct Ledgers {
    /// Of which one of that name.
    uid: String,
    /// Of which group, for its slots are on that one's nodes.
    group: String,
    /// By the type's name.
    pub(super) types: HashMap<String, Ledger>,
}

impl Ledgers {
    /// Forgets what is of another Machine of that name, or of another group of it.
    pub(super) fn is_of(&mut self, uid: &str, group: &str) {
        if self.uid != uid || self.group != group {
            *self = Self { uid: uid.to_owned(), group: group.to_owned(), types: HashMap::new() };
        }
    }
}

/// Makes Machines and MachineNodePools what they should be.
#[derive(Clone)]
pub(super) struct Controller {
    /// The cluster.
    pub(super) client: Client,
    /// What is known.
    pub(super) cache: Arc<MachineCache>,
    /// Where answers go.
    pub(super) feeds: Feeds,
    /// What to look at.
    pub(super) queue: Arc<Queue<Key>>,
    /// Whether this replica is the one.
    pub(super) leadership: Leadership,
    /// Tells users.
    pub(super) events: Arc<Events>,
    /// What does not come from Machines.
    pub(super) settings: Arc<Settings>,
    /// What is remembered of each Machine, by its name.
    pub(super) ledgers: Arc<Mutex<HashMap<String, Ledgers>>>,
    /// The moment that ledgers count from.
    pub(super) began: Instant,
}

/// What became of a step: when to look again without a cause.
pub(super) type Stepped = Result<Option<Duration>, kube::Error>;

impl Controller {
    /// Works on the queue for ever, while this replica leads.
    pub(super) async fn run(self) {
        let (queue, leadership) = (self.queue.clone(), self.leadership.clone());
        let gained = || {
            // The status may have been written by another one since.
            self.ledgers.lock().clear();
            self.queue.add(self.cache.all());
        };
        let step = |key| {
            let this = self.clone();
            async move { this.step(&key).await }
        };
        worker::led(queue, AT_ONCE, leadership, gained, step).await;
    }

    async fn step(&self, key: &Key) {
        let result = match key {
            Key::Machine(name) => self.machine(name).await,
            Key::Pool(name) => self.pool(name).await,
        };
        match result {
            Ok(again) => {
                self.queue.forget(key);
                if let Some(pause) = again {
                    self.queue.add_after(key.clone(), pause);
                }
            }
            // Somebody else has written it since; the watch will show how.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                self.queue.retry(key.clone());
            }
            Err(error) => {
                warn!(?key, %error, "will be tried again");
                self.queue.retry(key.clone());
            }
        }
    }

    /// Tells of faults that weren't told before.
    pub(super) async fn tell(&self, about: &ObjectReference, old: &[Condition], new: &Condition) {
        let known =
            |c: &Condition| c.type_ == new.type_ && c.status == new.status && c.message == new.message;
        if new.status == "False" && !old.iter().any(known) {
            self.events.machine(about, "Failure", &new.message).await;
        }
    }
}

/// The condition Ready in Imperator's words, with the faults that there are.
pub(super) fn ready(faults: &[String], generation: Option<i64>) -> Condition {
    let generation = generation.unwrap_or_default();
    let now = jiff::Timestamp::now();
    if faults.is_empty() {
        conditions::condition("Ready", Status::True, "Success", "update status conditions", generation, now)
    } else {
        conditions::condition("Ready", Status::False, "Failure", &faults.join("; "), generation, now)
    }
}

/// Whether the API server has said no, and will as long as nothing changes.
pub(super) fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && ![409, 429].contains(&status.code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_machine_and_another_group_begin_anew() {
        let mut ledgers = Ledgers::default();
        for (uid, group, left) in
            [("u", "g", false), ("u", "g", true), ("u", "h", false), ("v", "h", false), ("v", "h", true)]
        {
            ledgers.is_of(uid, group);
            assert_eq!(ledgers.types.contains_key("t"), left, "{uid} {group}");
            ledgers.types.insert("t".to_owned(), Ledger::new(4));
        }
    }
}
