//! A Machine with one type of slots, and the controller of StatefulSets, which runs its reservations.

use outrigger_core::keys;
use serde_json::{Value, json};

use super::{World, text};

/// The name of the Machine, of its group and of its type.
pub const MACHINE: &str = "small";
/// The namespace of guests.
pub const GUESTS: &str = "guests";
/// The Node of its slots. It has room for all Pods.
const NODE: &str = "slots";

/// The user that the controller of StatefulSets is.
const SETS: &str = "system:serviceaccount:kube-system:statefulset-controller";

/// The Machine's type with so many slots.
pub fn machine_types(available: u64) -> Value {
    json!([{"name": MACHINE, "available": available, "spec": {"cpu": "1", "memory": "1Gi"}}])
}

/// The Machine with so many slots.
pub fn machine(available: u64) -> Value {
    let pool = json!([{"name": NODE, "mode": "ready", "taint": true, "machineType": [{"name": MACHINE}]}]);
    json!({"metadata": {"name": MACHINE, "labels": {keys::MACHINE_GROUP: MACHINE}},
        "spec": {"nodePool": pool, "machineTypes": machine_types(available)}})
}

/// The objects of a cluster with a Machine: plural name of the kind, and object.
pub(super) fn objects() -> [(&'static str, Value); 4] {
    let labels = json!({keys::INJECT_RESOURCE: keys::INJECT_ENABLED});
    [
        ("priorityclasses", json!({"metadata": {"name": keys::RESERVATION_PRIORITY}, "value": -9})),
        ("nodes", json!({"metadata": {"name": NODE}})),
        ("namespaces", json!({"metadata": {"name": GUESTS, "labels": labels}})),
        ("machines", machine(2)),
    ]
}

impl World {
    /// The controller of StatefulSets: as many Pods as each asks for, by their numbers.
    pub(super) fn run_sets(&self) {
        for set in self.infra.list("statefulsets") {
            let (namespace, name) = (text(&set, "/metadata/namespace"), text(&set, "/metadata/name"));
            let replicas = set["spec"]["replicas"].as_u64().unwrap_or_default();
            if !set["metadata"]["deletionTimestamp"].is_null() {
                continue;
            }
            for number in (0..replicas).map(|number| format!("{name}-{number}")) {
                if self.infra.get("pods", Some(namespace), &number).is_some() {
                    continue;
                }
                let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name,
                    "uid": set["metadata"]["uid"], "controller": true});
                let mut pod = set["spec"]["template"].clone();
                pod["metadata"]["name"] = json!(number);
                pod["metadata"]["namespace"] = json!(namespace);
                pod["metadata"]["ownerReferences"] = json!([owner]);
                let _ = self.infra.create(SETS, "pods", pod);
            }
            for pod in self.infra.list("pods") {
                let number =
                    text(&pod, "/metadata/name").strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
                let number = number.and_then(|number| number.parse::<u64>().ok());
                if text(&pod, "/metadata/ownerReferences/0/uid") == text(&set, "/metadata/uid")
                    && pod["metadata"]["deletionTimestamp"].is_null()
                    && number.is_none_or(|number| number >= replicas)
                {
                    let _ = self.infra.delete(SETS, "pods", Some(namespace), text(&pod, "/metadata/name"));
                }
            }
        }
    }
}
