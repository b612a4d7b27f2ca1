//! NamespaceOffloadings.

use std::sync::Arc;

use kube::ResourceExt;
use outrigger_api::{Change, NamespaceOffloading};
use outrigger_core::offloading::{self, Offloading};

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
    /// The NamespaceOffloading of a namespace.
    pub fn offloading(&self, namespace: &str) -> Option<CachedOffloading> {
        self.offloadings.read().get(namespace).cloned()
    }

    /// Takes in a NamespaceOffloading. Liqo and Outrigger ignore other names than the one that counts.
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
