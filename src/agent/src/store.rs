//! The tenant's workloads, and the changes that the manager has not received yet.
//!
//! Level-based: the store has the current state and the set of changed ids. However often a Pod changes while the
//! manager is unreachable or slow, one message is sent, and memory doesn't grow with the number of changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::ResourceClaim;
use outrigger_api::workload_wire;
use outrigger_core::ids::WorkloadId;
use outrigger_core::map::{HashMap, HashSet};
use outrigger_core::workload::Workload;
use outrigger_proto::v1::workload_chunked_stream_request::Message;
use outrigger_runtime::cache::{Change, Feed};
use outrigger_runtime::pod::Pod;
use outrigger_runtime::watch::Event;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::annotations::Selection;
use crate::binding::{Allocation, Allocations};
use crate::companions::{Board, ClaimName};
use crate::pod::{is_workload, workload};

#[derive(Debug, Default)]
pub(crate) struct WorkloadStore {
    /// Learns of each Pod too.
    board: Option<Arc<Board>>,
    /// The feeds of the current watches, by their namespaces.
    feeds: Mutex<BTreeMap<Option<String>, Feed<Pod>>>,
    /// Where claims of Pods are allocated that aren't bound yet. It is locked while a Pod or a claim is recorded.
    allocations: Mutex<Allocations>,
    state: Mutex<State>,
    /// Wakes the current stream.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    workloads: HashMap<WorkloadId, Arc<Workload>>,
    changed: BTreeSet<WorkloadId>,
    /// Number of the current stream.
    generation: u64,
    /// Whether the initial sync of the current stream is incomplete.
    syncing: bool,
    open: bool,
    selection: Selection,
    /// The annotations with which all Pods have been read.
    complete: Option<Selection>,
    /// The changes of that reading that have not been sent yet.
    unsent: HashSet<WorkloadId>,
}

struct Superseded;

impl WorkloadStore {
    /// A store whose Pods the board learns of.
    pub(crate) fn new(board: Arc<Board>) -> Self {
        Self { board: Some(board), ..Self::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.state.lock().workloads.len()
    }

    /// Starts a stream. Returns all workloads for the initial sync, and the generation of the stream, which supersedes the
    /// previous one.
    pub(crate) fn start_stream(&self) -> (Vec<Arc<Workload>>, u64) {
        let started = {
            let mut state = self.state.lock();
            state.changed.clear();
            state.unsent.clear();
            state.syncing = true;
            state.generation += 1;
            state.open = true;
            (state.workloads.values().cloned().collect(), state.generation)
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

    /// Reports whether Pods are read with all annotations of the selection.
    pub(crate) fn selects(&self, selection: &Selection) -> bool {
        self.state.lock().selection.covers(selection)
    }

    /// Sets the annotations that are kept and sent. Pods that were read without some of them have to be read again.
    pub(crate) fn select(&self, selection: Selection) {
        let mut state = self.state.lock();
        let State { workloads, changed, .. } = &mut *state;
        for (id, workload) in workloads {
            if workload.annotations.keys().any(|key| !selection.includes(key)) {
                Arc::make_mut(workload).annotations.retain(|key| selection.includes(key));
                changed.insert(id.clone());
            }
        }
        state.selection = selection;
        drop(state);
        self.changed.notify_one();
    }

    /// Records that all Pods have been read with these annotations.
    pub(crate) fn set_complete(&self, selection: &Selection) {
        let mut state = self.state.lock();
        if state.complete.as_ref() != Some(selection) {
            state.unsent = state.changed.iter().cloned().collect();
            state.complete = Some(selection.clone());
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
        let Some(id) = state.changed.pop_first() else { return Ok(None) };
        state.unsent.remove(&id);
        Ok(Some(match state.workloads.get(&id) {
            Some(workload) => Message::WorkloadUpdate(workload_wire::update(workload)),
            None => Message::WorkloadDelete(workload_wire::delete(&id)),
        }))
    }

    fn set(&self, mut workload: Workload) {
        let mut state = self.state.lock();
        workload.annotations.retain(|key| state.selection.includes(key));
        // Most changes of a Pod don't change the workload.
        if state.workloads.get(&workload.id).is_some_and(|known| **known == workload) {
            return;
        }
        state.changed.insert(workload.id.clone());
        state.workloads.insert(workload.id.clone(), Arc::new(workload));
        drop(state);
        self.changed.notify_one();
    }

    fn remove(&self, id: &WorkloadId) {
        let mut allocations = self.allocations.lock();
        allocations.forget(id);
        self.drop_workload(id);
    }

    fn drop_workload(&self, id: &WorkloadId) {
        if let Some(board) = &self.board {
            board.remove(id);
        }
        let mut state = self.state.lock();
        if state.workloads.remove(id).is_some() {
            state.changed.insert(id.clone());
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
        let mut first = Some(HashSet::default());
        move |event| {
            match (&event, &mut first) {
                (Event::ListStarted, Some(listed)) => listed.clear(),
                (Event::Listed(pod), Some(listed)) => listed.extend(id(pod)),
                _ => {}
            }
            let completed = matches!(event, Event::ListCompleted { .. });
            feed.event(event);
            if completed && let Some(listed) = first.take() {
                this.retain(namespace.as_deref(), &listed);
            }
        }
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
        let gone: Vec<WorkloadId> = {
            let state = self.state.lock();
            let others = state.workloads.values().filter(|w| !namespaces.contains(&w.resource_namespace));
            others.map(|w| w.id.clone()).collect()
        };
        for id in &gone {
            self.remove(id);
        }
    }

    /// Applies a Pod. A Pod that has terminated is not a workload.
    fn apply(&self, pod: Pod) {
        let Some(id) = id(&pod) else { return };
        let mut allocations = self.allocations.lock();
        if !is_workload(&pod) {
            allocations.forget(&id);
            self.drop_workload(&id);
            return;
        }
        let allocation = allocations.pod(&id, &pod);
        if let Some(board) = &self.board {
            board.apply(&id, &pod);
            board.allocated(&id, allocation.clone());
        }
        match workload(pod) {
            Some(mut workload) => {
                // Its companion starts on the DPU of the Node that the scheduler has chosen.
                workload.node_name = workload.node_name.or(allocation.map(|allocation| allocation.node));
                self.set(workload);
            }
            None => self.drop_workload(&id),
        }
    }

    /// Records a change of the claim of a Pod that isn't bound before its companions are Ready.
    pub(crate) fn claim(&self, change: Change<ResourceClaim>) {
        let (namespace, name, claim) = change.into_parts();
        let allocation = claim.as_ref().and_then(Allocation::of);
        let mut allocations = self.allocations.lock();
        let Some((id, allocation)) = allocations.claim(ClaimName { namespace, name }, allocation) else {
            return;
        };
        if let Some(board) = &self.board {
            board.allocated(&id, allocation.clone());
        }
        let known = self.state.lock().workloads.get(&id).cloned();
        if let Some(mut workload) = known {
            Arc::make_mut(&mut workload).node_name = allocation.map(|allocation| allocation.node);
            self.set(Arc::unwrap_or_clone(workload));
        }
    }

    /// Removes the workloads that a complete list lacks.
    fn retain(&self, namespace: Option<&str>, listed: &HashSet<WorkloadId>) {
        let gone: Vec<WorkloadId> = {
            let state = self.state.lock();
            let ours =
                state.workloads.values().filter(|w| namespace.is_none_or(|n| n == w.resource_namespace));
            ours.filter(|w| !listed.contains(&w.id)).map(|w| w.id.clone()).collect()
        };
        for id in &gone {
            self.remove(id);
        }
    }
}

fn id(pod: &Pod) -> Option<WorkloadId> {
    WorkloadId::new(pod.metadata.uid.as_deref()?).ok()
}

#[cfg(test)]
mod claims;

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, namespace: &str, phase: &str) -> Pod {
        let json = format!(
            r#"{{"metadata": {{"uid": "{uid}", "name": "{uid}", "namespace": "{namespace}"}}, "status": {{"phase": "{phase}"}}}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    fn selection(named: &[&str]) -> Selection {
        Selection::new(Arc::new([]), named.iter().map(ToString::to_string).collect())
    }

    fn annotated(uid: &str, annotations: &[(&str, &str)]) -> Pod {
        let annotations =
            annotations.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let mut pod = pod(uid, "x", "Running");
        pod.metadata.annotations = Some(annotations);
        pod
    }

    fn annotations(store: &WorkloadStore) -> Vec<(String, Vec<String>)> {
        let state = store.state.lock();
        let mut all: Vec<_> = state
            .workloads
            .values()
            .map(|w| (w.id.to_string(), w.annotations.keys().map(str::to_owned).collect::<Vec<_>>()))
            .collect();
        all.sort();
        all
    }

    #[test]
    fn only_selected_annotations_are_kept() {
        let store = Arc::new(WorkloadStore::default());
        let keys = |keys: &[&str]| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
        let pods = [annotated("a", &[("x", "1"), ("y", "2")]), annotated("b", &[("z", "3")])];
        let read = |store: &Arc<WorkloadStore>| {
            let mut sink = store.pods(None);
            pods.iter().for_each(|pod| sink(Event::Applied(pod.clone())));
        };
        read(&store);
        assert_eq!(annotations(&store), [("a".into(), vec![]), ("b".into(), vec![])]);
        synced(&store);
        // More annotations are selected: Pods are read again, and those that have them are sent.
        assert!(!store.selects(&selection(&["x"])));
        assert!(!store.has_sent_annotations(keys(&["x"]).into_iter()));
        store.select(selection(&["x"]));
        read(&store);
        assert!(!store.has_sent_annotations(keys(&["x"]).into_iter()), "not all Pods may have been read");
        store.set_complete(&selection(&["x"]));
        assert!(!store.has_sent_annotations(keys(&["x"]).into_iter()), "the change has not been sent");
        assert_eq!(annotations(&store), [("a".into(), keys(&["x"])), ("b".into(), vec![])]);
        assert_eq!(next(&store), Some(("update", "a".into())));
        assert_eq!(next(&store), None, "no other workload is sent");
        assert!(
            store.has_sent_annotations(keys(&["x"]).into_iter())
                && !store.has_sent_annotations(keys(&["x", "y"]).into_iter())
        );
        // Fewer annotations are selected.
        store.select(selection(&[]));
        assert_eq!(annotations(&store), [("a".into(), vec![]), ("b".into(), vec![])]);
        assert_eq!(next(&store), Some(("update", "a".into())));
        assert_eq!(next(&store), None);
    }

    #[test]
    fn a_rule_does_not_wait_without_an_open_stream() {
        let store = Arc::new(WorkloadStore::default());
        started(&store);
        store.select(selection(&["x"]));
        store.pods(None)(Event::Applied(annotated("a", &[("x", "1")])));
        store.set_complete(&selection(&["x"]));
        let sent = || store.has_sent_annotations(["x".to_owned()].into_iter());
        assert!(!sent());
        store.end_stream();
        assert!(sent());
        started(&store);
        assert!(sent());
    }

    fn started(store: &WorkloadStore) {
        let generation = store.start_stream().1;
        store.sync_complete(generation);
    }

    fn synced(store: &WorkloadStore) -> Vec<String> {
        let (workloads, generation) = store.start_stream();
        store.sync_complete(generation);
        let mut ids: Vec<_> = workloads.iter().map(|workload| workload.id.to_string()).collect();
        ids.sort();
        ids
    }

    fn next(store: &WorkloadStore) -> Option<(&'static str, String)> {
        let generation = store.state.lock().generation;
        Some(match store.take_change(generation).ok()?? {
            Message::WorkloadUpdate(u) => ("update", u.workload_metadata?.id),
            Message::WorkloadDelete(d) => ("delete", d.workload_metadata?.id),
            _ => return None,
        })
    }

    #[test]
    fn changes_coalesce_and_a_sync_includes_them() {
        let store = Arc::new(WorkloadStore::default());
        let mut sink = store.pods(None);
        for phase in ["Pending", "Running", "Running"] {
            sink(Event::Applied(pod("a", "x", phase)));
        }
        sink(Event::Applied(pod("b", "x", "Running")));
        sink(Event::Deleted(pod("b", "x", "Running")));
        assert_eq!(next(&store), Some(("update", "a".into())));
        assert_eq!(next(&store), Some(("delete", "b".into())));
        assert_eq!(next(&store), None);
        sink(Event::Applied(pod("c", "x", "Running")));
        assert_eq!(synced(&store), ["a", "c"]);
        assert_eq!(next(&store), None, "the sync included it");
        sink(Event::Applied(pod("c", "x", "Succeeded")));
        assert_eq!(next(&store), Some(("delete", "c".into())));
    }

    #[test]
    fn a_complete_list_removes_workloads_of_its_namespace_only() {
        let store = Arc::new(WorkloadStore::default());
        let (mut x, mut y) = (store.pods(Some("x".into())), store.pods(Some("y".into())));
        x(Event::Applied(pod("a", "x", "Running")));
        x(Event::Applied(pod("b", "x", "Running")));
        y(Event::Applied(pod("c", "y", "Running")));
        x(Event::ListStarted);
        x(Event::Listed(pod("b", "x", "Running")));
        assert_eq!(synced(&store), ["a", "b", "c"], "an incomplete list removes nothing");
        x(Event::ListCompleted { version: 0 });
        assert_eq!(synced(&store), ["b", "c"]);
    }

    #[tokio::test]
    async fn a_waiting_stream_wakes() {
        let store = Arc::new(WorkloadStore::default());
        let waiting = tokio::spawn({
            let store = store.clone();
            async move { store.next_change(0).await }
        });
        tokio::task::yield_now().await;
        store.pods(None)(Event::Applied(pod("a", "x", "Running")));
        assert!(waiting.await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_superseded_stream_takes_no_changes() {
        let store = Arc::new(WorkloadStore::default());
        let waiting = |generation| {
            let store = store.clone();
            tokio::spawn(async move { store.next_change(generation).await })
        };
        let (_, old) = store.start_stream();
        let before = waiting(old);
        tokio::task::yield_now().await;
        let (_, new) = store.start_stream();
        assert!(before.await.unwrap().is_none(), "it ends");
        // A superseded stream that waits later does not consume the notification.
        let (late, current) = (waiting(old), waiting(new));
        tokio::task::yield_now().await;
        store.pods(None)(Event::Applied(pod("a", "x", "Running")));
        assert!(late.await.unwrap().is_none());
        assert!(current.await.unwrap().is_some());
    }
}
