//! What the state of a tenant says of its rollouts: which companions may be replaced, and what becomes known of these.

use std::sync::Arc;

use outrigger_core::companion::{Held, Observed};
use outrigger_core::fault;
use outrigger_core::ids::RuleName;
use outrigger_core::index::{CompanionKey, Desired, TenantIndex};
use outrigger_core::rollout::{MaxUnavailable, UpdateStrategy};
use serde_json::Value;

use super::groups::Groups;
use super::permission::Permission;
use super::{Availability, Moment, Rollout, Rollouts, serves};
use crate::state::companions::CompanionCache;
use crate::state::registry::Registry;
use crate::state::tenant::TenantData;

impl TenantData {
    /// The workloads are known for the first time. Companions that should exist and don't are down, whatever deleted them: a rollout
    /// that another process began continues from there.
    pub(crate) fn first_sync(&mut self, keys: &[CompanionKey]) {
        let companions = keys.iter().flat_map(|key| self.index.companions_of(key));
        for key in &companions.collect::<Vec<_>>() {
            let wanted = matches!(self.index.desired(key), Desired::Wanted { .. });
            if wanted
                && self.read_companions(&key.rule, |companions| companions.get(key).is_none()) == Some(true)
                && !fault("takeover-forgets-what-is-down")
            {
                self.rollouts.missing(key);
                self.with_companions(&key.rule, |companions| companions.missing(key));
            }
        }
    }

    /// The record that a companion waits for its groups from now on, where one is missing: a JSON merge patch.
    pub(crate) fn hold_record(&self, key: &CompanionKey, at: Moment) -> Option<Value> {
        if !self.rollouts.by_rule.get(&key.rule)?.held.contains(&key.workload) {
            return None;
        }
        let generation = self.rules.get(&key.rule)?.generation;
        let record = |companion: &Observed| {
            let unrecorded = Permission::without_groups(key, Some(companion), generation, at);
            let since = format!("{:.3}", at.wall);
            (unrecorded == Permission::Unrecorded).then(|| Held::mark(companion, &since, generation))
        };
        self.read_companion(key, record).flatten()
    }

    /// Whether a companion of an earlier template may be replaced now; otherwise it waits for its turn.
    pub(crate) fn may_replace(&mut self, key: &CompanionKey, registry: &Registry, at: Moment) -> bool {
        let (Some(rule), Some(entry)) = (self.index.rule(&key.rule), self.rules.get(&key.rule)) else {
            return false;
        };
        if !entry.validation.has_passed() && !fault("untried-template-is-rolled-out") {
            self.rollouts.wait(key);
            return false;
        }
        let (strategy, generation) = (rule.update(), entry.generation);
        self.with_rollouts(&key.rule, strategy, registry, |rollouts, scene| {
            let ready = scene.companions.get(key).is_some_and(serves);
            let settles = scene.index.workload(&key.workload).is_some_and(|workload| workload.ready);
            rollouts.ask(key, (ready, settles), strategy, scene.availability, |rollout, wait| {
                let mut groups = scene.groups(rollout);
                let otherwise = || scene.without_groups(key, generation, at);
                rollout.permits(&mut groups, (&key.workload, wait), otherwise) == Permission::Goes
            })
        })
        .unwrap_or_default()
    }

    /// Whether a companion is ready, and isn't being deleted.
    pub(crate) fn serves(&self, key: &CompanionKey) -> bool {
        self.read_companion(key, serves).unwrap_or_default()
    }

    /// The companion with this uid, if it may be replaced as [`Self::may_replace`] has decided. One that was down then needed no room in the
    /// rollout; it may be ready since, and has to ask again.
    pub(crate) fn replaceable(&self, key: &CompanionKey, uid: &str) -> Option<Observed> {
        let companion = self.read_companion(key, Observed::clone).filter(|o| o.uid == uid)?;
        (!serves(&companion) || self.rollouts.concerns(key)).then_some(companion)
    }

    /// Companions whose turn in a rollout has come.
    pub(crate) fn turns(&mut self, rule: &RuleName, registry: &Registry, at: Moment) -> Vec<CompanionKey> {
        let Some(entry) = self.rules.get(rule).filter(|_| self.rollouts.waits(rule)) else {
            return Vec::new();
        };
        if !entry.validation.has_passed() {
            return Vec::new();
        }
        let generation = entry.generation;
        let Some(strategy) = self.index.rule(rule).map(|rule| rule.update()) else { return Vec::new() };
        if strategy == UpdateStrategy::OnDelete {
            return Vec::new();
        }
        self.with_rollouts(rule, strategy, registry, |rollouts, scene| {
            let mut groups = None;
            rollouts.next(rule, strategy, (scene.availability, at.now), |rollout, workload, wait| {
                let groups = groups.get_or_insert_with(|| scene.groups(rollout));
                let permission = rollout.permits(groups, (workload, wait), || {
                    let key = CompanionKey { rule: rule.clone(), workload: workload.clone() };
                    scene.without_groups(&key, generation, at)
                });
                if permission == Permission::Goes {
                    groups.take(workload);
                }
                permission
            })
        })
        .unwrap_or_default()
    }

    /// Companions whose turn has come in any rollout.
    pub(crate) fn all_turns(&mut self, registry: &Registry, at: Moment) -> Vec<CompanionKey> {
        let rules = self.rollouts.waiting();
        rules.iter().flat_map(|rule| self.turns(rule, registry, at)).collect()
    }

    /// A companion may be other than before.
    pub(crate) fn companion_observed(&mut self, key: &CompanionKey) {
        if self.rollouts.concerns(key) {
            let now = self.read_companion(key, Observed::clone);
            self.rollouts.observed(key, now.as_ref());
        } else if self.read_companions(&key.rule, |companions| companions.has_run(key)) == Some(true)
            && matches!(self.index.desired(key), Desired::Wanted { .. })
        {
            // Whoever has deleted it: it is down until it is there again.
            self.rollouts.missing(key);
        }
        self.forget_if_unwanted(key);
    }

    /// The companions of a rule for a workload on single DPUs that are missing, and that something waits for. Once they aren't wanted any
    /// longer, a step of each is needed, which forgets it: nothing else would bring its key, and its place would never be free.
    pub(crate) fn missing_on_dpus(&self, key: &CompanionKey) -> Vec<CompanionKey> {
        let gone = |companions: &CompanionCache| companions.gone_on_dpus(key).collect();
        let mut missing: Vec<_> = self.read_companions(&key.rule, gone).unwrap_or_default();
        missing.extend(self.rollouts.on_dpus(key));
        missing
    }

    /// A companion that is no longer wanted takes no part in a rollout.
    pub(crate) fn companion_unwanted(&mut self, key: &CompanionKey) {
        self.rollouts.unwanted(key);
        self.forget_if_unwanted(key);
    }

    /// What is known of a missing companion is forgotten, unless it is going to be created again: now, or when its rule is valid again, or
    /// its workload has a node or room. A replica that the tenant's agent isn't connected to remembers nothing.
    fn forget_if_unwanted(&mut self, key: &CompanionKey) {
        let desired = self.index.desired(key);
        let ends = matches!(desired, Desired::Unwanted | Desired::OnOtherDpus { .. } | Desired::Ended { .. });
        if ends || !self.index.synced() || !self.rules.contains_key(&key.rule) {
            self.with_companions(&key.rule, |companions| companions.unwanted(key));
        }
    }

    /// What a decision about a rule's rollout depends on; `None` where another namespace of the tenant has its companions.
    fn with_rollouts<R>(
        &mut self,
        rule: &RuleName,
        strategy: UpdateStrategy,
        registry: &Registry,
        f: impl FnOnce(&mut Rollouts, &Scene<'_>) -> R,
    ) -> Option<R> {
        let Self { tenant, index, companions, admin_companions, rollouts, .. } = self;
        let mut admin = admin_companions.as_ref().filter(|_| rule.is_admin()).map(|store| store.lock());
        let companions = if rule.is_admin() { admin.as_deref_mut()? } else { companions };
        rollouts.catch_up(rule, |workload| companions.exists(rule, workload));
        let has_dpu = |host: &str| tenant.as_ref().is_some_and(|tenant| registry.has_dpu(tenant, host));
        let mut availability = companions.availability(rule, registry.dpu_epoch(), has_dpu);
        if let Some(now) = index.rule(rule) {
            let makes = |template: &str, content: Option<&str>| now.makes(template, content);
            // Where the agent doesn't say whether there should be one, it stays.
            let is_replaced = |workload: &Arc<str>| {
                let key = CompanionKey { rule: rule.clone(), workload: workload.clone() };
                matches!(index.desired(&key), Desired::Wanted { .. } | Desired::Unknown)
            };
            availability.outdated_down = companions.is_outdated_one_down(rule, makes, is_replaced);
            if rule.is_admin() {
                availability.crowded = companions.crowded(rule, makes);
            }
        }
        let max = match strategy {
            UpdateStrategy::RollingUpdate(max) => max,
            UpdateStrategy::OnDelete => MaxUnavailable::default(),
        };
        Some(f(rollouts, &Scene { rule, max, availability, index, companions, has_dpu: &has_dpu }))
    }
}

/// A rule's companions and their workloads.
struct Scene<'a> {
    rule: &'a RuleName,
    max: MaxUnavailable,
    availability: Availability,
    index: &'a TenantIndex,
    companions: &'a CompanionCache,
    has_dpu: &'a dyn Fn(&str) -> bool,
}

impl<'a> Scene<'a> {
    fn without_groups(&self, key: &CompanionKey, generation: i64, at: Moment) -> Permission {
        Permission::without_groups(key, self.companions.get(key), generation, at)
    }

    fn groups(&self, rollout: &Rollout) -> Groups<'a> {
        Groups::new(self.index, self.companions, rollout, (self.rule, self.max), self.has_dpu)
    }
}
