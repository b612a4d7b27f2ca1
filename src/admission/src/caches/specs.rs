//! Objects whose spec alone concerns admission. Their status changes far more often.

use outrigger_core::map::HashMap;
use std::borrow::Borrow;
use std::hash::Hash;

use kube::Resource;
use parking_lot::RwLock;

/// What admission needs of a spec, and which state of the object has it.
#[derive(Debug, Clone)]
pub struct Cached<T> {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// What admission needs of it.
    pub spec: T,
}

#[derive(Debug)]
pub(super) struct Specs<K, T>(RwLock<HashMap<K, Cached<T>>>);

impl<K, T> Default for Specs<K, T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<K: Eq + Hash, T: Clone> Specs<K, T> {
    pub(super) fn len(&self) -> usize {
        self.0.read().len()
    }

    pub(super) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<Cached<T>>
    where
        K: Borrow<Q>,
    {
        self.0.read().get(key).cloned()
    }

    /// Takes in an object, which has been deleted where there is none. Returns whether its spec has changed, and the spec before.
    pub(super) fn apply<O: Resource>(
        &self,
        key: K,
        object: Option<O>,
        read: impl FnOnce(&O) -> T,
    ) -> (bool, Option<T>) {
        let Some(object) = object else {
            let before = self.0.write().remove(&key);
            return (before.is_some(), before.map(|before| before.spec));
        };
        let uid = object.meta().uid.clone().unwrap_or_default();
        let generation = object.meta().generation.unwrap_or_default();
        let known = |cached: &Cached<T>| (&cached.uid, cached.generation) == (&uid, generation);
        if self.0.read().get(&key).is_some_and(known) {
            return (false, None);
        }
        let spec = read(&object);
        let before = self.0.write().insert(key, Cached { uid, generation, spec });
        (true, before.map(|before| before.spec))
    }
}
