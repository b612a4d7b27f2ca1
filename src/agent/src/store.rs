//! The tenant's workloads, and the changes that the manager has not received yet.
//!
//! Level-based: the store has the current state and the set of changed ids. However often a Pod changes while the
//! manager is unreachable or slow, one message is sent, and memory doesn't grow with the number of changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::ResourceClaim;
use outrigger_api::workload_wire;
use outrigger_core::ids::WorkloadId;
use outrigger_core::map::{HashMap, HashSet, remove_from};
use outrigger_core::workload::Workload;
use outrigger_proto::v1::workload_chunked_stream_request::Message;
use outrigger_proto::v1::{AnnotationKeys, WorkloadUpdate};
use outrigger_runtime::cache::{Change, Feed};
use outrigger_runtime::pod::Pod;
use outrigger_runtime::watch::Event;
use parking_lot::Mutex;
use tokio::sync::Notify;

use self::changes::Changes;
use crate::annotations::Selection;
use crate::binding::{Allocation, Allocations};
use crate::companions::{Board, ClaimName, revision};
use crate::device_attributes::DeviceAttributes;
use crate::disruption::{Affected, Budgets};
use crate::pod::{is_workload, workload};
use crate::running::sink;

mod attributes;
mod changes;

#[derive(Debug)]
pub(crate) struct WorkloadStore {
    /// Learns of each Pod too.
    board: Arc<Board>,
    /// The feeds of the current watches, by their namespaces.
    feeds: Mutex<BTreeMap<Option<String>, Feed<Pod>>>,
    /// It is locked before `state`, for as long as a Pod, a claim or a PodDisruptionBudget is recorded.
    joined: Mutex<Joined>,
    state: Mutex<State>,
    /// Wakes the current stream.
    changed: Notify,
}

/// A new stream.
pub(crate) struct Started {
    /// All workloads, for the initial sync.
    pub(crate) workloads: Vec<Arc<Workload>>,
    /// How much those of them count that are too large to be sent whole.
    pub(crate) too_large: HashMap<WorkloadId, usize>,
    /// What is to be said of their annotations.
    pub(crate) keys: Option<AnnotationKeys>,
    /// It supersedes the previous stream.
    pub(crate) generation: u64,
}

/// What workloads have beside what their Pods say. It arrives on other watches than Pods, in any order.
#[derive(Debug, Default)]
struct Joined {
    /// Where claims of Pods are allocated that aren't bound yet.
    allocations: Allocations,
    budgets: Budgets,
    /// Of the devices of workloads.
    attributes: DeviceAttributes,
}

#[derive(Debug, Default)]
struct State {
    workloads: HashMap<WorkloadId, Arc<Workload>>,
    /// The workloads of each namespace, so that a PodDisruptionBudget costs no more than those of its own.
    namespaces: HashMap<String, HashSet<WorkloadId>>,
    /// Workloads of which only is sent that they exist and where, and how much they count.
    too_large: HashMap<WorkloadId, usize>,
    changed: Changes,
    /// Number of the current stream.
    generation: u64,
    /// Whether the initial sync of the current stream is incomplete.
    syncing: bool,
    open: bool,
    selection: Selection,
    /// The annotations with which all Pods have been read, as far as they are still selected.
    complete: Option<Selection>,
    /// The annotations that were announced to the manager on the current stream.
    stated: Option<Selection>,
    /// The changes of that reading that have not been sent yet.
    unsent: HashSet<WorkloadId>,
}

struct Superseded;

impl WorkloadStore {
    /// A store whose Pods the board learns of.
    pub(crate) fn new(board: Arc<Board>) -> Self {
        let (feeds, joined, state, changed) = Default::default();
        Self { board, feeds, joined, state, changed }
    }

    pub(crate) fn len(&self) -> usize {
        self.state.lock().workloads.len()
    }

    /// Starts a stream, which supersedes the previous one.
    pub(crate) fn start_stream(&self) -> Started {
        let started = {
            let mut state = self.state.lock();
            state.changed.clear(&self.board);
            state.unsent.clear();
            state.syncing = true;
            state.generation += 1;
            state.open = true;
            // Without workloads nothing is said.
            state.stated = state.complete.clone().filter(|_| !state.workloads.is_empty());
            let keys = state.stated.as_ref().map(Selection::keys);
            let (workloads, too_large) =
                (state.workloads.values().cloned().collect(), state.too_large.clone());
            Started { workloads, too_large, keys, generation: state.generation }
        };
        self.changed.notify_waiters();
        started
    }

    /// Records that the initial sync of this stream is complete.
    pub(crate) fn sync_complete(&self, generation: u64) {
        let mut state = self.state.lock();
        if state.generation == generation {
            state.syncing = false;
        }
    }

    pub(crate) fn end_stream(&self) {
        self.state.lock().open = false;
    }

    /// Reports whether Pods are read with all annotations of the selection, and none is too large that may not be with the selection.
    pub(crate) fn selects(&self, selection: &Selection) -> bool {
        let state = self.state.lock();
        let may_fit = !state.too_large.is_empty() && state.selection != *selection;
        state.selection.covers(selection) && !may_fit
    }

    /// Sets the annotations that are kept and sent. Pods that were read without some of them have to be read again.
    pub(crate) fn select(&self, selection: Selection) {
        let mut state = self.state.lock();
        let State { workloads, changed, complete, .. } = &mut *state;
        for (id, workload) in workloads {
            if workload.annotations.keys().any(|key| !selection.includes(key)) {
                selection.apply(Arc::make_mut(workload));
                changed.insert(id.clone(), &self.board);
            }
        }
        *complete = complete.as_ref().map(|complete| complete.within(&selection));
        state.selection = selection;
        drop(state);
        self.changed.notify_one();
    }

    /// Records that all Pods have been read with these annotations.
    pub(crate) fn set_complete(&self, selection: &Selection) {
        let mut state = self.state.lock();
        if state.complete.as_ref() != Some(selection) {
            state.unsent = state.changed.ids.iter().cloned().collect();
            state.complete = Some(selection.clone());
            drop(state);
            // This has to be announced to the manager.
            self.changed.notify_one();
        }
    }

    /// Reports whether the manager has these annotations: all Pods have been read with them, and an open stream has received the
    /// changes. Otherwise a rule that names them would take them for absent.
    pub(crate) fn has_sent_annotations(&self, keys: impl Iterator<Item = String>) -> bool {
        let mut keys = keys.peekable();
        if keys.peek().is_none() {
            return true;
        }
        let state = self.state.lock();
        let Some(complete) = &state.complete else { return false };
        complete.covers(&complete.with(keys)) && (state.unsent.is_empty() && !state.syncing || !state.open)
    }

    /// Waits for the next change for the stream of this generation. Returns `None` if the stream is superseded. The future can be
    /// dropped without losing a change.
    pub(crate) async fn next_change(&self, generation: u64) -> Option<Message> {
        loop {
            match self.take_change(generation) {
                Ok(Some(message)) => return Some(message),
                Ok(None) => self.changed.notified().await,
                Err(Superseded) => {
                    // The notification was meant for the current stream.
                    self.changed.notify_one();
                    return None;
                }
            }
        }
    }

    fn take_change(&self, generation: u64) -> Result<Option<Message>, Superseded> {
        let mut state = self.state.lock();
        if state.generation != generation {
            return Err(Superseded);
        }
        // Any update can say what has changed about annotations in general.
        let any = |state: &State| state.news().and_then(|_| state.workloads.keys().next().cloned());
        let Some(id) = state.changed.take(&self.board).or_else(|| any(&state)) else { return Ok(None) };
        state.unsent.remove(&id);
        let Some(workload) = state.workloads.get(&id) else {
            return Ok(Some(Message::WorkloadDelete(workload_wire::delete(&id))));
        };
        let mut update = message(workload, &state.too_large);
        if let Some(news) = state.news() {
            update.annotation_keys = Some(news.keys());
            state.stated = Some(news);
        }
        Ok(Some(Message::WorkloadUpdate(update)))
    }

    fn set(&self, mut workload: Workload) {
        let mut state = self.state.lock();
        state.selection.apply(&mut workload);
        // Most changes of a Pod don't change the workload.
        if state.has(&workload, None) {
            return;
        }
        let excess = workload_wire::excess(&workload);
        if excess.is_some() {
            // It isn't deleted for the manager, whose companions for it stay: else its owner could remove those of the platform.
            let (labels, annotations) = Default::default();
            workload = Workload { labels, annotations, groups: Vec::new(), withheld: Vec::new(), ..workload };
        }
        if state.has(&workload, excess) {
            return;
        }
        let id = workload.id.clone();
        let before = match excess {
            Some(size) => state.too_large.insert(id.clone(), size),
            None => state.too_large.remove(&id),
        };
        state.changed.insert(id.clone(), &self.board);
        state.insert(workload);
        drop(state);
        if before != excess {
            self.board.too_large(&id, excess);
        }
        self.changed.notify_one();
    }

    fn remove(&self, id: &WorkloadId) {
        let mut joined = self.joined.lock();
        joined.allocations.forget(id);
        self.drop_workload(id);
    }

    fn drop_workload(&self, id: &WorkloadId) {
        self.board.remove(id);
        let mut state = self.state.lock();
        if state.remove(id) {
            state.changed.insert(id.clone(), &self.board);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Returns the sink for a watch of the Pods of one namespace or of all. Its first list removes workloads of earlier watches of
    /// the same namespaces.
    pub(crate) fn pods(self: &Arc<Self>, namespace: Option<String>) -> impl FnMut(Event<Pod>) + Send + use<> {
        let (this, store) = (self.clone(), self.clone());
        let feed = Feed::new(move |change: Change<Pod>| match change {
            Change::Applied(pod) => store.apply(pod),
            Change::Gone { uid, .. } => {
                if let Ok(id) = WorkloadId::new(&uid) {
                    store.remove(&id);
                }
            }
        });
        self.feeds.lock().insert(namespace.clone(), feed.clone());
        sink(feed, id, move |listed| {
            this.remove_all(|workload| {
                namespace.as_deref().is_none_or(|name| name == workload.resource_namespace)
                    && !listed.contains(&workload.id)
            });
        })
    }

    /// Records that the watch of these Pods has stopped.
    pub(crate) fn stopped(&self, namespace: &Option<String>) {
        self.feeds.lock().remove(namespace);
    }

    /// Receives the Pod of the response to a write of this process.
    pub(crate) fn answer(&self, pod: Pod) {
        // Under the lock, so that no Pod is recorded after its watch has stopped.
        let feeds = self.feeds.lock();
        if let Some(feed) = feeds.get(&pod.metadata.namespace).or_else(|| feeds.get(&None)) {
            feed.answer(pod);
        }
    }

    pub(crate) fn keep_namespaces(&self, namespaces: &BTreeSet<String>) {
        self.joined.lock().budgets.keep_namespaces(namespaces);
        self.remove_all(|workload| !namespaces.contains(&workload.resource_namespace));
    }

    /// Applies a Pod. A Pod that has terminated is not a workload.
    fn apply(&self, pod: Pod) {
        let Some(id) = id(&pod) else { return };
        let mut joined = self.joined.lock();
        if !is_workload(&pod) {
            joined.allocations.forget(&id);
            self.drop_workload(&id);
            return;
        }
        let allocation = joined.allocations.pod(&id, &pod);
        self.board.apply(&id, &pod);
        self.board.allocated(&id, allocation.clone());
        match workload(pod) {
            Some(mut workload) => {
                // Its companion starts on the DPU of the Node that the scheduler has chosen.
                workload.node_name = workload.node_name.or(allocation.map(|allocation| allocation.node));
                workload.groups = joined.budgets.groups(&workload);
                joined.attributes.describe(&mut workload);
                self.set(workload);
            }
            None => self.drop_workload(&id),
        }
    }

    /// Records a change of the claim of a Pod that isn't bound before its companions are Ready.
    pub(crate) fn claim(&self, change: Change<ResourceClaim>) {
        let (namespace, name, claim) = change.into_parts();
        let name = ClaimName { namespace, name };
        let mut joined = self.joined.lock();
        let Some(claim) = claim.filter(|claim| claim.metadata.deletion_timestamp.is_none()) else {
            return joined.allocations.claim_gone(name);
        };
        let Some((id, allocation)) = joined.allocations.claim(name, Allocation::of(&claim)) else { return };
        self.board.allocated(&id, allocation.clone());
        let node_name = allocation.map(|allocation| allocation.node);
        let mut state = self.state.lock();
        let known = state.workloads.get_mut(&id).filter(|workload| workload.node_name != node_name);
        let Some(workload) = known else { return };
        Arc::make_mut(workload).node_name = node_name;
        state.changed.insert(id, &self.board);
        drop(state);
        self.changed.notify_one();
    }

    /// Returns the sink for a watch of the PodDisruptionBudgets of one namespace or of all. Its first list removes those of earlier
    /// watches of the same namespaces.
    pub(crate) fn budgets(
        self: &Arc<Self>,
        namespace: Option<String>,
    ) -> impl FnMut(Event<PodDisruptionBudget>) + Send + use<> {
        let (this, store) = (self.clone(), self.clone());
        let feed = Feed::new(move |change: Change<PodDisruptionBudget>| {
            store.change_budgets(|budgets| match change {
                Change::Applied(budget) => budgets.apply(&budget).into_iter().collect(),
                Change::Gone { namespace, uid, .. } => budgets.remove(&namespace, &uid).into_iter().collect(),
            });
        });
        let uid = |budget: &PodDisruptionBudget| budget.metadata.uid.clone();
        sink(feed, uid, move |listed| {
            this.change_budgets(|budgets| budgets.retain(namespace.as_deref(), |uid| listed.contains(uid)));
        })
    }

    /// Changes the PodDisruptionBudgets, and records the workloads whose groups are others for that.
    fn change_budgets(&self, change: impl FnOnce(&mut Budgets) -> Vec<Affected>) {
        let mut joined = self.joined.lock();
        let affected = change(&mut joined.budgets);
        let mut state = self.state.lock();
        let mut changed = false;
        for affected in &affected {
            changed |= state.regroup(affected, &joined.budgets, &self.board);
        }
        drop(state);
        if changed {
            self.changed.notify_one();
        }
    }

    /// Removes all workloads that are gone.
    fn remove_all(&self, is_gone: impl Fn(&Workload) -> bool) {
        let gone: Vec<WorkloadId> = {
            let state = self.state.lock();
            let gone = state.workloads.values().filter(|workload| is_gone(workload));
            gone.map(|workload| workload.id.clone()).collect()
        };
        for id in &gone {
            self.remove(id);
        }
    }
}

#[cfg(test)]
impl Default for WorkloadStore {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl State {
    /// The annotations that have to be announced to the manager, if they differ from those that were announced: all workloads that it has
    /// were sent with these.
    fn news(&self) -> Option<Selection> {
        let complete = self.complete.as_ref()?;
        let sent = match &self.stated {
            // Workloads that have been read again are still to be sent.
            stated if !self.unsent.is_empty() => stated.clone().unwrap_or_default().within(complete),
            _ => complete.clone(),
        };
        (self.stated.as_ref() != Some(&sent)).then_some(sent)
    }

    /// Whether a workload is known as it is.
    fn has(&self, workload: &Workload, excess: Option<usize>) -> bool {
        self.workloads.get(&workload.id).is_some_and(|known| **known == *workload)
            && self.too_large.get(&workload.id).copied() == excess
    }

    fn insert(&mut self, workload: Workload) {
        let id = workload.id.clone();
        match self.namespaces.get_mut(&workload.resource_namespace) {
            Some(workloads) => _ = workloads.insert(id.clone()),
            None => {
                let namespace = workload.resource_namespace.clone();
                self.namespaces.entry(namespace).or_default().insert(id.clone());
            }
        }
        self.workloads.insert(id, Arc::new(workload));
    }

    /// Removes a workload. Returns whether it was known.
    fn remove(&mut self, id: &WorkloadId) -> bool {
        self.too_large.remove(id);
        let Some(workload) = self.workloads.remove(id) else { return false };
        remove_from(&mut self.namespaces, &workload.resource_namespace, |workloads| workloads.remove(id));
        true
    }

    /// Computes the groups of these workloads. Returns whether those of some have changed.
    fn regroup(&mut self, affected: &Affected, budgets: &Budgets, board: &Board) -> bool {
        let Self { workloads, namespaces, changed, too_large, .. } = self;
        let mut any = false;
        for id in namespaces.get(&*affected.namespace).into_iter().flatten() {
            // Of one that is too large groups aren't sent either.
            let sent = workloads.get_mut(id).filter(|_| !too_large.contains_key(id));
            let Some(workload) = sent.filter(|workload| affected.includes(workload)) else { continue };
            let groups = budgets.groups(workload);
            if groups != workload.groups {
                Arc::make_mut(workload).groups = groups;
                changed.insert(id.clone(), board);
                any = true;
            }
        }
        any
    }
}

/// The message that a workload exists and has this state.
pub(crate) fn message(workload: &Workload, too_large: &HashMap<WorkloadId, usize>) -> WorkloadUpdate {
    let mut update = match too_large.get(&workload.id) {
        Some(size) => return workload_wire::too_large(workload, *size),
        None => workload_wire::update(workload),
    };
    if let Some(state) = &mut update.workload_state {
        state.revision = revision(workload);
    }
    update
}

fn id(pod: &Pod) -> Option<WorkloadId> {
    WorkloadId::new(pod.metadata.uid.as_deref()?).ok()
}

#[cfg(test)]
mod claims;

#[cfg(test)]
mod budgets;

#[cfg(test)]
mod tests;
