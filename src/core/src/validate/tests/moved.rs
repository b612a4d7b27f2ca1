//! What was wrong before an update is excused wherever it stands.

use super::*;
use proptest::prelude::*;

/// The Pod with an entry before all others of a list.
fn first(pod: &Value, pointer: &str, entry: &Value) -> Value {
    let mut pod = pod.clone();
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    let list = &mut pod.pointer_mut(parent).unwrap()[last];
    let others = list.as_array().cloned().unwrap_or_default();
    *list = std::iter::once(entry.clone()).chain(others).collect();
    pod
}

/// Lists, with an entry that is refused, another one of the same kind, and one that is allowed.
fn entries() -> Vec<(&'static str, Value, Value, Value)> {
    let term = |topology: &str, namespace: &str| json!({"topologyKey": topology, "namespaces": [namespace]});
    let rule = |uid: &str| json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule", "name": "r", "uid": uid});
    let debugger = |name: &str, privileged: bool| json!({"name": name, "image": "i", "securityContext": {"privileged": privileged}});
    let node =
        |name: &str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
    vec![
        (
            "/metadata/finalizers",
            json!("x.example/a"),
            json!("x.example/b"),
            json!("batch.kubernetes.io/job-tracking"),
        ),
        (
            "/metadata/ownerReferences",
            rule("u"),
            rule("v"),
            json!({"apiVersion": "v1", "kind": "Node", "name": "n"}),
        ),
        (
            "/spec/tolerations",
            json!({"operator": "Exists", "effect": "NoExecute"}),
            json!({"operator": "Exists"}),
            json!({"key": "a", "operator": "Exists"}),
        ),
        (
            "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms",
            node("a"),
            node("b"),
            json!({}),
        ),
        (
            "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution",
            term("a", "kube-system"),
            term("b", "kube-system"),
            term("a", "tenant-blue"),
        ),
        ("/spec/ephemeralContainers", debugger("a", true), debugger("b", true), debugger("c", false)),
        (
            "/spec/volumes",
            json!({"name": "a", "hostPath": {"path": "/"}}),
            json!({"name": "b", "hostPath": {"path": "/"}}),
            json!({"name": "c", "emptyDir": {}}),
        ),
        (
            "/spec/resourceClaims",
            json!({"name": "a", "resourceClaimName": "theirs"}),
            json!({"name": "b", "resourceClaimName": "theirs"}),
            json!({"name": "c", "resourceClaimName": "mine"}),
        ),
        (
            "/spec/containers/0/securityContext/capabilities/add",
            json!("SYS_ADMIN"),
            json!("NET_ADMIN"),
            json!("KILL"),
        ),
        (
            "/spec/containers/0/ports",
            json!({"containerPort": 1, "hostPort": 1}),
            json!({"containerPort": 2, "hostPort": 1}),
            json!({"containerPort": 3}),
        ),
    ]
}

#[test]
fn an_entry_that_was_wrong_before_is_excused_wherever_it_stands() {
    let judge = |new: &Value, old: &Value| check(&policy(), false, new, Some(old)).len();
    for (list, bad, other, good_entry) in entries() {
        let old = first(&first(&good(), list, &bad), list, &good_entry);
        let moved = first(&good(), list, &bad);
        assert_eq!(judge(&moved, &old), 0, "{list}: the entry before it is removed");
        assert_eq!(judge(&old, &moved), 0, "{list}: an entry comes before it");
        assert_eq!(judge(&first(&moved, list, &bad), &moved), 1, "{list}: the same again");
        assert_eq!(judge(&first(&moved, list, &other), &moved), 1, "{list}: another one before it");
        let instead = first(&good(), list, &other);
        assert_eq!(judge(&instead, &moved), 1, "{list}: another one in its place");
    }
}

#[test]
fn a_container_that_was_wrong_before_is_the_one_of_its_name() {
    let privileged = with(&good(), "/spec/containers/0/securityContext/privileged", json!(true));
    let updated = with(&privileged, "/spec/containers/0/image", json!("i:2"));
    assert_eq!(check(&policy(), false, &updated, Some(&privileged)), []);
    let renamed = with(&privileged, "/spec/containers/0/name", json!("d"));
    assert_eq!(check(&policy(), false, &renamed, Some(&privileged)).len(), 1);
}

/// The value with the entries of all its lists moved.
fn moved(value: &Value, by: usize) -> Value {
    match value {
        Value::Array(list) if !list.is_empty() => {
            let mut list: Vec<Value> = list.iter().map(|entry| moved(entry, by)).collect();
            list.rotate_left(by % value.as_array().map_or(1, Vec::len));
            list.into()
        }
        Value::Object(object) => {
            Value::Object(object.iter().map(|(key, value)| (key.clone(), moved(value, by))).collect())
        }
        other => other.clone(),
    }
}

proptest! {
    /// A Pod with any of the ways out, and with entries before them that are allowed.
    #[test]
    fn moved_entries_are_no_change(
        which in prop::sample::subsequence(entries(), 0..=10),
        allowed in prop::collection::vec(any::<bool>(), 10),
        by in 0..5_usize,
    ) {
        let mut old = good();
        for (list, bad, ..) in &which {
            old = first(&old, list, bad);
        }
        // A container is found by its name only where nobody moves it and what is in it at once.
        let mut new = json!({"metadata": moved(&old["metadata"], by), "spec": moved(&old["spec"], by)});
        for ((list, _, _, allowed), _) in entries().iter().zip(allowed).filter(|(_, wanted)| *wanted) {
            new = first(&new, list, allowed);
        }
        prop_assert_eq!(check(&policy(), false, &new, Some(&old)), []);
        for (list, _, other, _) in entries() {
            let worse = first(&new, list, &other);
            prop_assert_eq!(check(&policy(), false, &worse, Some(&old)).len(), 1, "{}", list);
        }
    }
}
