//! Namespaces, as far as their labels concern admission: one watch shows all three labels of a namespace at once.

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use outrigger_api::Change;
use outrigger_core::ids::TenantId;
use outrigger_core::keys;
use outrigger_core::map::HashMap;
use parking_lot::RwLock;

use super::{Caches, put};

/// Only namespaces with one of the labels.
pub(super) type Namespaces = RwLock<HashMap<String, Labels>>;

/// What the labels of a namespace say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Labels {
    /// The tenant that owns the namespace.
    tenant: Option<TenantId>,
    /// Its Pods may be offloaded.
    pub(super) offloaded: bool,
    /// Its guests get slots.
    pub(super) injected: bool,
}

impl Caches {
    /// The tenant that owns a namespace.
    pub fn owner(&self, namespace: &str) -> Option<TenantId> {
        self.namespaces.read().get(namespace)?.tenant.clone()
    }

    /// Whether the label of a namespace says that its Pods may be offloaded.
    pub fn is_offloaded(&self, namespace: &str) -> bool {
        self.namespaces.read().get(namespace).is_some_and(|labels| labels.offloaded)
    }

    /// Whether the label of a namespace says that its guests get slots.
    pub fn is_injected(&self, namespace: &str) -> bool {
        self.namespaces.read().get(namespace).is_some_and(|labels| labels.injected)
    }

    /// Takes in a namespace.
    pub fn namespace(&self, change: Change<PartialObjectMeta<Namespace>>) {
        let (_, name, namespace) = change.into_parts();
        let labels = namespace.map(|namespace| {
            let is = |key, value| namespace.labels().get(key).is_some_and(|found| found == value);
            Labels {
                tenant: TenantId::of_namespace(namespace.labels()),
                offloaded: is(keys::OFFLOADED, "true"),
                injected: is(keys::INJECT_RESOURCE, keys::INJECT_ENABLED),
            }
        });
        let labels = labels.filter(|labels| *labels != Labels::default());
        if self.namespaces.read().get(&name) == labels.as_ref() {
            return;
        }
        put(&self.namespaces, name, labels);
        self.changed();
    }
}
