//! Values that calls of one payer or identity share.

use outrigger_core::map::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// A value for each key, for as long as anybody holds it.
#[derive(Debug)]
pub(super) struct Shared<T>(Mutex<HashMap<Arc<str>, Weak<T>>>);

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Shared<T> {
    /// The value of a key, made if nobody holds it.
    pub(super) fn get(&self, key: &Arc<str>, make: impl FnOnce() -> T) -> Arc<T> {
        let mut values = self.0.lock();
        if let Some(value) = values.get(key).and_then(Weak::upgrade) {
            return value;
        }
        // A new key is the occasion to forget those whose value is no longer held.
        values.retain(|_, value| value.strong_count() > 0);
        let value = Arc::new(make());
        values.insert(key.clone(), Arc::downgrade(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_shared_while_it_is_held_and_forgotten_afterwards() {
        let (shared, a, b) = (Shared::default(), Arc::from("a"), Arc::from("b"));
        let first = shared.get(&a, || 1);
        assert!(Arc::ptr_eq(&first, &shared.get(&a, || 2)));
        drop(first);
        assert_eq!(*shared.get(&b, || 3), 3);
        assert_eq!(shared.0.lock().len(), 1);
    }
}
