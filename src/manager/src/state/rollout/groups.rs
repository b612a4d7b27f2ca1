//! How many companions of a rule the groups of workloads may still lose: the workloads of one owner, and those of a PodDisruptionBudget.

use std::collections::HashMap as Memo;
use std::sync::Arc;

use outrigger_core::fault;
use outrigger_core::ids::RuleName;
use outrigger_core::index::{Members, TenantIndex, whole};
use outrigger_core::map::HashSet;
use outrigger_core::rollout::MaxUnavailable;
use outrigger_core::workload::{DisruptionGroup, Workload};

use super::{Rollout, Stage};
use crate::state::companions::CompanionCache;

/// The groups of a tenant's workloads during one decision about a rule's rollout.
pub(super) struct Groups<'a> {
    index: &'a TenantIndex,
    max: MaxUnavailable,
    /// Workloads that are without a companion of the rule, or soon will be, or aren't ready again since.
    down: HashSet<Arc<str>>,
    /// How many more companions each group may lose, by its id.
    left: Memo<DisruptionGroup, usize>,
}

impl<'a> Groups<'a> {
    /// `has_dpu`: whether a DPU is in a host. Companions that are [excused](CompanionCache::is_excused) don't count, as in
    /// [`CompanionCache::availability`].
    pub(super) fn new(
        index: &'a TenantIndex,
        companions: &CompanionCache,
        rollout: &Rollout,
        (rule, max): (&RuleName, MaxUnavailable),
        has_dpu: impl Fn(&str) -> bool,
    ) -> Self {
        let mut down: HashSet<Arc<str>> = companions.unready(rule, &has_dpu).map(whole).collect();
        let soon = rollout.replaced.iter().filter(|(_, stage)| **stage != Stage::Down);
        down.extend(soon.map(|(workload, _)| whole(workload)));
        let is_ready = |workload: &Arc<str>| index.workload(workload).is_none_or(|w| w.ready);
        let waits = |workload: &&Arc<str>| {
            !is_ready(workload)
                && !companions.is_excused(rule, workload, &has_dpu)
                && !fault("workloads-that-get-ready-are-not-down")
        };
        down.extend(rollout.settling.iter().filter(waits).map(whole));
        Self { index, max, down, left: Memo::default() }
    }

    /// Whether all groups of a workload permit that it loses its companion now.
    pub(super) fn permit(&mut self, workload: &str) -> bool {
        let Some(workload) = self.index.workload(workload) else { return true };
        restricting(workload).all(|group| self.left(group) > 0)
    }

    /// The workload is going to lose its companion.
    pub(super) fn take(&mut self, workload: &str) {
        let Some(workload) = self.index.workload(workload) else { return };
        for group in restricting(workload) {
            let left = self.left(group);
            self.left.insert(group.clone(), left.saturating_sub(1));
        }
    }

    fn left(&mut self, group: &DisruptionGroup) -> usize {
        if let Some(left) = self.left.get(group) {
            return *left;
        }
        let left = self.index.group(&group.id).map_or(0, |members| self.count(group, members));
        self.left.insert(group.clone(), left);
        left
    }

    fn count(&self, group: &DisruptionGroup, members: &Members) -> usize {
        let labels = members.labels();
        let down = || -> Box<dyn Iterator<Item = &Arc<str>>> {
            if labels.len() < self.down.len() {
                Box::new(labels.iter().filter(|workload| self.down.contains(*workload)))
            } else {
                Box::new(self.down.iter().filter(|workload| labels.contains(*workload)))
            }
        };
        match group.desired_healthy {
            None => self.max.of(labels.len()).saturating_sub(down().count()),
            Some(desired) => {
                let is_ready = |workload: &&Arc<str>| self.index.workload(workload).is_some_and(|w| w.ready);
                let healthy = members.ready().saturating_sub(down().filter(is_ready).count());
                healthy.saturating_sub(usize::try_from(desired).unwrap_or(usize::MAX))
            }
        }
    }
}

/// The groups that matter when a workload loses its companion. One that isn't ready is none of those that a PodDisruptionBudget counts
/// as healthy.
fn restricting(workload: &Workload) -> impl Iterator<Item = &DisruptionGroup> {
    workload.groups.iter().filter(|group| group.desired_healthy.is_none() || workload.ready)
}
