//! Nodes: whose they are.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use outrigger_api::Change;
use outrigger_core::ids::TenantId;
use outrigger_core::keys;
use outrigger_core::map::HashMap;

use super::Caches;

/// The tenant label of each Node.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    owners: HashMap<String, Option<String>>,
    /// How many Nodes have a value of the label. Each rule that is admitted asks for one of these numbers.
    counts: HashMap<String, usize>,
}

impl Nodes {
    pub(super) fn len(&self) -> usize {
        self.owners.len()
    }

    fn set(&mut self, name: String, owner: Option<Option<String>>) {
        if let Some(owner) = owner.as_ref().and_then(Option::as_ref) {
            *self.counts.entry(owner.clone()).or_default() += 1;
        }
        let before = match owner {
            Some(owner) => self.owners.insert(name, owner),
            None => self.owners.remove(&name),
        };
        if let Some(before) = before.flatten()
            && let Some(count) = self.counts.get_mut(&before)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&before);
            }
        }
    }
}

impl Caches {
    /// The value of a Node's tenant label, where there is such a Node.
    pub fn node_owner(&self, node: &str) -> Option<Option<String>> {
        self.nodes.read().owners.get(node).cloned()
    }

    /// The number of Nodes of a tenant.
    pub fn dpus_of(&self, id: &TenantId) -> usize {
        self.nodes.read().counts.get(id.as_str()).copied().unwrap_or_default()
    }

    /// Takes in a Node: only its tenant and its host are kept.
    pub fn node(&self, change: Change<PartialObjectMeta<Node>>) {
        let (_, name, node) = change.into_parts();
        self.allocated.node(&name, node.as_ref());
        let owner = node.map(|node| node.labels().get(keys::NODE_TENANT).cloned());
        // Kubelets write their Nodes all the time, and no request waits for that.
        if self.nodes.read().owners.get(&name) == owner.as_ref() {
            return;
        }
        self.nodes.write().set(name, owner);
        self.changed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::applied;

    #[test]
    fn the_nodes_of_a_tenant_are_counted_as_they_come_and_go() {
        let mut nodes = Nodes::default();
        let mut counts = |name: &str, owner: Option<Option<&str>>| {
            nodes.set(name.to_owned(), owner.map(|owner| owner.map(str::to_owned)));
            let count = |owner: &str| nodes.counts.get(owner).copied();
            (count("blue"), count("red"), nodes.len())
        };
        assert_eq!(counts("a", Some(None)), (None, None, 1));
        assert_eq!(counts("a", Some(Some("blue"))), (Some(1), None, 1));
        assert_eq!(counts("b", Some(Some("blue"))), (Some(2), None, 2));
        assert_eq!(counts("a", Some(Some("blue"))), (Some(2), None, 2));
        assert_eq!(counts("a", Some(Some("red"))), (Some(1), Some(1), 2));
        assert_eq!(counts("a", None), (Some(1), None, 1));
        assert_eq!(counts("unknown", None), (Some(1), None, 1));
        assert_eq!(counts("b", Some(None)), (None, None, 1));
    }

    #[test]
    fn a_tenant_has_the_nodes_with_its_label() {
        let caches = Caches::default();
        let (blue, red) = (TenantId::new("blue").unwrap(), TenantId::new("red").unwrap());
        for (name, owner, counts) in [("a", "blue", (1, 0)), ("b", "blue", (2, 0)), ("a", "red", (1, 1))] {
            let labels = serde_json::json!({keys::NODE_TENANT: owner});
            let node = serde_json::json!({"metadata": {"name": name, "labels": labels}});
            caches.node(applied(node));
            assert_eq!((caches.dpus_of(&blue), caches.dpus_of(&red)), counts, "{name} of {owner}");
        }
    }
}
