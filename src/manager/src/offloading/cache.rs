//! NamespaceOffloadings and virtual nodes as the API has them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use outrigger_api::NamespaceOffloading;
use outrigger_core::offloading;
use outrigger_runtime::cache::Change;
use parking_lot::RwLock;

/// Labels of a virtual node.
pub type Labels = BTreeMap<String, String>;

/// What is known.
#[derive(Debug, Default)]
pub struct OffloadingCache {
    objects: RwLock<HashMap<String, Arc<NamespaceOffloading>>>,
    nodes: RwLock<BTreeMap<String, Labels>>,
}

impl OffloadingCache {
    /// A NamespaceOffloading. Returns the namespace to look at: none for one of another name than the one that counts, and
    /// none for one that is gone, because its finalizer has gone before.
    pub fn object(&self, change: Change<NamespaceOffloading>) -> Option<Arc<str>> {
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

    /// A virtual node, or one that was. Whether selectors may see a difference.
    pub fn node(&self, change: Change<PartialObjectMeta<Node>>) -> bool {
        let mut nodes = self.nodes.write();
        match change {
            Change::Applied(node) => {
                let labels = node.labels().clone();
                nodes.insert(node.name_any(), labels.clone()).is_none_or(|before| before != labels)
            }
            Change::Gone { name, .. } => nodes.remove(&name).is_some(),
        }
    }

    /// The NamespaceOffloading of a namespace.
    pub fn get(&self, namespace: &str) -> Option<Arc<NamespaceOffloading>> {
        self.objects.read().get(namespace).cloned()
    }

    /// All namespaces that have one.
    pub fn namespaces(&self) -> Vec<Arc<str>> {
        self.objects.read().keys().map(|name| name.as_str().into()).collect()
    }

    /// Calls back with all virtual nodes.
    pub fn with_nodes<T>(&self, look: impl FnOnce(&BTreeMap<String, Labels>) -> T) -> T {
        look(&self.nodes.read())
    }
}
