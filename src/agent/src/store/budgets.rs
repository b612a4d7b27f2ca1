//! Tests of the groups of workloads: of their owners and of PodDisruptionBudgets.

use outrigger_core::workload::DisruptionGroup;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::pod::owner_group;

fn pod(uid: &str, namespace: &str, app: &str, owner: Option<&str>) -> Pod {
    let mut pod =
        json!({"metadata": {"name": uid, "namespace": namespace, "uid": uid, "labels": {"app": app}}});
    if let Some(owner) = owner {
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": owner, "controller": true}]);
    }
    serde_json::from_value(pod).unwrap()
}

fn budget(uid: &str, namespace: &str, selector: &Value, desired: u32, current: u32) -> PodDisruptionBudget {
    serde_json::from_value(json!({"metadata": {"name": uid, "namespace": namespace, "uid": uid},
        "spec": {"selector": selector},
        "status": {"currentHealthy": current, "desiredHealthy": desired, "disruptionsAllowed": 0, "expectedPods": 3}}))
    .unwrap()
}

fn app(app: &str) -> Value {
    json!({"matchLabels": {"app": app}})
}

fn groups(store: &WorkloadStore, id: &str) -> Vec<DisruptionGroup> {
    store.state.lock().workloads[&crate::tests::id(id)].groups.clone()
}

fn shown(store: &WorkloadStore, id: &str) -> Vec<(String, Option<u32>)> {
    groups(store, id).into_iter().map(|group| (group.id.to_string(), group.desired_healthy)).collect()
}

/// The workloads that are sent next.
fn sent(store: &WorkloadStore) -> Vec<String> {
    let generation = store.state.lock().generation;
    let mut sent = Vec::new();
    while let Ok(Some(Message::WorkloadUpdate(update))) = store.take_change(generation) {
        sent.push(update.workload_metadata.unwrap().id);
    }
    sent
}

#[test]
fn a_budget_sends_the_workloads_of_its_namespace_that_it_selects() {
    let store = Arc::new(WorkloadStore::default());
    let (mut pods, mut budgets) = (store.pods(None), store.budgets(None));
    for pod in [
        pod("a", "x", "web", Some("r")),
        pod("b", "x", "web", None),
        pod("c", "x", "db", None),
        pod("d", "y", "web", None),
    ] {
        pods(Event::Applied(pod));
    }
    assert_eq!(sent(&store), ["a", "b", "c", "d"]);
    let owner = (owner_group("x", "r"), None);
    assert_eq!(shown(&store, "a"), std::slice::from_ref(&owner));
    budgets(Event::Applied(budget("p", "x", &app("web"), 2, 0)));
    assert_eq!(sent(&store), ["a", "b"]);
    assert_eq!(shown(&store, "a"), [owner.clone(), ("p".to_owned(), Some(2))]);
    budgets(Event::Applied(budget("p", "x", &app("web"), 2, 3)));
    assert!(sent(&store).is_empty(), "currentHealthy isn't sent");
    budgets(Event::Applied(budget("p", "x", &app("web"), 1, 3)));
    assert_eq!(sent(&store), ["a", "b"]);
    budgets(Event::Applied(budget("p", "x", &app("db"), 1, 3)));
    assert_eq!(sent(&store), ["a", "b", "c"]);
    assert_eq!(shown(&store, "a"), std::slice::from_ref(&owner));
    pods(Event::Applied(pod("a", "x", "db", Some("r"))));
    assert_eq!(shown(&store, "a"), [owner.clone(), ("p".to_owned(), Some(1))], "its labels have changed");
    assert_eq!(sent(&store), ["a"]);
    budgets(Event::Deleted(budget("p", "x", &app("db"), 1, 3)));
    assert_eq!(sent(&store), ["a", "c"]);
    assert_eq!(shown(&store, "a"), [owner]);
    pods(Event::Deleted(pod("d", "y", "web", None)));
    assert_eq!(store.state.lock().namespaces.keys().collect::<Vec<_>>(), ["x"]);
}

#[test]
fn a_first_list_removes_the_budgets_of_earlier_watches() {
    let store = Arc::new(WorkloadStore::default());
    store.pods(None)(Event::Applied(pod("a", "x", "web", None)));
    store.budgets(None)(Event::Applied(budget("p", "x", &app("web"), 2, 0)));
    let mut later = store.budgets(Some("x".to_owned()));
    later(Event::ListStarted);
    assert_eq!(shown(&store, "a").len(), 1, "it stays until the list is complete");
    later(Event::ListCompleted { version: 0 });
    assert!(shown(&store, "a").is_empty());
    later(Event::Applied(budget("p", "x", &app("web"), 2, 0)));
    store.keep_namespaces(&BTreeSet::from(["y".to_owned()]));
    store.pods(None)(Event::Applied(pod("a", "x", "web", None)));
    assert!(shown(&store, "a").is_empty(), "the namespace was left");
}

/// An event of a Pod or of a budget, one of a few.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    Pod(usize, Option<(usize, Option<usize>)>),
    Budget(usize, Option<(Value, u32, u32)>),
}

const APPS: [&str; 2] = ["web", "db"];
const NAMESPACES: [&str; 2] = ["x", "y"];

fn step() -> impl Strategy<Value = Step> {
    let selector = prop_oneof![
        Just(json!({})),
        Just(Value::Null),
        Just(app("web")),
        Just(json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]})),
        Just(json!({"matchExpressions": [{"key": "app", "operator": "Other"}]})),
    ];
    prop_oneof![
        (0..6_usize, proptest::option::of((0..2_usize, proptest::option::of(0..2_usize))))
            .prop_map(|(at, state)| Step::Pod(at, state)),
        (0..20_usize, proptest::option::of((selector, 0..3_u32, 0..3_u32)))
            .prop_map(|(at, state)| Step::Budget(at, state)),
    ]
}

fn make(step: &Step) -> (Option<Pod>, Option<PodDisruptionBudget>) {
    match step {
        Step::Pod(at, state) => {
            let (label, owner) = state.unwrap_or_default();
            let owner = owner.map(|owner| ["r", "s"][owner]);
            (Some(pod(&format!("a{at}"), NAMESPACES[at % 2], APPS[label], owner)), None)
        }
        Step::Budget(at, state) => {
            let (selector, desired, current) = state.clone().unwrap_or_default();
            (None, Some(budget(&format!("p{at:02}"), NAMESPACES[at % 2], &selector, desired, current)))
        }
    }
}

fn play(store: &Arc<WorkloadStore>, steps: &[Step], mut after: impl FnMut(&Step)) {
    let (mut pods, mut budgets) = (store.pods(None), store.budgets(None));
    for step in steps {
        let applied = matches!(step, Step::Pod(_, Some(_)) | Step::Budget(_, Some(_)));
        match make(step) {
            (Some(pod), _) => pods(if applied { Event::Applied(pod) } else { Event::Deleted(pod) }),
            (_, Some(budget)) => {
                budgets(if applied { Event::Applied(budget) } else { Event::Deleted(budget) });
            }
            _ => {}
        }
        after(step);
    }
}

fn all_groups(store: &WorkloadStore) -> BTreeMap<String, Vec<DisruptionGroup>> {
    let state = store.state.lock();
    state.workloads.iter().map(|(id, workload)| (id.to_string(), workload.groups.clone())).collect()
}

proptest! {
    /// Groups are a function of the Pods and budgets that exist, whatever happened before; and a workload is sent exactly when it changes.
    #[test]
    fn groups_follow_from_what_exists(steps in proptest::collection::vec(step(), 0..60)) {
        let store = Arc::new(WorkloadStore::default());
        let mut before = BTreeMap::new();
        let mut wrong = None;
        play(&store, &steps, |step| {
            let now = all_groups(&store);
            if let Step::Budget(..) = step {
                let expected: Vec<_> =
                    now.iter().filter(|(id, groups)| before.get(*id) != Some(*groups)).map(|(id, _)| id.clone()).collect();
                let sent = sent(&store);
                if sent != expected {
                    wrong = Some((step.clone(), sent, expected));
                }
            } else {
                store.state.lock().changed.clear(&store.board);
            }
            before = now;
        });
        prop_assert_eq!(wrong, None);
        // Only the last state of each, budgets first.
        let mut last: BTreeMap<(bool, usize), Step> = BTreeMap::new();
        for step in &steps {
            let key = match step { Step::Pod(at, _) => (true, *at), Step::Budget(at, _) => (false, *at) };
            last.insert(key, step.clone());
        }
        let other = Arc::new(WorkloadStore::default());
        play(&other, &last.into_values().collect::<Vec<_>>(), |_| {});
        prop_assert_eq!(all_groups(&store), all_groups(&other));
        prop_assert!(before.values().all(|groups| groups.len() <= outrigger_core::workload::MAX_GROUPS));
    }
}
