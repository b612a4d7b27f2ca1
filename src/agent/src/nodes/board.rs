//! The tenant's Nodes, with what the manager reported of each, and which of them have to be written.
//!
//! All limits of rates are kept here. Level-based: however often a DPU changes, the next write of its Node holds the last state.

use outrigger_core::map::HashMap;
use outrigger_proto::companion::HostStatus;
use outrigger_runtime::bucket::{Bucket, Rate};
use outrigger_runtime::cache::Change;
use outrigger_runtime::environment::Clock;
use outrigger_runtime::node::Node;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelValue;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::decide::{self, Marks, decide};
use super::received::{HostListener, ReceivedHosts};
use crate::metrics::WriteOutcome;
use crate::paced::{self, Forbidden, Pace, Queue, Wait};

/// Writes of all Nodes.
const WRITES: Rate = Rate { burst: 100.0, minute: 1500.0 };
/// Writes of one Node, as of one Pod: of a DPU that comes and goes the first changes are written at once, then one every ten seconds.
const NODE_WRITES: Rate = Rate { burst: 5.0, minute: 6.0 };

/// What of a Node is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Part {
    Condition,
    Taint,
}

/// A write of a Node.
#[derive(Debug)]
pub(super) struct Write {
    pub name: String,
    pub uid: String,
    /// What the Node has, from which the change was computed.
    pub has: Marks,
    pub change: decide::Change,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Hosts {
    clock: Clock,
    /// The tenant wants the taint.
    taints: bool,
    state: Mutex<State>,
    /// Wakes a writer.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    nodes: HashMap<String, Known>,
    received: ReceivedHosts,
    queue: Queue<String>,
    writes: Bucket,
    /// When each part may be tried again.
    forbidden: [Option<Forbidden>; 2],
}

/// A Node.
#[derive(Debug)]
struct Known {
    uid: String,
    has: Marks,
    deleted: bool,
    pace: Pace,
}

impl Hosts {
    pub(crate) fn new(clock: Clock, taints: bool) -> Self {
        let now = clock.now();
        let state = State {
            nodes: HashMap::default(),
            received: ReceivedHosts::new(now),
            queue: Queue::default(),
            writes: Bucket::new(now),
            forbidden: [None; 2],
        };
        Self { clock, taints, state: Mutex::new(state), changed: Notify::new() }
    }

    /// Waits for the next write.
    pub(super) async fn next(&self) -> Write {
        paced::next(&self.changed, || self.take()).await
    }

    /// Returns the next write, or when there may be one.
    fn take(&self) -> Result<Write, Option<Instant>> {
        let now = self.clock.now();
        let examine = |state: &mut State, name: &String| state.examine(name, self.taints, now);
        paced::take(&mut *self.state.lock(), |state| &mut state.queue, now, examine)
    }

    /// Records what came of a write.
    pub(super) fn done(&self, name: &str, outcomes: &[(Part, WriteOutcome)], jitter: f64) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        for (part, outcome) in outcomes {
            let forbidden = &mut state.forbidden[*part as usize];
            match outcome {
                WriteOutcome::Ok => *forbidden = None,
                WriteOutcome::Forbidden => *forbidden = Some(Forbidden::again(*forbidden, now)),
                WriteOutcome::Failed | WriteOutcome::Refused => {}
            }
        }
        let Some(known) = state.nodes.get_mut(name) else { return };
        let worst = [WriteOutcome::Refused, WriteOutcome::Failed]
            .into_iter()
            .find(|wanted| outcomes.iter().any(|(_, outcome)| outcome == wanted));
        known.pace.done(worst.unwrap_or(WriteOutcome::Ok), now, jitter);
        // It may have changed meanwhile.
        state.queue.push(name.to_owned(), false);
        drop(state);
        self.changed.notify_one();
    }
}

impl HostListener for Hosts {
    fn node(&self, change: &Change<Node>) {
        let mut state = self.state.lock();
        match change {
            Change::Gone { name, .. } => {
                state.queue.remove(name);
                state.nodes.remove(name);
            }
            Change::Applied(node) => {
                let has = Marks::of(node);
                let deleted = node.metadata.deletion_timestamp.is_some();
                let name = node.metadata.name.as_deref().unwrap_or_default();
                let uid = node.metadata.uid.as_deref().unwrap_or_default();
                match state.nodes.get_mut(name) {
                    Some(known) if known.uid == uid => {
                        if known.has == has && known.deleted == deleted {
                            return;
                        }
                        (known.has, known.deleted) = (has, deleted);
                    }
                    _ => _ = state.nodes.insert(name.to_owned(), Known::new(uid.to_owned(), has, deleted)),
                }
                state.queue.push(name.to_owned(), false);
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    fn opened(&self) {
        self.state.lock().received.opened(self.clock.now());
    }

    fn received(&self, host: &HostStatus) {
        let mut state = self.state.lock();
        if !state.received.host(host) {
            return;
        }
        if state.nodes.contains_key(&host.node_name) {
            state.queue.push(host.node_name.clone(), false);
        }
        drop(state);
        self.changed.notify_one();
    }

    fn complete(&self) {
        let mut state = self.state.lock();
        state.received.complete(self.clock.now());
        state.push_all();
        drop(state);
        self.changed.notify_one();
    }

    fn down(&self) {
        self.state.lock().received.down(self.clock.now());
    }
}

impl State {
    fn push_all(&mut self) {
        for name in self.nodes.keys() {
            self.queue.push(name.clone(), false);
        }
    }

    /// Compares a Node with what it should have.
    fn examine(&mut self, name: &str, taints: bool, now: Instant) -> Result<Write, Wait> {
        let (knowledge, due) = self.received.knowledge(name, now);
        let known = self.nodes.get_mut(name).ok_or(Wait::Change)?;
        // A write in progress examines the Node once more.
        if known.pace.is_busy() || known.deleted {
            return Err(Wait::Change);
        }
        let mut change = decide(knowledge, &known.has, taints);
        let mut later = due;
        let [condition, taint] = self.forbidden.map(|forbidden| forbidden?.paused(now));
        if let Some(until) = condition.filter(|_| change.condition.take().is_some()) {
            later = Some(later.map_or(until, |later| later.min(until)));
        }
        if let Some(until) = taint.filter(|_| change.taint.take().is_some()) {
            later = Some(later.map_or(until, |later| later.min(until)));
        }
        if change.is_empty() {
            return Err(Wait::until(later));
        }
        known.pace.begin(Some(NODE_WRITES), (&mut self.writes, WRITES), 1.0, now)?;
        let (name, uid, has) = (name.to_owned(), known.uid.clone(), known.has.clone());
        Ok(Write { name, uid, has, change })
    }
}

impl Known {
    fn new(uid: String, has: Marks, deleted: bool) -> Self {
        Self { uid, has, deleted, pace: Pace::default() }
    }
}

#[cfg(test)]
mod tests;
