//! The sizes of the caches, for `/debug`.

use serde_json::{Value, json};

use super::Caches;
use super::devices::Claims;

impl Caches {
    /// How many objects each cache holds.
    pub fn sizes(&self) -> Value {
        let namespaces = self.namespaces.read();
        json!({
            "namespaces": namespaces.len(),
            "tenants": self.tenants.len(),
            "workload_rules": self.rules.tenants.len(),
            "admin_rules": self.rules.admin.len(),
            "nodes": self.nodes.read().len(),
            "claims": self.claims.read().values().map(Claims::count).sum::<usize>(),
            "priority_classes": self.priority_classes.read().len(),
            "device_classes": self.device_classes.read().count(),
            "machines": self.machines.count(),
            "offloaded_namespaces": namespaces.values().filter(|labels| labels.offloaded).count(),
            "namespace_offloadings": self.offloadings.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outrigger_api::Change;
    use outrigger_core::keys;
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::tests::applied;

    /// An object with this name, in a namespace.
    fn named<T: DeserializeOwned>(name: &str, more: &Value) -> Change<T> {
        let mut object = json!({"metadata": {"name": name, "namespace": "n"}, "spec": {}});
        json_patch::merge(&mut object, more);
        applied(object)
    }

    #[test]
    fn each_cache_reports_how_many_objects_it_holds() {
        let caches = Caches::default();
        let pod = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]);
        let rule = json!({"spec": {"workloadTerms": [], "template": {}, "dpuSelectionPolicy": "Any"}});
        let offloaded = json!({"metadata": {"labels": {keys::OFFLOADED: "true"}}});
        let offloading = |namespace: &str| json!({"metadata": {"namespace": namespace}});
        for name in ["a", "b"] {
            caches.namespace(named(name, &offloaded));
            caches.namespace(named(
                &format!("of-{name}"),
                &json!({"metadata": {"labels": {keys::TENANT: "a"}}}),
            ));
            caches.claim(named(name, &json!({"metadata": {"labels": {keys::WORKLOAD: "w"}}})));
            caches.apply_offloading(named("offloading", &offloading(name)));
        }
        for name in ["a", "b", "c"] {
            caches.claim(named(&format!("of-pod-{name}"), &json!({"metadata": {"ownerReferences": pod}})));
            caches.apply_tenant(named(name, &json!({})));
            caches.apply_rule(named(name, &rule));
            caches.node(named(name, &json!({})));
            caches.priority_class(named(name, &json!({"value": 1})));
            caches.device_class(named(name, &json!({})));
        }
        for name in ["a", "b", "c", "d"] {
            caches.apply_admin_rule(named(name, &rule));
            let spec = json!({"spec": {"nodePool": [], "machineTypes": []}});
            caches.apply_machine(named(name, &spec), Duration::ZERO);
        }
        let sizes = json!({"namespaces": 4, "tenants": 3, "workload_rules": 3, "admin_rules": 4, "nodes": 3, "claims": 5,
            "priority_classes": 3, "device_classes": 3, "machines": 4, "offloaded_namespaces": 2, "namespace_offloadings": 2});
        assert_eq!(caches.sizes(), sizes);
    }
}
