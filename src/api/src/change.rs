//! Changes of watched objects, in the form in which caches take them in.

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
