//! NamespaceOffloadings.

use std::sync::Arc;

use outrigger_api::{Change, NamespaceOffloading};
use outrigger_core::offloading::{self, Offloading};

use super::Caches;

impl Caches {
    /// The NamespaceOffloading of a namespace, valid or not.
    pub fn offloading(&self, namespace: &str) -> Option<Arc<Offloading>> {
        self.offloadings.get(namespace).map(|cached| cached.spec)
    }

    /// Takes in a NamespaceOffloading. Liqo and Outrigger ignore other names than the one that counts.
    pub fn apply_offloading(&self, change: Change<NamespaceOffloading>) {
        let (namespace, name, object) = change.into_parts();
        let read = |object: &NamespaceOffloading| {
            let spec = &object.spec;
            Arc::new(Offloading::read(&spec.pod_offloading_strategy, &spec.cluster_selector))
        };
        if name == offloading::NAME && self.offloadings.apply(namespace, object, read).0 {
            self.changed();
        }
    }
}
