//! When a map is searched for entries that are no longer needed.
//!
//! A search for each new entry would take as many steps as there are entries: ten thousand agents that connect at once would take
//! a hundred million.

use std::hash::Hash;

use outrigger_core::map::HashMap;
use outrigger_core::steps::step;

/// Searches a map each time that it has twice as many entries as the last search left, so that all searches together take a few
/// steps for each new entry.
#[derive(Debug)]
pub(super) struct Sweep {
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
    pub(super) const LEAST: usize = 16;

    /// Removes entries for which `keep` is false, if a search is due. To be called before each new entry.
    pub(super) fn before_new<K: Eq + Hash, V>(
        &mut self,
        map: &mut HashMap<K, V>,
        mut keep: impl FnMut(&V) -> bool,
    ) {
        if map.len() < self.due {
            return;
        }
        map.retain(|_, value| {
            step();
            keep(value)
        });
        self.due = (2 * map.len()).max(Self::LEAST);
    }
}
