//! How many matches of a tenant's rules are kept.
//!
//! A thousand rules that all match a hundred thousand workloads are within every other limit, and would be a hundred million
//! pairs. So pairs have a limit of their own; of those beyond it only the workloads are kept, and the rules.
//!
//! Matches whose companions wait until their workload is scheduled have as much room again, and take none of the others': whoever creates Pods that can't
//! be scheduled doesn't keep those that run from having companions.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::ids::RuleName;
use crate::map::after;
use crate::rule::Rule;
use crate::workload::Workload;

/// Workloads that are looked at again after one change, at most.
pub(super) const LOOKS: usize = 64;

/// Whose room a match takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// That of matches that have companions.
    Companion,
    /// That of matches whose companions [wait](Rule::waits).
    Waiting,
}

impl Place {
    /// Whose room the match of a rule and a workload takes.
    pub(super) fn of(rule: Option<&Arc<Rule>>, workload: &Workload) -> Self {
        if rule.is_some_and(|rule| rule.waits(workload)) { Self::Waiting } else { Self::Companion }
    }
}

/// Room for matches, and who lacks it.
#[derive(Debug)]
pub(super) struct Room {
    /// How many pairs of the tenant's own rules there may be in each place.
    pub(super) most: usize,
    companions: Matches,
    waiting: Matches,
    /// Rules for which there was no room.
    short: BTreeSet<RuleName>,
    /// Workloads for which more or less is left out since [`Self::changed`].
    changed: BTreeSet<Arc<str>>,
}

/// The matches in one place.
#[derive(Debug, Default)]
struct Matches {
    taken: usize,
    /// Workloads, by label value, that match rules for which there was no room. Those may have gone since.
    lacking: BTreeSet<Arc<str>>,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            most: usize::MAX,
            companions: Matches::default(),
            waiting: Matches::default(),
            short: BTreeSet::new(),
            changed: BTreeSet::new(),
        }
    }
}

impl Room {
    fn of(&mut self, place: Place) -> &mut Matches {
        match place {
            Place::Companion => &mut self.companions,
            Place::Waiting => &mut self.waiting,
        }
    }

    /// Takes room for one more pair; `false` where there is none, which is kept in mind.
    pub(super) fn take(&mut self, rule: &RuleName, workload: &Arc<str>, place: Place) -> bool {
        if rule.is_admin() {
            return true;
        }
        let most = self.most;
        let matches = self.of(place);
        if matches.taken < most {
            matches.taken += 1;
            return true;
        }
        matches.lacking.insert(workload.clone());
        self.changed.insert(workload.clone());
        if !self.short.contains(rule) {
            self.short.insert(rule.clone());
        }
        false
    }

    /// How many pairs of the tenant's own rules there are, without those that wait.
    pub(super) fn taken(&self) -> usize {
        self.companions.taken
    }

    /// A pair of a rule is no more.
    pub(super) fn give(&mut self, rule: &RuleName, place: Place) {
        if !rule.is_admin() {
            self.of(place).taken -= 1;
        }
    }

    /// A workload is about to be looked at, or gone.
    pub(super) fn forget(&mut self, workload: &Arc<str>) {
        let lacked = [self.companions.lacking.remove(workload), self.waiting.lacking.remove(workload)];
        if lacked.contains(&true) {
            self.changed.insert(workload.clone());
        }
        self.settle();
    }

    /// A rule is gone, or about to be matched with all workloads; it has given its room back.
    pub(super) fn forget_rule(&mut self, rule: &RuleName) {
        if self.short.remove(rule) {
            let lacking: Vec<Arc<str>> = self.lacking_after(None).cloned().collect();
            self.changed.extend(lacking);
            if self.short.is_empty() {
                self.companions.lacking.clear();
                self.waiting.lacking.clear();
            }
        }
    }

    /// Whether there is room for what was left out.
    pub(super) fn has_more(&self) -> bool {
        [&self.companions, &self.waiting].iter().any(|matches| matches.has_more(self.most))
    }

    /// A workload for which there may be room now; it is taken off those that lack some.
    pub(super) fn next(&mut self) -> Option<Arc<str>> {
        let most = self.most;
        let next = self.companions.next(most).or_else(|| self.waiting.next(most));
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
        let mut both =
            [&self.companions, &self.waiting].map(|matches| matches.lacking.range(after(label)).peekable());
        std::iter::from_fn(move || {
            let least = both.iter_mut().filter_map(|labels| labels.peek().copied()).min()?;
            for labels in &mut both {
                labels.next_if_eq(&least);
            }
            Some(least)
        })
    }

    /// How many workloads there are of which matches may have been left out.
    pub(super) fn lacking(&self) -> usize {
        self.companions.lacking.union(&self.waiting.lacking).count()
    }

    /// Whether matches of a workload may have been left out.
    pub(super) fn lacks(&self, workload: &str) -> bool {
        self.companions.lacking.contains(workload) || self.waiting.lacking.contains(workload)
    }

    /// Whether matches of a rule may have been left out.
    pub(super) fn is_short(&self, rule: &RuleName) -> bool {
        self.short.contains(rule)
    }

    /// Which of the rules a workload lacked isn't kept: all are well when all workloads are.
    fn settle(&mut self) {
        if self.companions.lacking.is_empty() && self.waiting.lacking.is_empty() {
            self.short.clear();
        }
    }
}

impl Matches {
    fn has_more(&self, most: usize) -> bool {
        self.taken < most && !self.lacking.is_empty()
    }

    fn next(&mut self, most: usize) -> Option<Arc<str>> {
        if self.has_more(most) { self.lacking.pop_first() } else { None }
    }
}
