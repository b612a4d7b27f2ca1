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
