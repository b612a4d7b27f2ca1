//! NamespaceOffloadings and virtual nodes, as the API has them.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use outrigger_api::NamespaceOffloading;
use outrigger_core::{keys, offloading};
use outrigger_runtime::cache::Change;
use parking_lot::RwLock;

use crate::state::Namespace;

/// Labels of a virtual node.
pub(super) type Labels = BTreeMap<String, String>;

#[derive(Debug, Default)]
pub(crate) struct OffloadingCache {
    objects: RwLock<BTreeMap<String, Arc<NamespaceOffloading>>>,
    nodes: RwLock<BTreeMap<String, Labels>>,
}

impl OffloadingCache {
    /// A NamespaceOffloading. Returns the namespace to look at: none for one of another name than the one that counts, and
    /// none for one that is deleted, because its finalizer has gone before.
    pub(crate) fn object(&self, change: Change<NamespaceOffloading>) -> Option<Namespace> {
        match change {
            Change::Applied(object) if object.name_any() == offloading::NAME => {
                let namespace = object.namespace().unwrap_or_default();
                self.objects.write().insert(namespace.clone(), Arc::new(object));
                Some(namespace.into())
            }
            Change::Gone { namespace, name, .. } if name == offloading::NAME => {
                self.objects.write().remove(&namespace);
                None
            }
            _ => None,
        }
    }

    /// A Node exists, or is deleted. Whether selectors may see a difference, because it is a virtual node, or was one.
    pub(crate) fn node(&self, name: &str, node: Option<&Node>) -> bool {
        let node =
            node.filter(|node| node.labels().get(keys::NODE_TYPE).is_some_and(|t| t == keys::VIRTUAL_NODE));
        let mut nodes = self.nodes.write();
        match node.map(|node| node.labels().clone()) {
            Some(labels) => {
                nodes.insert(name.to_owned(), labels.clone()).is_none_or(|before| before != labels)
            }
            None => nodes.remove(name).is_some(),
        }
    }

    pub(crate) fn get(&self, namespace: &str) -> Option<Arc<NamespaceOffloading>> {
        self.objects.read().get(namespace).cloned()
    }

    pub(crate) fn keys(&self) -> Vec<Namespace> {
        self.objects.read().keys().map(|name| name.as_str().into()).collect()
    }

    pub(crate) fn with_nodes<T>(&self, look: impl FnOnce(&BTreeMap<String, Labels>) -> T) -> T {
        look(&self.nodes.read())
    }
}
