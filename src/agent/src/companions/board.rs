//! The Pods that the agent watches, with what the manager reported of each, and which of them have to be written.
//!
//! Only Pods of the agent's own watches are in it, and all limits of rates are kept here: what the manager reports of others is
//! dropped. Level-based: however often a companion changes, the next write of its Pod holds the last state.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outrigger_core::ids::WorkloadId;
use outrigger_core::map::{HashMap, remove_from};
use outrigger_core::reason::Cause;
use outrigger_core::rule::Rule;
use outrigger_runtime::bucket::{Bucket, Rate};
use outrigger_runtime::environment::Clock;
use outrigger_runtime::pod::Pod;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

pub(crate) use self::bind::{Bind, Verdict};
use self::known::Known;
use self::start::Starts;
pub(crate) use self::start::{ClaimName, Start};
use super::decide::decide;
use super::received::Companions;
use crate::conditions::Condition;
use crate::metrics::{Metrics, WriteOutcome};
use crate::paced::{self, Forbidden, Queue, Wait};

mod bind;
mod known;
mod start;

/// Writes of all Pods, but for those that open gates.
const WRITES: Rate = Rate { burst: 50.0, minute: 1500.0 };
/// Writes that open gates of all Pods. Pods are created no faster than that, and wait for it.
const OPENINGS: Rate = Rate { burst: 200.0, minute: 6000.0 };
/// Pause of a gate that has to be closed while there are no more writes: many of them must not be examined for each write.
const CLOSING: Duration = Duration::from_secs(1);
/// Writes of one Pod.
const POD_WRITES: Rate = Rate { burst: 5.0, minute: 6.0 };
/// Events of all Pods. The conditions say the same, so what exceeds it is dropped.
const EVENTS: Rate = Rate { burst: 100.0, minute: 120.0 };
/// Events of one Pod.
const POD_EVENTS: Rate = Rate { burst: 3.0, minute: 1.0 };
/// Time for which a stream has to be complete, and a Pod's present state sent, before silence about the Pod means that no rule matches
/// it. The manager receives a Pod a moment after it is sent, and a manager that has just started doesn't know any.
const SILENCE: Duration = Duration::from_secs(10);

/// The state of the stream from the manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    /// It is not open, since then.
    Down(Instant),
    /// It is open.
    Open {
        /// Since then.
        since: Instant,
        /// Since when the manager has sent everything.
        complete: Option<Instant>,
    },
    /// The manager doesn't have the call.
    Unsupported,
}

/// A write of conditions, with its Event.
#[derive(Debug)]
pub(super) struct Write {
    pub id: WorkloadId,
    pub namespace: String,
    pub name: String,
    pub conditions: Vec<NewCondition>,
    pub event: Option<Condition>,
}

/// A condition to write.
#[derive(Debug)]
pub(super) struct NewCondition {
    pub kind: &'static str,
    pub condition: Condition,
    /// Its status differs from that of the Pod's present condition.
    pub transition: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Board {
    clock: Clock,
    /// Time for which something has to be wrong before a Pod says so for the first time.
    after: Duration,
    state: Mutex<State>,
    metrics: Metrics,
    /// Wakes a writer of conditions of Pods.
    changed: Notify,
    /// Wakes a writer of conditions of claims.
    bindable: Notify,
}

#[derive(Debug)]
struct State {
    pods: HashMap<WorkloadId, Known>,
    /// The rules of this cluster by which workloads wait; `None` until they are known.
    ordered: Option<Vec<Arc<Rule>>>,
    starts: Starts,
    queue: Queue<WorkloadId>,
    link: Link,
    /// Number of the current stream.
    stream: u64,
    writes: Bucket,
    openings: Bucket,
    events: Bucket,
    /// Pods by the Node that their claim is allocated on, so that what concerns a Node costs no more than its own Pods.
    allocated: HashMap<String, BTreeSet<WorkloadId>>,
    /// Pods whose claims have to be examined.
    binds: Queue<WorkloadId>,
    binding: Bucket,
    /// Nodes that have no devices because of their DPUs.
    withdrawn: HashMap<String, Cause>,
    /// Namespaces in which the agent may not write, each with the time of the next attempt.
    forbidden: HashMap<String, Forbidden>,
}

impl Board {
    pub(crate) fn new(clock: Clock, after: Duration, metrics: Metrics) -> Self {
        let now = clock.now();
        let state = State {
            pods: HashMap::default(),
            ordered: None,
            starts: Starts::default(),
            queue: Queue::default(),
            link: Link::Down(now),
            stream: 0,
            writes: Bucket::new(now),
            openings: Bucket::new(now),
            events: Bucket::new(now),
            allocated: HashMap::default(),
            binds: Queue::default(),
            binding: Bucket::new(now),
            withdrawn: HashMap::default(),
            forbidden: HashMap::default(),
        };
        let (changed, bindable) = (Notify::new(), Notify::new());
        Self { clock, after, state: Mutex::new(state), metrics, changed, bindable }
    }

    /// Wakes writers of both kinds.
    fn notify(&self) {
        self.changed.notify_one();
        self.bindable.notify_one();
    }

    /// A Pod has changed: it is examined once more, and those who wait for it ask once more.
    fn examine_again(&self, mut state: MutexGuard<'_, State>, id: &WorkloadId) {
        state.push(id);
        state.wake(id);
        drop(state);
        self.notify();
    }

    /// The state of the stream from the manager.
    pub(crate) fn link(&self) -> Link {
        self.state.lock().link
    }

    /// Records a state of a Pod. Most changes of a Pod don't concern its companions.
    pub(crate) fn apply(&self, id: &WorkloadId, pod: &Pod) {
        let seen = Known::new(pod, self.clock.now());
        let claim = seen.claim.clone();
        let mut state = self.state.lock();
        let before = match state.pods.get_mut(id) {
            Some(known) => {
                let before = known.claim.clone();
                if !known.update(seen) {
                    return;
                }
                before
            }
            None => {
                state.pods.insert(id.clone(), seen);
                None
            }
        };
        state.starts.moved(id, before, claim);
        self.examine_again(state, id);
    }

    /// Records the rules by which workloads wait.
    pub(crate) fn expect(&self, ordered: Vec<Arc<Rule>>) {
        let mut state = self.state.lock();
        state.ordered = Some(ordered);
        let State { pods, queue, binds, .. } = &mut *state;
        for (id, known) in &*pods {
            if known.gated {
                queue.push(id.clone(), true);
            }
            if known.allocation.is_some() {
                binds.push(id.clone(), true);
            }
        }
        state.starts.wake_all();
        drop(state);
        self.notify();
    }

    /// Records how much a Pod counts that is too large to be sent whole; `None` if it is sent whole.
    pub(crate) fn too_large(&self, id: &WorkloadId, excess: Option<usize>) {
        let mut state = self.state.lock();
        let Some(known) = state.pods.get_mut(id) else { return };
        if known.too_large == excess {
            return;
        }
        known.too_large = excess;
        // The manager hears of this state only now.
        known.seen = self.clock.now();
        self.examine_again(state, id);
    }

    /// The present state of a Pod has to be sent to the manager.
    pub(crate) fn unsent(&self, id: &WorkloadId) {
        if let Some(known) = self.state.lock().pods.get_mut(id) {
            known.sent = None;
        }
    }

    /// The present state of a Pod is sent.
    pub(crate) fn sent(&self, id: &WorkloadId) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let Some(known) = state.pods.get_mut(id) else { return };
        known.sent = Some(now);
        self.examine_again(state, id);
    }

    /// A stream sends all Pods as they are now. What the manager has of them is complete when it says so.
    pub(crate) fn sent_all(&self) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.pods.values_mut().for_each(|known| _ = known.sent.get_or_insert(now));
        state.push_all();
        drop(state);
        self.notify();
    }

    /// Forgets a Pod.
    pub(crate) fn remove(&self, id: &WorkloadId) {
        let mut state = self.state.lock();
        if let Some(known) = state.pods.remove(id) {
            self.metrics.reason_changed(known.reason(), None);
            if let Some(allocation) = &known.allocation {
                remove_from(&mut state.allocated, &allocation.node, |ids| ids.remove(id));
            }
            state.starts.moved(id, known.claim, None);
        }
        state.queue.remove(id);
        state.binds.remove(id);
    }

    /// A stream is open. Returns its number, by which what is received on it is recorded.
    pub(super) fn opened(&self) -> u64 {
        let mut state = self.state.lock();
        state.stream += 1;
        state.link = Link::Open { since: self.clock.now(), complete: None };
        state.push_all();
        state.stream
    }

    /// Records what was received of the companions of a workload. Returns false for one that the agent doesn't know.
    pub(super) fn received(&self, stream: u64, id: &WorkloadId, companions: Companions) -> bool {
        let now = self.clock.now();
        let mut state = self.state.lock();
        if state.stream != stream {
            return false;
        }
        let Some(known) = state.pods.get_mut(id) else { return false };
        known.wrong = if companions.all.wrong > 0 { known.wrong.or(Some(now)) } else { None };
        let before = known.reason();
        known.received = Some((stream, companions));
        self.metrics.reason_changed(before, known.reason());
        self.examine_again(state, id);
        true
    }

    /// The manager has sent everything on this stream.
    pub(super) fn complete(&self, stream: u64) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        if state.stream == stream
            && let Link::Open { complete, .. } = &mut state.link
        {
            *complete = Some(now);
            // It stands for the present only if it was received on this stream too.
            for known in state.pods.values_mut().filter(|known| known.reported_before(stream)) {
                self.metrics.reason_changed(known.reason(), None);
                known.received = None;
            }
            state.push_all();
        }
        drop(state);
        self.notify();
    }

    /// There is no stream: it has ended, or could not be opened.
    pub(super) fn down(&self, unsupported: bool) {
        let mut state = self.state.lock();
        let link = match state.link {
            _ if unsupported => Link::Unsupported,
            down @ Link::Down(_) => down,
            _ => Link::Down(self.clock.now()),
        };
        if link != state.link {
            state.link = link;
            state.push_all();
        }
        drop(state);
        self.notify();
    }

    /// Waits for the next write.
    pub(super) async fn next(&self) -> Write {
        paced::next(&self.changed, || self.take()).await
    }

    /// Returns the next write, or when there may be one.
    fn take(&self) -> Result<Write, Option<Instant>> {
        let now = self.clock.now();
        let examine = |state: &mut State, id: &WorkloadId| state.examine(id, self.after, now);
        paced::take(&mut *self.state.lock(), |state| &mut state.queue, now, examine)
    }

    /// Records what came of a write.
    pub(super) fn done(&self, id: &WorkloadId, outcome: WriteOutcome, jitter: f64) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let State { pods, forbidden, .. } = &mut *state;
        let Some(known) = pods.get_mut(id) else { return };
        known.pace.done(outcome, now, jitter);
        match outcome {
            WriteOutcome::Ok => _ = forbidden.remove(&known.namespace),
            WriteOutcome::Forbidden => {
                let before = forbidden.get(&known.namespace).copied();
                forbidden.insert(known.namespace.clone(), Forbidden::again(before, now));
            }
            WriteOutcome::Failed | WriteOutcome::Refused => {}
        }
        // It may have changed meanwhile.
        state.push(id);
        drop(state);
        self.notify();
    }
}

impl State {
    fn push(&mut self, id: &WorkloadId) {
        if let Some(known) = self.pods.get(id) {
            self.queue.push(id.clone(), known.gated);
            if known.allocation.is_some() {
                self.binds.push(id.clone(), true);
            }
        }
    }

    fn push_all(&mut self) {
        for (id, known) in &self.pods {
            self.queue.push(id.clone(), known.gated);
            if known.allocation.is_some() {
                self.binds.push(id.clone(), true);
            }
        }
        self.starts.wake_all();
    }

    /// Wakes those who wait for a Pod.
    fn wake(&self, id: &WorkloadId) {
        if let Some(claim) = self.pods.get(id).and_then(|known| known.claim.as_ref()) {
            self.starts.wake(claim);
        }
    }

    /// Compares a Pod with the conditions that it should have.
    fn examine(&mut self, id: &WorkloadId, after: Duration, now: Instant) -> Result<Write, Wait> {
        let known = self.pods.get_mut(id).ok_or(Wait::Change)?;
        // A write in progress examines the Pod once more.
        if known.pace.is_busy() || known.deleted {
            return Err(Wait::Change);
        }
        let (knowledge, due) = known.knowledge(self.link, self.stream, after, now);
        let lasted = due.is_some_and(|due| due <= now);
        let awaited = match &self.ordered {
            Some(ordered) => known.awaited(ordered),
            // Its gate could open too early.
            None if known.gated => return Err(Wait::Change),
            None => None,
        };
        let new = decide(knowledge, &known.has, known.gated, lasted, awaited);
        if new.is_empty() {
            return Err(Wait::until(due.filter(|due| *due > now)));
        }
        if let Some(until) = self.forbidden.get(&known.namespace).and_then(|forbidden| forbidden.paused(now))
        {
            return Err(Wait::Until(until));
        }
        let opens = new.gate.as_ref().is_some_and(Condition::is_true);
        let all = if opens { (&mut self.openings, OPENINGS) } else { (&mut self.writes, WRITES) };
        known.pace.begin(Some(POD_WRITES), all, 1.0, now).map_err(|wait| match wait {
            Wait::Full(_) if known.gated && !opens => Wait::Until(now + CLOSING),
            wait => wait,
        })?;
        let event = known.news(&new).filter(|_| {
            let own = known.events.get_or_insert_with(|| Bucket::new(now));
            let there = own.next(POD_EVENTS, now) == now && self.events.take(EVENTS, now);
            if there {
                own.spend(POD_EVENTS, 1.0, now);
            }
            there
        });
        Ok(known.write(id, new, event))
    }
}

#[cfg(test)]
impl Default for Board {
    fn default() -> Self {
        Self::new(Clock::system(), Duration::from_secs(15), Metrics::default())
    }
}

#[cfg(test)]
impl Board {
    /// Whether the present state of a Pod is sent.
    pub(crate) fn is_sent(&self, id: &WorkloadId) -> bool {
        self.state.lock().pods.get(id).is_some_and(|known| known.sent.is_some())
    }
}

#[cfg(test)]
mod tests;
