//! Hashed maps and sets whose order depends on one seed of the process.
//!
//! The standard library seeds each map by chance, so two runs of the same code visit the entries in different orders. Here
//! the seed is drawn once for the process, or set by [`set_seed`]: then a run can be repeated. The hash is SipHash-1-3, as in
//! the standard library, because tenants choose many of the keys.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash, RandomState};
use std::ops::Bound;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use siphasher::sip::SipHasher13;

/// A map as the standard library's, with [`State`] as its hasher. Made by `HashMap::default()`.
pub type HashMap<K, V> = std::collections::HashMap<K, V, State>;
/// A set as the standard library's, with [`State`] as its hasher. Made by `HashSet::default()`.
pub type HashSet<T> = std::collections::HashSet<T, State>;

/// Removes something from the collection of a key, and the key too where that leaves an empty one.
pub fn remove_from<K, Q, S, T>(map: &mut HashMap<K, S>, key: &Q, remove: impl FnOnce(&mut S) -> T)
where
    K: Borrow<Q> + Hash + Eq,
    Q: Hash + Eq + ?Sized,
    for<'a> &'a S: IntoIterator,
{
    let Some(collection) = map.get_mut(key) else { return };
    remove(collection);
    if (&*collection).into_iter().next().is_none() {
        map.remove(key);
    }
}

/// The part of an ordered collection that follows a key; all of it where there is none.
pub fn after<K: Clone>(key: Option<&K>) -> (Bound<K>, Bound<K>) {
    (key.map_or(Bound::Unbounded, |key| Bound::Excluded(key.clone())), Bound::Unbounded)
}

/// The seed that [`set_seed`] has set, if it has.
static SEED: AtomicU64 = AtomicU64::new(0);
static IS_SET: AtomicBool = AtomicBool::new(false);

/// Sets the seed of all maps that this process creates from now on.
pub fn set_seed(seed: u64) {
    SEED.store(seed, Ordering::Relaxed);
    IS_SET.store(true, Ordering::Release);
}

/// Creates the hashers of a map. All that are created under one seed give the same hashes.
#[derive(Debug, Clone, Copy)]
pub struct State {
    keys: (u64, u64),
}

impl Default for State {
    fn default() -> Self {
        static DRAWN: OnceLock<(u64, u64)> = OnceLock::new();
        if IS_SET.load(Ordering::Acquire) {
            return Self { keys: (SEED.load(Ordering::Relaxed), 0) };
        }
        #[allow(clippy::disallowed_methods, reason = "this is where the seed is drawn")]
        let draw = || (RandomState::new().hash_one(0), RandomState::new().hash_one(1));
        Self { keys: *DRAWN.get_or_init(draw) }
    }
}

impl BuildHasher for State {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.keys.0, self.keys.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_the_last_entry_the_key_is_removed() {
        let mut sets: HashMap<String, HashSet<u8>> = HashMap::default();
        sets.entry("a".to_owned()).or_default().extend([1, 2]);
        for (key, entry, left) in [("a", 1, true), ("b", 2, true), ("a", 3, true), ("a", 2, false)] {
            remove_from(&mut sets, key, |set| set.remove(&entry));
            assert_eq!(sets.contains_key("a"), left, "{key} {entry}");
        }
    }

    #[test]
    fn the_order_of_a_map_depends_on_the_seed_only() {
        let with_seed = |seed| State { keys: (seed, 0) };
        let order = |state: State| {
            let mut map = std::collections::HashMap::with_hasher(state);
            map.extend((0..100).map(|key| (key, ())));
            map.into_keys().collect::<Vec<u32>>()
        };
        assert_eq!(order(with_seed(1)), order(with_seed(1)));
        assert_ne!(order(with_seed(1)), order(with_seed(2)));
        assert_eq!(State::default().keys, State::default().keys);
        // The maps of other tests get a seed that is drawn all the same.
        let drawn = State::default().keys.0;
        assert_ne!(order(State::default()), order(with_seed(drawn)));
        set_seed(drawn);
        assert_eq!(order(State::default()), order(with_seed(drawn)));
    }
}
