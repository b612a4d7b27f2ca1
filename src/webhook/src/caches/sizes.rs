//! How much is cached, for `/debug`.

use serde_json::{Value, json};

use super::Caches;
use super::devices::Claims;

impl Caches {
    /// How many objects each cache holds.
    pub fn sizes(&self) -> Value {
        json!({
            "namespaces": self.namespaces.read().len(),
            "tenants": self.tenants.read().len(),
            "workload_rules": self.rules.read().len(),
            "admin_rules": self.admin_rules.read().len(),
            "nodes": self.nodes.read().len(),
            "claims": self.claims.read().values().map(Claims::count).sum::<usize>(),
            "priority_classes": self.priority_classes.read().len(),
            "device_classes": self.device_classes.read().count(),
            "machines": self.machines.count(),
            "offloaded_namespaces": self.offloaded.read().len(),
            "namespace_offloadings": self.offloadings.read().len(),
        })
    }
}
