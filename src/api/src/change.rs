//! Changes of watched objects, in the form in which caches take them in.

use kube::{Resource, ResourceExt};

/// A change of one object.
#[derive(Debug, Clone, PartialEq)]
pub enum Change<K> {
    /// The object exists and has this state.
    Applied(K),
    /// The object was deleted. A watch with a label selector also reports an object that has lost the label like this.
    Gone {
        /// Its namespace; empty for a cluster-scoped object.
        namespace: String,
        /// Its name.
        name: String,
        /// Its uid: another object of the same name may exist.
        uid: String,
    },
}

impl<K: Resource> Change<K> {
    /// Namespace and name of the object, and its state; `None` for a deleted object.
    pub fn into_parts(self) -> (String, String, Option<K>) {
        match self {
            Self::Applied(object) => {
                (object.namespace().unwrap_or_default(), object.name_any(), Some(object))
            }
            Self::Gone { namespace, name, .. } => (namespace, name, None),
        }
    }
}
