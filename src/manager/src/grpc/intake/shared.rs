//! Values that calls of one payer or identity share.

use outrigger_core::map::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::sweep::Sweep;

/// A value for each key, for as long as anybody holds it.
#[derive(Debug)]
pub(super) struct Shared<T>(Mutex<Values<T>>);

#[derive(Debug)]
struct Values<T> {
    by_key: HashMap<Arc<str>, Weak<T>>,
    sweep: Sweep,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Mutex::new(Values { by_key: HashMap::default(), sweep: Sweep::default() }))
    }
}

impl<T> Shared<T> {
    /// The value of a key, made if nobody holds it.
    pub(super) fn get(&self, key: &Arc<str>, make: impl FnOnce() -> T) -> Arc<T> {
        let mut values = self.0.lock();
        if let Some(value) = values.by_key.get(key).and_then(Weak::upgrade) {
            return value;
        }
        let Values { by_key, sweep } = &mut *values;
        sweep.before_new(by_key, |value| value.strong_count() > 0);
        let value = Arc::new(make());
        by_key.insert(key.clone(), Arc::downgrade(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_shared_while_it_is_held_and_forgotten_afterwards() {
        let (shared, a) = (Shared::default(), Arc::from("a"));
        let first = shared.get(&a, || 1);
        assert!(Arc::ptr_eq(&first, &shared.get(&a, || 2)));
        drop(first);
        for i in 0..10 * Sweep::LEAST {
            assert_eq!(*shared.get(&Arc::from(i.to_string()), || 3), 3);
        }
        assert!(shared.0.lock().by_key.len() <= Sweep::LEAST);
        assert_eq!(*shared.get(&a, || 2), 2);
    }

    #[cfg(debug_assertions)]
    #[test]
    fn values_of_all_who_connect_at_once_are_made_without_a_search_for_each() {
        outrigger_core::steps::assert_nearly_linear(
            |size| (Shared::default(), size),
            |(shared, size)| {
                let held: Vec<_> = (0..*size).map(|i| shared.get(&Arc::from(i.to_string()), || i)).collect();
                assert_eq!(shared.0.lock().by_key.len(), held.len(), "what is held stays");
            },
        );
    }
}
