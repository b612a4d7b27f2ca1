//! The state of the cluster as the watches have shown it. No request waits for the API server.

mod allocated;
mod devices;
mod gates;
mod machines;
mod namespaces;
mod nodes;
mod offloading;
mod rules;
mod sizes;
mod specs;
mod tenants;

use outrigger_core::host::HostLabels;
use outrigger_core::map::HashMap;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use k8s_openapi::api::scheduling::v1::PriorityClass;
use outrigger_api::Change;
use outrigger_core::offloading::Offloading;
use parking_lot::RwLock;

pub use gates::{Claims, GateRules};
pub use machines::CachedMachine;
pub use machines::holds_slot;
pub use rules::RuleSpec;
pub use specs::Cached;
use specs::Specs;
pub use tenants::Exclusive;

/// The caches. They may be stale. A request that depends on a missing object waits for a change: see [`Caches::on_change`].
#[derive(Debug, Default)]
pub struct Caches {
    namespaces: namespaces::Namespaces,
    tenants: tenants::Tenants,
    rules: rules::Rules,
    nodes: RwLock<nodes::Nodes>,
    claims: RwLock<HashMap<String, devices::Claims>>,
    priority_classes: RwLock<BTreeMap<String, Option<i32>>>,
    device_classes: RwLock<devices::Classes>,
    offloadings: Specs<String, Arc<Offloading>>,
    allocated: allocated::Allocated,
    machines: machines::Machines,
    gates: RwLock<Option<Arc<GateRules>>>,
    on_change: OnChange,
}

/// Is called after each change that a request may wait for.
#[derive(Default)]
struct OnChange(Option<Box<dyn Fn() + Send + Sync>>);

impl fmt::Debug for OnChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnChange").finish_non_exhaustive()
    }
}

impl Caches {
    /// Empty caches. `host_labels`: the Node labels that name the host of a DPU.
    pub fn new(host_labels: &HostLabels) -> Self {
        Self { allocated: allocated::Allocated::new(host_labels), ..Self::default() }
    }

    /// Calls `notify` after each change that a request may wait for.
    #[must_use]
    pub fn on_change(self, notify: impl Fn() + Send + Sync + 'static) -> Self {
        Self { on_change: OnChange(Some(Box::new(notify))), ..self }
    }

    fn changed(&self) {
        if let OnChange(Some(notify)) = &self.on_change {
            notify();
        }
    }

    /// What decides about readiness gates; `None` before the rules of the tenant's cluster have been listed.
    pub fn gates(&self) -> Option<Arc<GateRules>> {
        self.gates.read().clone()
    }

    /// Takes in what decides about readiness gates.
    pub fn set_gates(&self, gates: Arc<GateRules>) {
        *self.gates.write() = Some(gates);
        self.changed();
    }

    /// The PriorityClass that the API server gives to Pods without one. Where two creations at once have made several, it gives the one
    /// with the lowest value (`plugin/pkg/admission/priority` of Kubernetes).
    pub fn default_priority_class(&self) -> Option<String> {
        let classes = self.priority_classes.read();
        let defaults = classes.iter().filter_map(|(name, value)| Some(((*value)?, name)));
        defaults.min().map(|(_, name)| name.clone())
    }

    /// Takes in a PriorityClass.
    pub fn priority_class(&self, change: Change<PriorityClass>) {
        let (_, name, class) = change.into_parts();
        let mut classes = self.priority_classes.write();
        match class {
            Some(class) => {
                classes.insert(name, class.global_default.unwrap_or_default().then_some(class.value))
            }
            None => classes.remove(&name),
        };
        drop(classes);
        self.changed();
    }
}

fn put<K: Hash + Eq, V>(map: &RwLock<HashMap<K, V>>, key: K, value: Option<V>) {
    let mut map = map.write();
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use outrigger_core::keys;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::applied;

    fn object<T: DeserializeOwned>(more: &Value) -> Change<T> {
        let metadata = json!({"name": "offloading", "namespace": "n", "uid": "u", "generation": 1});
        let mut object = json!({"metadata": metadata, "spec": {}});
        json_patch::merge(&mut object, more);
        applied(object)
    }

    fn gone<T>() -> Change<T> {
        Change::Gone { namespace: "n".into(), name: "offloading".into(), uid: "u".into() }
    }

    #[test]
    fn pods_without_a_priority_class_get_the_one_that_is_the_default_now() {
        let caches = Caches::default();
        for (name, default, value, expected) in [
            ("a", Some(false), 1, None),
            ("b", Some(true), 1000, Some("b")),
            ("c", None, 1, Some("b")),
            ("d", Some(false), 10, Some("b")),
            // Where there are two, the API server takes the one with the lower value.
            ("d", Some(true), 10, Some("d")),
            ("b", Some(false), 1000, Some("d")),
        ] {
            caches.priority_class(object(
                &json!({"metadata": {"name": name}, "value": value, "globalDefault": default}),
            ));
            assert_eq!(caches.default_priority_class().as_deref(), expected, "{name} {default:?}");
        }
        caches.priority_class(Change::Gone {
            namespace: String::new(),
            name: "d".into(),
            uid: String::new(),
        });
        assert_eq!(caches.default_priority_class(), None, "it is deleted");
        assert_eq!(caches.priority_classes.read().len(), 3, "nothing is left of it");
    }

    #[test]
    fn each_change_that_a_request_may_wait_for_is_reported_once() {
        let notified = Arc::new(AtomicUsize::new(0));
        let caches = Caches::default().on_change({
            let notified = notified.clone();
            move || {
                notified.fetch_add(1, Ordering::Relaxed);
            }
        });
        let is_reported = |count: usize, what: &str| {
            assert_eq!(notified.swap(0, Ordering::Relaxed), count, "{what}");
        };
        let rule = json!({"spec": {"workloadTerms": [], "template": {}, "dpuSelectionPolicy": "Any"}});
        let machine = json!({"spec": {"nodePool": [], "machineTypes": []}});
        let labelled = |key: &str| json!({"metadata": {"labels": {key: "blue"}}});
        let (tenant, node) = (labelled(keys::TENANT), labelled(keys::NODE_TENANT));
        // Twice each: what is known is no change.
        for count in [1, 0] {
            caches.namespace(object(&tenant));
            is_reported(count, "namespace");
            caches.apply_tenant(object(&json!({})));
            is_reported(count, "tenant");
            caches.apply_rule(object(&rule));
            is_reported(count, "rule");
            caches.apply_admin_rule(object(&rule));
            is_reported(count, "admin rule");
            caches.apply_offloading(object(&json!({})));
            is_reported(count, "offloading");
            caches.node(object(&node));
            is_reported(count, "node");
        }
        caches.priority_class(object(&json!({"value": 1})));
        caches.device_class(object(&json!({})));
        caches.apply_machine(object(&machine), Duration::ZERO);
        caches.set_gates(Arc::default());
        is_reported(4, "classes, machine and gates");
        caches.claim(object(&json!({})));
        caches.guest(object(&json!({})), Duration::ZERO);
        is_reported(0, "no request waits for claims and guests");
        caches.namespace(gone());
        caches.apply_tenant(gone());
        caches.apply_rule(gone());
        caches.apply_admin_rule(gone());
        caches.apply_offloading(gone());
        caches.node(gone());
        caches.apply_machine(gone(), Duration::ZERO);
        is_reported(7, "what is deleted");
    }
}
