//! When a map is searched for entries that are no longer needed.
//!
//! A search for each new entry would take as many steps as there are entries: ten thousand agents that connect at once would take
//! a hundred million.

use std::collections::BTreeMap;
use std::hash::Hash;

use outrigger_core::map::HashMap;
use outrigger_core::steps::step;

/// Searches a map each time that it has twice as many entries as the last search left, so that all searches together take a few
/// steps for each new entry.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// The number of entries at which the next search is due.
    due: usize,
}

impl Default for Sweep {
    fn default() -> Self {
        Self { due: Self::LEAST }
    }
}

impl Sweep {
    /// Fewer entries are never searched.
    pub(crate) const LEAST: usize = 16;

    /// Removes entries for which `keep` is false, if a search is due. To be called before each new entry.
    pub(crate) fn before_new<K, V, M: Retain<K, V>>(
        &mut self,
        map: &mut M,
        mut keep: impl FnMut(&mut V) -> bool,
    ) {
        if map.len() < self.due {
            return;
        }
        map.retain(|value| {
            step();
            keep(value)
        });
        self.due = (2 * map.len()).max(Self::LEAST);
    }
}

/// A map that can be searched.
pub(crate) trait Retain<K, V> {
    fn len(&self) -> usize;
    fn retain(&mut self, keep: impl FnMut(&mut V) -> bool);
}

impl<K: Eq + Hash, V> Retain<K, V> for HashMap<K, V> {
    fn len(&self) -> usize {
        self.len()
    }

    fn retain(&mut self, mut keep: impl FnMut(&mut V) -> bool) {
        self.retain(|_, value| keep(value));
    }
}

impl<K: Ord, V> Retain<K, V> for BTreeMap<K, V> {
    fn len(&self) -> usize {
        self.len()
    }

    fn retain(&mut self, mut keep: impl FnMut(&mut V) -> bool) {
        self.retain(|_, value| keep(value));
    }
}
