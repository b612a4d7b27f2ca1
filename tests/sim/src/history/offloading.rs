//! Namespaces of the infrastructure cluster that are offloaded, with Pods of users.

use outrigger_core::offloading::NAME;
use serde_json::{Value, json};

use super::History;
use super::rules::apply;
use crate::world::{ADMIN, PLAIN};

impl History {
    /// A namespace gets a NamespaceOffloading, or loses it.
    pub(super) fn change_offloading(&self) {
        let Some(namespace) = self.pick(&PLAIN) else { return };
        if self.below(3) == 0 {
            let _ = self.world.infra.delete(ADMIN, "namespaceoffloadings", Some(namespace), NAME);
            return;
        }
        let strategy = self.pick(&["Local", "Remote", "LocalAndRemote"]);
        // One of the two regions has a virtual node.
        let region = format!("region-{}", self.below(2));
        let spec = json!({"podOffloadingStrategy": strategy, "namespaceMappingStrategy": "EnforceSameName",
            "clusterSelector": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "region", "operator": "In", "values": [region]}]}]}});
        apply(&self.world.infra, (ADMIN, "namespaceoffloadings", namespace), NAME, &spec);
    }

    /// A user creates a Pod in such a namespace, by a request that admission sees, or deletes it.
    pub(super) fn change_plain_pod(&self) {
        let Some(namespace) = self.pick(&PLAIN) else { return };
        let name = format!("plain-{}", self.below(4));
        let infra = &self.world.infra;
        if infra.get("pods", Some(namespace), &name).is_some() {
            let _ = infra.delete("user", "pods", Some(namespace), &name);
            return;
        }
        let pod: Value = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "plain"}]}});
        // What admission refuses, users try again.
        self.request_pod(namespace, &pod);
    }
}
