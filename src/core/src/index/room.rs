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
}

impl Default for Room {
    fn default() -> Self {
        Self { most: usize::MAX, taken: 0, lacking: BTreeSet::new(), short: BTreeSet::new() }
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
        if !self.short.contains(rule) {
            self.short.insert(rule.clone());
        }
        false
    }

    /// A pair of a rule is no more.
    pub(super) fn give(&mut self, rule: &RuleName) {
        if !rule.is_admin() {
            self.taken -= 1;
        }
    }

    /// A workload is about to be looked at, or gone.
    pub(super) fn forget(&mut self, workload: &str) {
        self.lacking.remove(workload);
        self.settle();
    }

    /// A rule is gone, or about to be matched with all workloads; it had so many pairs.
    pub(super) fn forget_rule(&mut self, rule: &RuleName, pairs: usize) {
        if !rule.is_admin() {
            self.taken -= pairs;
        }
        if self.short.remove(rule) && self.short.is_empty() {
            self.lacking.clear();
        }
    }

    /// Whether there is room for what was left out.
    pub(super) fn has_more(&self) -> bool {
        self.taken < self.most && !self.lacking.is_empty()
    }

    /// A workload for which there may be room now; it is taken off those that lack some.
    pub(super) fn next(&mut self) -> Option<Arc<str>> {
        let next = if self.taken < self.most { self.lacking.pop_first() } else { None };
        self.settle();
        next
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
