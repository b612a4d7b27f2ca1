//! The tenant's workloads, and which of them the manager has not been told of yet.
//!
//! Level-based: what is kept is the current state and a set of ids that changed. However often a Pod changes while the
//! manager can't be reached or reads slowly, it is told once, and memory doesn't grow with the number of changes.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use outrigger_api::workload_wire;
use outrigger_core::ids::WorkloadId;
use outrigger_core::workload::Workload;
use outrigger_proto::v1::workload_chunked_stream_request::Message;
use outrigger_runtime::cache::{Change, Feed};
use outrigger_runtime::pod::Pod;
use outrigger_runtime::watch::Event;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::annotations::Selection;
use crate::pod::workload;

/// Workloads of the tenant.
#[derive(Debug, Default)]
pub struct Store {
    inner: Mutex<Inner>,
    /// Wakes the one stream there is.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    workloads: HashMap<WorkloadId, Arc<Workload>>,
    changed: BTreeSet<WorkloadId>,
    /// Counts syncs: the changes since the last one are its stream's.
    generation: u64,
    /// Whether that stream has yet to be given some of what there was when it began.
    beginning: bool,
    /// Whether that stream is open.
    open: bool,
    /// The annotations that are kept, and sent.
    selection: Selection,
    /// Those that all Pods have been read with.
    covered: Option<Selection>,
    /// Of the changes of that reading, those that the stream has not been given yet.
    owed: HashSet<WorkloadId>,
}

/// Another stream has begun.
struct Superseded;

impl Store {
    /// How many workloads there are.
    pub fn len(&self) -> usize {
        self.inner.lock().workloads.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Everything, as a stream has to begin, and the stream's generation. Nothing counts as untold after it, and the streams
    /// before it are told nothing more.
    pub fn begin(&self) -> (Vec<Arc<Workload>>, u64) {
        let begun = {
            let mut inner = self.inner.lock();
            inner.changed.clear();
            inner.owed.clear();
            inner.beginning = true;
            inner.generation += 1;
            inner.open = true;
            (inner.workloads.values().cloned().collect(), inner.generation)
        };
        self.changed.notify_waiters();
        begun
    }

    /// The stream of this generation has been given everything that [`Self::begin`] returned.
    pub fn has_begun(&self, generation: u64) {
        let mut inner = self.inner.lock();
        if inner.generation == generation {
            inner.beginning = false;
        }
    }

    /// The stream is over. There is one at a time.
    pub fn ended(&self) {
        self.inner.lock().open = false;
    }

    /// Whether Pods are read with all that this selects.
    pub fn selects(&self, selection: &Selection) -> bool {
        self.inner.lock().selection.covers(selection)
    }

    /// From now on these annotations are kept and sent, and no others. What has been read without them has to be read again.
    pub fn select(&self, selection: Selection) {
        let mut inner = self.inner.lock();
        let Inner { workloads, changed, .. } = &mut *inner;
        for (id, workload) in workloads {
            if workload.annotations.keys().any(|key| !selection.admits(key)) {
                Arc::make_mut(workload).annotations.retain(|key, _| selection.admits(key));
                changed.insert(id.clone());
            }
        }
        inner.selection = selection;
        drop(inner);
        self.changed.notify_one();
    }

    /// All Pods have been read with these annotations.
    pub fn covers(&self, selection: &Selection) {
        let mut inner = self.inner.lock();
        if inner.covered.as_ref() != Some(selection) {
            inner.owed = inner.changed.iter().cloned().collect();
            inner.covered = Some(selection.clone());
        }
    }

    /// Whether a rule that names these annotations finds them at the manager: all Pods have been read with them, and the stream, if
    /// there is one, has been given what came of that. Otherwise the rule would take them for absent.
    pub fn tells(&self, keys: impl Iterator<Item = String>) -> bool {
        let mut keys = keys.peekable();
        if keys.peek().is_none() {
            return true;
        }
        let inner = self.inner.lock();
        let Some(covered) = &inner.covered else { return false };
        covered.covers(&covered.with(keys)) && (inner.owed.is_empty() && !inner.beginning || !inner.open)
    }

    /// The next change for the stream of this generation; waits for one. `None` when another stream has begun. Dropping the
    /// future loses nothing.
    pub async fn next_change(&self, generation: u64) -> Option<Message> {
        loop {
            match self.take_change(generation) {
                Ok(Some(message)) => return Some(message),
                Ok(None) => self.changed.notified().await,
                Err(Superseded) => {
                    // What has woken this stream was meant for the other one.
                    self.changed.notify_one();
                    return None;
                }
            }
        }
    }

    fn take_change(&self, generation: u64) -> Result<Option<Message>, Superseded> {
        let mut inner = self.inner.lock();
        if inner.generation != generation {
            return Err(Superseded);
        }
        let Some(id) = inner.changed.pop_first() else { return Ok(None) };
        inner.owed.remove(&id);
        Ok(Some(match inner.workloads.get(&id) {
            Some(workload) => Message::WorkloadUpdate(workload_wire::update(workload)),
            None => Message::WorkloadDelete(workload_wire::delete(&id)),
        }))
    }

    fn set(&self, mut workload: Workload) {
        let mut inner = self.inner.lock();
        workload.annotations.retain(|key, _| inner.selection.admits(key));
        // Most changes of a Pod concern nothing that a workload has.
        if inner.workloads.get(&workload.id).is_some_and(|known| **known == workload) {
            return;
        }
        inner.changed.insert(workload.id.clone());
        inner.workloads.insert(workload.id.clone(), Arc::new(workload));
        drop(inner);
        self.changed.notify_one();
    }

    fn remove(&self, id: &WorkloadId) {
        let mut inner = self.inner.lock();
        if inner.workloads.remove(id).is_some() {
            inner.changed.insert(id.clone());
            drop(inner);
            self.changed.notify_one();
        }
    }

    /// Takes in a watch of Pods, of one namespace or of all. Its first list decides about what other watches of the same
    /// namespaces have told before.
    pub fn pods(self: &Arc<Self>, namespace: Option<String>) -> impl FnMut(Event<Pod>) + Send + use<> {
        let (this, store) = (self.clone(), self.clone());
        let feed = Feed::new(move |change: Change<Pod>| match change {
            Change::Applied(pod) => store.apply(pod),
            Change::Gone { uid, .. } => {
                if let Ok(id) = WorkloadId::new(&uid) {
                    store.remove(&id);
                }
            }
        });
        let mut first = Some(HashSet::new());
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

    /// Forgets the workloads of all other namespaces.
    pub fn keep_namespaces(&self, namespaces: &BTreeSet<String>) {
        let gone: Vec<WorkloadId> = {
            let inner = self.inner.lock();
            let others = inner.workloads.values().filter(|w| !namespaces.contains(&w.resource_namespace));
            others.map(|w| w.id.clone()).collect()
        };
        for id in &gone {
            self.remove(id);
        }
    }

    /// A Pod exists. It may be no workload any more, because it has ended.
    fn apply(&self, pod: Pod) {
        let Some(id) = id(&pod) else { return };
        match workload(pod) {
            Some(workload) => self.set(workload),
            None => self.remove(&id),
        }
    }

    /// A list is complete: what it doesn't show is gone.
    fn retain(&self, namespace: Option<&str>, listed: &HashSet<WorkloadId>) {
        let gone: Vec<WorkloadId> = {
            let inner = self.inner.lock();
            let ours =
                inner.workloads.values().filter(|w| namespace.is_none_or(|n| n == w.resource_namespace));
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

    fn annotations(store: &Store) -> Vec<(String, Vec<String>)> {
        let inner = store.inner.lock();
        let mut all: Vec<_> = inner
            .workloads
            .values()
            .map(|w| (w.id.to_string(), w.annotations.keys().cloned().collect::<Vec<_>>()))
            .collect();
        all.sort();
        all
    }

    #[test]
    fn annotations_are_kept_as_they_are_selected() {
        let store = Arc::new(Store::default());
        let keys = |keys: &[&str]| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
        let pods = [annotated("a", &[("x", "1"), ("y", "2")]), annotated("b", &[("z", "3")])];
        let read = |store: &Arc<Store>| {
            let mut sink = store.pods(None);
            pods.iter().for_each(|pod| sink(Event::Applied(pod.clone())));
        };
        read(&store);
        assert_eq!(annotations(&store), [("a".into(), vec![]), ("b".into(), vec![])]);
        synced(&store);
        // More are named: Pods are read again, and those that have them are told.
        assert!(!store.selects(&selection(&["x"])));
        assert!(!store.tells(keys(&["x"]).into_iter()));
        store.select(selection(&["x"]));
        read(&store);
        assert!(!store.tells(keys(&["x"]).into_iter()), "maybe not all have been read");
        store.covers(&selection(&["x"]));
        assert!(!store.tells(keys(&["x"]).into_iter()), "the stream has not been given it");
        assert_eq!(annotations(&store), [("a".into(), keys(&["x"])), ("b".into(), vec![])]);
        assert_eq!(told(&store), Some(("update", "a".into())));
        assert_eq!(told(&store), None, "and nobody else");
        assert!(store.tells(keys(&["x"]).into_iter()) && !store.tells(keys(&["x", "y"]).into_iter()));
        // Fewer are.
        store.select(selection(&[]));
        assert_eq!(annotations(&store), [("a".into(), vec![]), ("b".into(), vec![])]);
        assert_eq!(told(&store), Some(("update", "a".into())));
        assert_eq!(told(&store), None);
    }

    #[test]
    fn a_rule_does_not_wait_for_a_stream_that_is_not_there() {
        let store = Arc::new(Store::default());
        begun(&store);
        store.select(selection(&["x"]));
        store.pods(None)(Event::Applied(annotated("a", &[("x", "1")])));
        store.covers(&selection(&["x"]));
        let tells = || store.tells(["x".to_owned()].into_iter());
        assert!(!tells());
        store.ended();
        assert!(tells());
        begun(&store);
        assert!(tells());
    }

    fn begun(store: &Store) {
        let generation = store.begin().1;
        store.has_begun(generation);
    }

    fn synced(store: &Store) -> Vec<String> {
        let (workloads, generation) = store.begin();
        store.has_begun(generation);
        let mut ids: Vec<_> = workloads.iter().map(|workload| workload.id.to_string()).collect();
        ids.sort();
        ids
    }

    fn told(store: &Store) -> Option<(&'static str, String)> {
        let generation = store.inner.lock().generation;
        Some(match store.take_change(generation).ok()?? {
            Message::WorkloadUpdate(u) => ("update", u.workload_metadata?.id),
            Message::WorkloadDelete(d) => ("delete", d.workload_metadata?.id),
            _ => return None,
        })
    }

    #[test]
    fn changes_coalesce_and_a_sync_tells_all() {
        let store = Arc::new(Store::default());
        let mut sink = store.pods(None);
        for phase in ["Pending", "Running", "Running"] {
            sink(Event::Applied(pod("a", "x", phase)));
        }
        sink(Event::Applied(pod("b", "x", "Running")));
        sink(Event::Deleted(pod("b", "x", "Running")));
        assert_eq!(told(&store), Some(("update", "a".into())));
        assert_eq!(told(&store), Some(("delete", "b".into())));
        assert_eq!(told(&store), None);
        sink(Event::Applied(pod("c", "x", "Running")));
        assert_eq!(synced(&store), ["a", "c"]);
        assert_eq!(told(&store), None, "the sync told it");
        sink(Event::Applied(pod("c", "x", "Succeeded")));
        assert_eq!(told(&store), Some(("delete", "c".into())));
    }

    #[test]
    fn a_new_list_removes_only_what_it_is_about() {
        let store = Arc::new(Store::default());
        let (mut x, mut y) = (store.pods(Some("x".into())), store.pods(Some("y".into())));
        x(Event::Applied(pod("a", "x", "Running")));
        x(Event::Applied(pod("b", "x", "Running")));
        y(Event::Applied(pod("c", "y", "Running")));
        x(Event::ListStarted);
        x(Event::Listed(pod("b", "x", "Running")));
        assert_eq!(synced(&store), ["a", "b", "c"], "a list that isn't complete removes nothing");
        x(Event::ListCompleted { version: 0 });
        assert_eq!(synced(&store), ["b", "c"]);
    }

    #[tokio::test]
    async fn a_waiting_stream_wakes() {
        let store = Arc::new(Store::default());
        let waiting = tokio::spawn({
            let store = store.clone();
            async move { store.next_change(0).await }
        });
        tokio::task::yield_now().await;
        store.pods(None)(Event::Applied(pod("a", "x", "Running")));
        assert!(waiting.await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_stream_that_another_has_replaced_takes_no_changes() {
        let store = Arc::new(Store::default());
        let waiting = |generation| {
            let store = store.clone();
            tokio::spawn(async move { store.next_change(generation).await })
        };
        let (_, old) = store.begin();
        let before = waiting(old);
        tokio::task::yield_now().await;
        let (_, new) = store.begin();
        assert!(before.await.unwrap().is_none(), "it ends");
        // One that waits late is not the one that is woken in vain.
        let (late, current) = (waiting(old), waiting(new));
        tokio::task::yield_now().await;
        store.pods(None)(Event::Applied(pod("a", "x", "Running")));
        assert!(late.await.unwrap().is_none());
        assert!(current.await.unwrap().is_some());
    }
}
