//! The controller of Machines and MachineNodePools.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;
use outrigger_api::conditions::{self, Status};
use outrigger_core::machine::usage::Ledger;
use outrigger_core::reason::Cause;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::context::Context;
use crate::queue::{self, Queue};
use crate::worker::{Action, Controller};

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Key {
    Machine(Arc<str>),
    Pool(Arc<str>),
    /// A group whose marks Nodes have, and that may have no pool.
    Left(Arc<str>),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine(name) => write!(f, "machine/{name}"),
            Self::Pool(name) => write!(f, "pool/{name}"),
            Self::Left(group) => write!(f, "left/{group}"),
        }
    }
}

impl queue::Key for Key {}

/// What is remembered of a Machine.
#[derive(Debug, Default)]
pub(super) struct Ledgers {
    /// Of which one of that name.
    uid: String,
    /// Of which group, for its slots are on that one's nodes.
    group: String,
    /// By the type's name.
    pub(super) types: BTreeMap<String, Ledger>,
}

impl Ledgers {
    /// Forgets what is of another Machine of that name, or of another group of it.
    pub(super) fn reset_unless(&mut self, uid: &str, group: &str) {
        if self.uid != uid || self.group != group {
            *self = Self { uid: uid.to_owned(), group: group.to_owned(), types: BTreeMap::new() };
        }
    }
}

pub(crate) struct Machines {
    pub(super) context: Arc<Context>,
    /// What is remembered of each Machine, by its name.
    pub(super) ledgers: Mutex<BTreeMap<String, Ledgers>>,
    /// The moment that ledgers count from.
    pub(super) began: Instant,
}

impl Machines {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        let began = context.environment.clock.now();
        Self { context: context.clone(), ledgers: Mutex::default(), began }
    }

    /// Writes an Event for a failure that the conditions of before don't report.
    pub(super) async fn report(&self, about: &ObjectReference, old: &[Condition], new: &Condition) {
        let known =
            |c: &Condition| c.type_ == new.type_ && c.status == new.status && c.message == new.message;
        if new.status == "False" && !old.iter().any(known) {
            self.context.telemetry.events.machine(about, Cause::Failure, &new.message).await;
        }
    }

    /// The conditions that an object should have, and among them Ready in Imperator's words, with the problems that there are.
    pub(super) fn conditions<K: Resource>(
        &self,
        object: &K,
        before: &[Condition],
        problems: &[String],
    ) -> (Condition, Vec<Condition>) {
        let generation = object.meta().generation.unwrap_or_default();
        let (status, reason, message) = if problems.is_empty() {
            (Status::True, "Success", "update status conditions".to_owned())
        } else {
            (Status::False, "Failure", problems.join("; "))
        };
        let now = self.context.environment.clock.wall();
        let ready = conditions::condition("Ready", status, reason, &message, generation, now);
        let others = before.iter().filter(|c| c.type_ != ready.type_).cloned();
        let all = others.chain([ready.clone()]).collect();
        (ready, conditions::merge(before, all))
    }
}

impl Controller for Machines {
    type Key = Key;

    const NAME: &'static str = "machines";
    const QUEUE: fn(&Context) -> &Queue<Key> = |context| &context.queues.machines;

    fn at_once(&self) -> usize {
        8
    }

    fn gained(&self) {
        // Another replica may have written the status since.
        self.ledgers.lock().clear();
        self.context.queues.machines.add(self.context.caches.machines.all());
    }

    async fn step(&self, key: &Key) -> Result<Action, kube::Error> {
        match key {
            Key::Machine(name) => self.machine(name).await,
            Key::Pool(name) => self.pool(name).await,
            Key::Left(group) => self.left(group).await,
        }
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
    fn another_machine_and_another_group_begin_again() {
        let mut ledgers = Ledgers::default();
        for (uid, group, left) in
            [("u", "g", false), ("u", "g", true), ("u", "h", false), ("v", "h", false), ("v", "h", true)]
        {
            ledgers.reset_unless(uid, group);
            assert_eq!(ledgers.types.contains_key("t"), left, "{uid} {group}");
            ledgers.types.insert("t".to_owned(), Ledger::new(4));
        }
    }
}
