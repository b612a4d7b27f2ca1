//! Values that several have, each by its key. One is made when it is asked for, and forgotten when it is unused and nobody has it.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::sweep::Sweep;

/// A value that may be forgotten.
pub(super) trait Forgettable {
    /// Whether it has nothing that a new one has not.
    fn is_unused(&mut self) -> bool;
}

/// See the [module](self). Those that are unused are looked for when there are twice as many as before.
#[derive(Debug)]
pub(super) struct Shared<K, V>(RwLock<(BTreeMap<K, Arc<V>>, Sweep)>);

impl<K, V> Default for Shared<K, V> {
    fn default() -> Self {
        Self(RwLock::new((BTreeMap::new(), Sweep::default())))
    }
}

impl<K: Ord + Clone, V: Forgettable> Shared<K, V> {
    /// The value of a key, if there is one.
    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<Arc<V>>
    where
        K: Borrow<Q>,
    {
        self.0.read().0.get(key).cloned()
    }

    /// The value of a key. If there is none it is made.
    pub(super) fn get_or_make(&self, key: K, make: impl FnOnce() -> V) -> Arc<V> {
        let mut shared = self.0.write();
        let (values, sweep) = &mut *shared;
        if let Some(value) = values.get(&key) {
            return value.clone();
        }
        // While they are locked nobody can get one, and so nobody is using one that nobody else has.
        let is_in_use =
            |value: &mut Arc<V>| Arc::get_mut(value).is_none_or(|value: &mut V| !value.is_unused());
        sweep.before_new(values, is_in_use);
        values.entry(key).or_insert_with(|| Arc::new(make())).clone()
    }

    /// All values, in the order of their keys.
    pub(super) fn all(&self) -> Vec<(K, Arc<V>)> {
        self.0.read().0.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}
