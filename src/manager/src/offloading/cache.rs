//! NamespaceOffloadings, namespaces with their label, and virtual nodes, as the API has them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{self as core, Node};
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
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
    /// Namespaces with the label.
    labelled: RwLock<BTreeSet<String>>,
    nodes: RwLock<BTreeMap<String, Labels>>,
}

impl OffloadingCache {
    /// A NamespaceOffloading. Returns the namespace to look at: none for one of another name than the one that counts, and
    /// none for one that is deleted, because its finalizer has gone before, unless the namespace still has the label.
    pub(crate) fn object(&self, change: Change<NamespaceOffloading>) -> Option<Namespace> {
        match change {
            Change::Applied(object) if object.name_any() == offloading::NAME => {
                let namespace = object.namespace().unwrap_or_default();
                self.objects.write().insert(namespace.clone(), Arc::new(object));
                Some(namespace.into())
            }
            Change::Gone { namespace, name, .. } if name == offloading::NAME => {
                self.objects.write().remove(&namespace);
                self.labelled.read().contains(&namespace).then(|| namespace.into())
            }
            _ => None,
        }
    }

    /// A namespace exists, or is deleted. Whether to look at it, because it has the label or a NamespaceOffloading.
    pub(crate) fn namespace(
        &self,
        name: &str,
        namespace: Option<&PartialObjectMeta<core::Namespace>>,
    ) -> bool {
        let value = namespace.and_then(|namespace| namespace.labels().get(keys::OFFLOADED));
        let labelled = value.is_some_and(|value| value == "true");
        let mut all = self.labelled.write();
        if labelled {
            all.insert(name.to_owned());
        } else {
            all.remove(name);
        }
        labelled || self.get(name).is_some()
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

    /// Namespaces with the label.
    pub(crate) fn labelled(&self) -> Vec<Namespace> {
        self.labelled.read().iter().map(|name| name.as_str().into()).collect()
    }

    pub(crate) fn with_nodes<T>(&self, look: impl FnOnce(&BTreeMap<String, Labels>) -> T) -> T {
        look(&self.nodes.read())
    }
}
