//! How many matches of a tenant's rules are kept.
//!
//! A thousand rules that all match a hundred thousand workloads are within every other limit, and would be a hundred million
//! pairs. So pairs have a limit of their own; of those beyond it only the workloads are kept, and the rules.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::ids::RuleName;

/// Workloads that are looked at again after one change, at most.
pub(super) const LOOKS: usize = 64;

/// Room for matches, and who lacks it.
#[derive(Debug)]
pub(super) struct Room {
    /// How many pairs of the tenant's own rules there may be.
    pub(super) most: usize,
    taken: usize,
    /// Workloads, by label value, that match rules for which there was no room. Those may have gone since.
    lacking: BTreeSet<Arc<str>>,
    /// Rules for which there was no room.
    short: BTreeSet<RuleName>,
    /// Workloads for which more or less is left out since [`Self::changed`].
    changed: BTreeSet<Arc<str>>,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            most: usize::MAX,
            taken: 0,
            lacking: BTreeSet::new(),
            short: BTreeSet::new(),
            changed: BTreeSet::new(),
        }
    }
}

impl Room {
    /// Takes room for one more pair; `false` where there is none, which is kept in mind.
    pub(super) fn take(&mut self, rule: &RuleName, workload: &Arc<str>) -> bool {
        if rule.is_admin() {
            return true;
        }
        if self.taken < self.most {
            self.taken += 1;
            return true;
        }
        self.lacking.insert(workload.clone());
        self.changed.insert(workload.clone());
        if !self.short.contains(rule) {
            self.short.insert(rule.clone());
        }
        false
    }

    /// How many pairs of the tenant's own rules there are.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// A pair of a rule is no more.
    pub(super) fn give(&mut self, rule: &RuleName) {
        if !rule.is_admin() {
            self.taken -= 1;
        }
    }

    /// A workload is about to be looked at, or gone.
    pub(super) fn forget(&mut self, workload: &Arc<str>) {
        if self.lacking.remove(workload) {
            self.changed.insert(workload.clone());
        }
        self.settle();
    }

    /// A rule is gone, or about to be matched with all workloads; it had so many pairs.
    pub(super) fn forget_rule(&mut self, rule: &RuleName, pairs: usize) {
        if !rule.is_admin() {
            self.taken -= pairs;
        }
        if self.short.remove(rule) {
            self.changed.extend(self.lacking.iter().cloned());
            if self.short.is_empty() {
                self.lacking.clear();
            }
        }
    }

    /// Whether there is room for what was left out.
    pub(super) fn has_more(&self) -> bool {
        self.taken < self.most && !self.lacking.is_empty()
    }

    /// A workload for which there may be room now; it is taken off those that lack some.
    pub(super) fn next(&mut self) -> Option<Arc<str>> {
        let next = if self.taken < self.most { self.lacking.pop_first() } else { None };
        self.changed.extend(next.clone());
        self.settle();
        next
    }

    /// Workloads for which more or less is left out since the last call of this.
    pub(super) fn changed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.changed)
    }

    /// Workloads of which matches may have been left out, those after a label.
    pub(super) fn lacking_after(&self, label: Option<&Arc<str>>) -> impl Iterator<Item = &Arc<str>> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = label.map_or(Unbounded, |label| Excluded(label.clone()));
        self.lacking.range((from, Unbounded))
    }

    /// How many workloads there are of which matches may have been left out.
    pub(super) fn lacking(&self) -> usize {
        self.lacking.len()
    }

    /// Whether matches of a workload may have been left out.
    pub(super) fn lacks(&self, workload: &str) -> bool {
        self.lacking.contains(workload)
    }

    /// Whether matches of a rule may have been left out.
    pub(super) fn is_short(&self, rule: &RuleName) -> bool {
        self.short.contains(rule)
    }

    /// Which of the rules a workload lacked isn't kept: all are well when all workloads are.
    fn settle(&mut self) {
        if self.lacking.is_empty() {
            self.short.clear();
        }
    }
}
