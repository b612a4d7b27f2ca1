//! Which namespaces are offloaded, and what their NamespaceOffloadings say.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use outrigger_api::NamespaceOffloading;
use outrigger_core::keys;
use outrigger_core::offloading::{self, Offloading};
use outrigger_runtime::cache::Change;

use super::Caches;

/// A namespace's NamespaceOffloading as the API has it.
#[derive(Debug, Clone)]
pub struct CachedOffloading {
    /// `metadata.uid` and `metadata.generation`.
    version: (String, i64),
    /// What it says, right or wrong.
    pub offloading: Arc<Offloading>,
}

impl Caches {
    /// Whether Pods of the namespace may be offloaded: whether its label says so.
    pub fn is_offloaded(&self, namespace: &str) -> bool {
        self.offloaded.read().contains(namespace)
    }

    /// The NamespaceOffloading of a namespace.
    pub fn offloading(&self, namespace: &str) -> Option<CachedOffloading> {
        self.offloadings.read().get(namespace).cloned()
    }

    /// A namespace that is labelled as offloaded, or was.
    pub fn offloaded_namespace(&self, change: Change<PartialObjectMeta<Namespace>>) {
        let (name, offloaded) = match change {
            Change::Applied(namespace) => {
                let offloaded = namespace.labels().get(keys::OFFLOADED).is_some_and(|label| label == "true");
                (namespace.name_any(), offloaded)
            }
            Change::Gone { name, .. } => (name, false),
        };
        if offloaded {
            self.offloaded.write().insert(name);
        } else {
            self.offloaded.write().remove(&name);
        }
        self.changed();
    }

    /// A NamespaceOffloading. Those of other names than the one that counts are nobody's.
    pub fn apply_offloading(&self, change: Change<NamespaceOffloading>) {
        let object = match change {
            Change::Applied(object) => object,
            Change::Gone { namespace, name, .. } => {
                if name == offloading::NAME {
                    self.offloadings.write().remove(&namespace);
                    self.changed();
                }
                return;
            }
        };
        if object.name_any() != offloading::NAME {
            return;
        }
        let namespace = object.namespace().unwrap_or_default();
        let version = (object.uid().unwrap_or_default(), object.metadata.generation.unwrap_or_default());
        // Its status changes more often than its spec.
        if self.offloadings.read().get(&namespace).is_some_and(|known| known.version == version) {
            return;
        }
        let spec = &object.spec;
        let offloading = Arc::new(Offloading::read(&spec.pod_offloading_strategy, &spec.cluster_selector));
        self.offloadings.write().insert(namespace, CachedOffloading { version, offloading });
        self.changed();
    }
}
