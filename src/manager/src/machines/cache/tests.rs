use outrigger_runtime::watch::Event;
use serde_json::{Value, json};

use super::*;
use crate::fixtures;

fn machine(name: &str, group: &str, created: &str) -> Machine {
    fixtures::object(json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": name, "uid": name, "creationTimestamp": created, "labels": {keys::MACHINE_GROUP: group}},
        "spec": {"nodePool": [{"name": "n", "mode": "ready", "machineType": [{"name": "t"}]},
                {"name": "m", "mode": "maintenance", "machineType": [{"name": "t"}]}],
            "machineTypes": [{"name": "t", "spec": {"cpu": "1", "memory": "1Gi"}, "available": 4}]}}))
}

fn pool(group: &str, created: &str, nodes: &[&str]) -> MachineNodePool {
    let nodes: Vec<Value> = nodes
        .iter()
        .map(|name| json!({"name": name, "mode": "ready", "machineType": [{"name": "t"}]}))
        .collect();
    fixtures::object(json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "MachineNodePool",
        "metadata": {"name": pool_name(group), "creationTimestamp": created, "generation": nodes.len(),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Machine", "name": group, "uid": group, "controller": true}]},
        "spec": {"machineGroupName": group, "nodePool": nodes, "machineTypeStock": []}}))
}

fn node(name: &str, version: u32, taints: Value) -> Node {
    fixtures::object(json!({"metadata": {"name": name, "uid": name, "resourceVersion": version.to_string()},
        "spec": {"taints": taints}}))
}

fn pod(namespace: &str, name: &str, role: &str, node: Option<&str>) -> Pod {
    fixtures::object(json!({"metadata": {"name": name, "namespace": namespace,
            "labels": {keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "t", keys::POD_ROLE: role},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "g-t", "uid": "s", "controller": true}]},
        "spec": {"nodeName": node, "containers": []}, "status": {"phase": "Pending"}}))
}

fn guests_home() -> PartialObjectMeta<Namespace> {
    let labels = json!({keys::INJECT_RESOURCE: keys::INJECT_ENABLED});
    fixtures::object(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"labels": labels}}))
}

/// The Node exists and looks like this.
fn show(cache: &MachineCache, node: &Node) -> Vec<Key> {
    cache.node(&node.name_any(), Some(node))
}

const EARLY: &str = "2026-01-01T00:00:00Z";
const LATE: &str = "2026-01-02T00:00:00Z";

fn gone<K>(namespace: &str, name: &str) -> Change<K> {
    Change::Gone { namespace: namespace.to_owned(), name: name.to_owned(), uid: String::new() }
}

fn m(name: &str) -> Key {
    Key::Machine(name.into())
}

fn p(group: &str) -> Key {
    Key::Pool(pool_name(group).into())
}

#[test]
fn who_was_first_has_the_group_and_the_node_and_the_next_is_reported_when_it_goes() {
    let cache = MachineCache::new("core");
    cache.machine(Change::Applied(machine("b", "g", LATE)));
    assert_eq!(cache.machine(Change::Applied(machine("a", "g", LATE))).keys, [m("a"), m("b")]);
    assert_eq!(cache.first_of("g").as_deref(), Some("a"), "of the same age: by name");
    cache.machine(Change::Applied(machine("c", "g", EARLY)));
    assert_eq!(cache.first_of("g").as_deref(), Some("c"));
    assert_eq!(cache.machine(gone("", "c")).keys, [m("a"), m("b"), m("c")]);
    assert_eq!(cache.first_of("other"), None);

    cache.pool(Change::Applied(pool("young", LATE, &["n", "o"])));
    assert_eq!(cache.owner_of("n").as_deref(), Some("young-node-pool"));
    let touched = cache.pool(Change::Applied(pool("old", EARLY, &["n"]))).keys;
    assert_eq!(touched, [m("old"), p("old"), p("young")]);
    assert_eq!(cache.owner_of("n").as_deref(), Some("old-node-pool"));
    assert_eq!(cache.pool(Change::Applied(pool("old", EARLY, &[]))).keys, [m("old"), p("old"), p("young")]);
    assert_eq!(cache.owner_of("n").as_deref(), Some("young-node-pool"));
    cache.pool(gone("", "young-node-pool"));
    assert_eq!((cache.owner_of("n"), cache.owner_of("o")), (None, None));
}

#[test]
fn a_node_concerns_its_pool_when_something_of_it_matters() {
    let cache = MachineCache::new("core");
    cache.pool(Change::Applied(pool("g", EARLY, &["n"])));
    assert_eq!(show(&cache, &node("other", 1, json!([]))), []);
    assert_eq!(show(&cache, &node("n", 1, json!([]))), [m("g"), p("g")]);
    assert_eq!(show(&cache, &node("n", 3, json!([]))), [], "a heartbeat");
    let taint = json!([{"key": keys::NOT_READY[0], "effect": "NoSchedule"}]);
    assert_eq!(show(&cache, &node("n", 4, taint)), [m("g"), p("g")]);
    assert!(!cache.get(|all| &all.nodes, "n").unwrap().ready);
    assert_eq!(cache.node("n", None), [m("g"), p("g")]);
    assert!(cache.get(|all| &all.nodes, "n").is_none());
    // One that no pool has, and that still bears a pool's marks.
    let mut left = node("left", 5, json!([]));
    left.metadata.labels = Some([("imperator.tenzen-y.io/t".to_owned(), "g".to_owned())].into());
    assert_eq!(cache.node("left", Some(&left)), [m("g"), p("g")]);
    assert_eq!(cache.marked("g").len(), 1);
    assert_eq!(cache.marked("other").len(), 0);
}

#[test]
fn what_is_seen_of_a_type() {
    let cache = MachineCache::new("core");
    let object = machine("a", "g", EARLY);
    let machine = object.compile().unwrap();
    let seen = || cache.seen(&machine, "g", &machine.types[0]);
    cache.machine(Change::Applied(object));
    let empty = seen();
    assert_eq!((empty.maximum, empty.in_pool), (4, true));
    for (namespace, name, role, node) in [
        ("home", "used", "guest", Some("n")),
        ("plain", "used", "guest", Some("n")),
        ("core", "g-t-0", "reservation", Some("n")),
        ("core", "g-t-1", "reservation", Some("m")),
        ("core", "g-t-2", "reservation", None),
        ("plain", "g-t-3", "reservation", Some("n")),
    ] {
        cache.pod(Change::Applied(pod(namespace, name, role, node)));
    }
    assert_eq!(seen().used, 0, "no namespace counts yet");
    assert_eq!(cache.namespace("home", Some(&guests_home())), [m("a")]);
    assert_eq!(cache.namespace("home", Some(&guests_home())), []);
    assert_eq!((seen().used, seen().reservations.len(), seen().room), (1, 3, empty.room));
    let ready = |seen: TypeView| {
        let mut all: Vec<_> = seen.reservations.iter().map(|r| (r.ordinal, r.on_ready_node)).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(ready(seen()), [(0, false), (1, false), (2, false)], "nobody has seen the node");
    show(&cache, &node("n", 1, json!([])));
    show(&cache, &node("m", 1, json!([])));
    cache.pool(Change::Applied(pool("g", LATE, &["n", "m"])));
    assert_eq!(ready(seen()), [(0, true), (1, false), (2, false)], "m is in maintenance");
    assert_ne!(seen().room, empty.room);
    cache.pool(Change::Applied(pool("first", EARLY, &["n"])));
    assert_eq!(ready(seen()), [(0, false), (1, false), (2, false)], "another pool has n");
    assert_eq!(cache.pod(gone("home", "used")), [m("a")]);
    assert_eq!(cache.pod(gone("home", "used")), []);
    assert_eq!(seen().used, 0);
}

#[test]
fn a_status_calls_nobody_but_the_machine_of_a_pool_that_says_something_else() {
    let cache = MachineCache::new("core");
    let mut object = machine("a", "g", EARLY);
    assert_eq!(cache.machine(Change::Applied(object.clone())).keys, [m("a")]);
    object.status = Some(fixtures::object(json!({"conditions": [], "availableMachines": []})));
    assert_eq!(cache.machine(Change::Applied(object.clone())).keys, []);
    assert!(cache.get(|all| &all.machines, "a").unwrap().status.is_some());
    // What this replica has computed comes to be another: by a late request, for example.
    let status = object.status.clone().unwrap();
    cache.machine_status("a".to_owned(), status.clone());
    assert_eq!(cache.machine(Change::Applied(object.clone())), Touched::default());
    object.status = Some(MachineStatus { observed_generation: Some(7), ..status });
    let contested = |key: Key| Touched { contested: Some(key), ..Touched::default() };
    assert_eq!(cache.machine(Change::Applied(object.clone())), contested(m("a")));
    object.metadata.labels = Some([(keys::MACHINE_GROUP.to_owned(), "h".to_owned())].into());
    assert_eq!(cache.machine(Change::Applied(object.clone())).keys, [m("a")]);
    object.metadata.generation = Some(2);
    assert_eq!(cache.machine(Change::Applied(object)).keys, [m("a")]);

    let mut object = pool("g", EARLY, &["n"]);
    assert_eq!(cache.pool(Change::Applied(object.clone())).keys, [m("g"), p("g")]);
    let says = |message: &str, nodes: Value| {
        Some(fixtures::object(json!({"nodePool": nodes, "conditions": [{"type": "Ready", "status": "False",
                "reason": "Failure", "message": message, "lastTransitionTime": EARLY}]})))
    };
    object.status = says("one", json!([]));
    assert_eq!(cache.pool(Change::Applied(object.clone())).keys, [m("g")]);
    object.status = says("one", json!([{"name": "n", "condition": "Healthy"}]));
    assert_eq!(cache.pool(Change::Applied(object.clone())).keys, []);
    cache.pool_status(object.name_any(), object.status.clone().unwrap());
    object.status = says("one", json!([]));
    assert_eq!(cache.pool(Change::Applied(object.clone())), contested(p("g")));
    object.metadata.finalizers = Some(vec![keys::POOL_FINALIZER.to_owned()]);
    assert_eq!(cache.pool(Change::Applied(object)).keys, [m("g"), p("g")]);
}

#[tokio::test]
async fn what_only_lost_its_label_is_seen_again_and_an_answer_brings_nothing_back() {
    let context = fixtures::context(outrigger_runtime::fake_api::FakeApi::default().client());
    let feeds = &context.feeds;
    let set = |version: u32| -> StatefulSet {
        let metadata =
            json!({"name": "g-t", "namespace": "core", "uid": "u", "resourceVersion": version.to_string()});
        fixtures::object(json!({"metadata": metadata}))
    };
    let is_known = || context.caches.machines.get(|all| &all.sets, "g-t").is_some();
    feeds.sets.answer(set(1));
    assert!(is_known());
    feeds.sets.event(Event::Deleted(set(2)));
    feeds.sets.answer(set(1));
    assert!(!is_known(), "the answer is from before it was gone");
    feeds.sets.event(Event::Applied(set(3)));
    assert!(is_known());
}

#[test]
fn the_oldest_pool_has_the_group_and_the_next_is_reported_when_it_goes() {
    let cache = MachineCache::new("core");
    let named = |name: &str, created: &str| {
        let mut object = pool("g", created, &[]);
        object.metadata.name = Some(name.to_owned());
        object
    };
    let key = |name: &str| Key::Pool(name.into());
    cache.pool(Change::Applied(named("young", LATE)));
    assert_eq!(cache.first_pool_of("g").as_deref(), Some("young"));
    assert_eq!(cache.pool(Change::Applied(named("old", EARLY))).keys, [m("g"), key("old"), key("young")]);
    assert_eq!(cache.first_pool_of("g").as_deref(), Some("old"));
    assert_eq!(cache.pool(gone("", "old")).keys, [m("g"), key("old"), key("young")]);
    assert_eq!(cache.first_pool_of("g").as_deref(), Some("young"));
    assert_eq!(cache.first_pool_of("h"), None);
    cache.machine(Change::Applied(machine("next", "g", LATE)));
    let left = Key::Left("g".into());
    assert_eq!(cache.pool(gone("", "young")).keys, [m("g"), m("next"), key("young"), left]);
}
