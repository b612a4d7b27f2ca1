//! Tests of the workloads and their changes.

use serde_json::json;

use super::*;
use crate::annotations::Allowed;
use crate::tests::{id, object};

fn pod(uid: &str, namespace: &str, phase: &str) -> Pod {
    object(json!({"metadata": {"uid": uid, "name": uid, "namespace": namespace}, "status": {"phase": phase}}))
}

fn selection(named: &[&str]) -> Selection {
    let named = named.iter().map(ToString::to_string).collect();
    Selection::new(&Allowed::default(), named, &BTreeSet::new())
}

fn annotated(uid: &str, annotations: &[(&str, &str)]) -> Pod {
    let annotations = annotations.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
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

/// A watch reads these Pods.
fn read(store: &Arc<WorkloadStore>, pods: &[Pod]) {
    let mut sink = store.pods(None);
    pods.iter().for_each(|pod| sink(Event::Applied(pod.clone())));
}

#[test]
fn only_selected_annotations_are_kept() {
    let store = Arc::new(WorkloadStore::default());
    let keys = |keys: &[&str]| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
    let pods = [annotated("a", &[("x", "1"), ("y", "2")]), annotated("b", &[("z", "3")])];
    read(&store, &pods);
    assert_eq!(annotations(&store), [("a".into(), vec![]), ("b".into(), vec![])]);
    synced(&store);
    // More annotations are selected: Pods are read again, and those that have them are sent.
    assert!(!store.selects(&selection(&["x"])));
    assert!(!store.has_sent_annotations(keys(&["x"]).into_iter()));
    store.select(selection(&["x"]));
    read(&store, &pods);
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

/// What the next update says of annotations, and of which workload it is.
fn said(store: &WorkloadStore) -> Option<(String, Option<Vec<String>>)> {
    let generation = store.state.lock().generation;
    let Message::WorkloadUpdate(update) = store.take_change(generation).ok()?? else { return None };
    Some((update.workload_metadata?.id, update.annotation_keys.map(|keys| keys.sent)))
}

#[test]
fn the_manager_is_informed_of_annotations_when_it_has_them_and_before_it_loses_them() {
    let store = Arc::new(WorkloadStore::default());
    let keys = |keys: &[&str]| Some(keys.iter().map(ToString::to_string).collect::<Vec<_>>());
    let pods = [annotated("a", &[("x", "1")]), annotated("b", &[("x", "2")]), annotated("c", &[])];
    store.select(selection(&["y"]));
    read(&store, &pods);
    store.set_complete(&selection(&["y"]));
    let Started { workloads, keys: said_first, generation, .. } = store.start_stream();
    store.sync_complete(generation);
    assert_eq!((workloads.len(), said_first.map(|keys| keys.sent)), (3, keys(&["y"])));
    assert_eq!(said(&store), None, "it has been said");
    // One more: the last workload that has it says so, and not the first.
    store.select(selection(&["x", "y"]));
    read(&store, &pods[..1]);
    assert_eq!(said(&store), Some(("a".into(), None)), "not all have been read");
    read(&store, &pods[1..]);
    store.set_complete(&selection(&["x", "y"]));
    assert_eq!(said(&store), Some(("b".into(), keys(&["x", "y"]))));
    assert_eq!(said(&store), None);
    // One that no workload has: any says so.
    store.select(selection(&["x", "y", "z"]));
    read(&store, &pods);
    store.set_complete(&selection(&["x", "y", "z"]));
    assert_eq!(said(&store).map(|(_, keys)| keys), Some(keys(&["x", "y", "z"])));
    // One less: the first workload that loses it says so.
    store.select(selection(&["y", "z"]));
    assert_eq!(said(&store), Some(("a".into(), keys(&["y", "z"]))));
    assert_eq!(said(&store), Some(("b".into(), None)));
    // It is selected again, and not all Pods have been read again.
    store.select(selection(&["x", "y", "z"]));
    read(&store, &pods[..1]);
    assert_eq!(said(&store), Some(("a".into(), None)));
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
    let generation = store.start_stream().generation;
    store.sync_complete(generation);
}

fn synced(store: &WorkloadStore) -> Vec<String> {
    let Started { workloads, generation, .. } = store.start_stream();
    store.sync_complete(generation);
    let mut ids: Vec<_> = workloads.iter().map(|workload| workload.id.to_string()).collect();
    ids.sort();
    ids
}

fn next(store: &WorkloadStore) -> Option<(&'static str, String)> {
    let generation = store.state.lock().generation;
    Some(match store.take_change(generation).ok()?? {
        Message::WorkloadUpdate(u) => {
            let omits = u.workload_state.is_some_and(|state| state.omitted_bytes > 0);
            (if omits { "too large" } else { "update" }, u.workload_metadata?.id)
        }
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
    let old = store.start_stream().generation;
    let before = waiting(old);
    tokio::task::yield_now().await;
    let new = store.start_stream().generation;
    assert!(before.await.unwrap().is_none(), "it ends");
    // A superseded stream that waits later does not consume the notification.
    let (late, current) = (waiting(old), waiting(new));
    tokio::task::yield_now().await;
    store.pods(None)(Event::Applied(pod("a", "x", "Running")));
    assert!(late.await.unwrap().is_none());
    assert!(current.await.unwrap().is_some());
}

#[test]
fn the_board_learns_when_a_pod_is_sent() {
    let store = Arc::new(WorkloadStore::default());
    let mut sink = store.pods(None);
    let is_sent = || store.board.is_sent(&id("a"));
    sink(Event::Applied(pod("a", "x", "Pending")));
    assert!(!is_sent());
    assert_eq!(next(&store), Some(("update", "a".into())));
    assert!(is_sent());
    sink(Event::Applied(pod("a", "x", "Pending")));
    assert!(is_sent(), "nothing is new");
    let mut labelled = pod("a", "x", "Pending");
    labelled.metadata.labels = Some([("app".to_owned(), "shop".to_owned())].into());
    sink(Event::Applied(labelled));
    assert!(!is_sent());
    started(&store);
    assert!(is_sent(), "the sync includes it");
}

#[test]
fn of_a_pod_that_is_too_large_is_only_said_that_it_exists_until_it_is_smaller() {
    let store = Arc::new(WorkloadStore::default());
    let mut sink = store.pods(None);
    let mut labelled = |uid: &str, labels: usize| {
        let mut pod = pod(uid, "x", "Running");
        pod.metadata.labels = Some((0..labels).map(|i| (i.to_string(), String::new())).collect());
        sink(Event::Applied(pod));
    };
    labelled("a", 10);
    labelled("b", 70_000);
    assert_eq!(synced(&store), ["a", "b"]);
    let Started { workloads, too_large, .. } = store.start_stream();
    let b = workloads.iter().find(|workload| workload.id.as_str() == "b").unwrap();
    let state = message(b, &too_large).workload_state.unwrap();
    assert!(state.extra.is_empty() && state.omitted_bytes > 70_000 * 64, "{state:?}");
    // One that is served isn't deleted.
    labelled("a", 70_000);
    assert_eq!(next(&store), Some(("too large", "a".into())));
    labelled("a", 70_000);
    assert_eq!(next(&store), None);
    labelled("b", 0);
    assert_eq!((next(&store), next(&store)), (Some(("update", "b".into())), None));
    // The Pod itself is gone.
    store.remove(&id("a"));
    assert_eq!(next(&store), Some(("delete", "a".into())));
    assert_eq!(synced(&store), ["b"]);
    assert!(store.state.lock().too_large.is_empty());
}

#[test]
fn a_pod_that_is_too_large_is_read_again_with_fewer_annotations_and_forgotten_with_its_namespace() {
    let store = Arc::new(WorkloadStore::default());
    store.select(selection(&["x", "y"]));
    let large = annotated("a", &[("x", &"1".repeat(200 << 10)), ("y", &"2".repeat(200 << 10))]);
    store.pods(None)(Event::Applied(large.clone()));
    assert_eq!(store.start_stream().too_large.len(), 1);
    assert!(store.selects(&selection(&["x", "y"])), "it would be as large");
    assert!(!store.selects(&selection(&["x"])));
    store.select(selection(&["x"]));
    store.pods(None)(Event::Applied(large.clone()));
    assert_eq!(next(&store), Some(("update", "a".into())));
    assert!(store.selects(&selection(&[])), "none is too large");
    store.select(selection(&["x", "y"]));
    store.pods(None)(Event::Applied(large));
    assert_eq!(next(&store), Some(("too large", "a".into())));
    store.keep_namespaces(&BTreeSet::new());
    assert!(store.state.lock().too_large.is_empty());
}
