//! Rollouts: companions of an earlier template are replaced by those of the new one, a few at a time.
//!
//! Unavailable companions are counted from those that exist and from those that the rollout itself has deleted and that have not been
//! created again. Companions that no DPU could run don't count: they would block a rollout for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outrigger_core::companion::Observed;
use outrigger_core::ids::RuleName;
use outrigger_core::index::{CompanionKey, Desired};
use outrigger_core::rollout::UpdateStrategy;

use super::companions::CompanionCache;
use super::registry::Registry;
use super::tenant::TenantData;

#[derive(Debug, Default)]
pub(crate) struct Rollouts {
    by_rule: BTreeMap<RuleName, Rollout>,
}

#[derive(Debug, Default)]
struct Rollout {
    /// Workloads whose companions wait for their turn.
    waiting: BTreeSet<Arc<str>>,
    /// Workloads whose companions are being replaced.
    replaced: BTreeMap<Arc<str>, Stage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is available, and will be deleted.
    Doomed,
    /// It is not available, and exists.
    Down,
    /// It is deleted, and not created again yet.
    Gone,
}

/// How a rule's companions stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Availability {
    pub existing: usize,
    /// How many of these aren't ready, without those that no DPU could run.
    pub unready: usize,
}

impl Rollouts {
    /// Whether a companion of an earlier template may be replaced now, which then counts as decided. Otherwise it waits.
    pub(crate) fn ask(
        &mut self,
        key: &CompanionKey,
        ready: bool,
        strategy: UpdateStrategy,
        availability: Availability,
    ) -> bool {
        let rollout = self.by_rule.entry(key.rule.clone()).or_default();
        // A companion that is down already is replaced at once.
        let stage = if ready { Stage::Doomed } else { Stage::Down };
        let turn = strategy != UpdateStrategy::OnDelete
            && (!ready
                || rollout.budget(strategy, availability) > 0
                || rollout.replaced.contains_key(&key.workload));
        if turn {
            rollout.waiting.remove(&key.workload);
            rollout.replaced.insert(key.workload.clone(), stage);
        } else {
            rollout.waiting.insert(key.workload.clone());
        }
        turn
    }

    /// A companion waits, whatever the budget: its rule's new template has not been validated.
    pub(crate) fn wait(&mut self, key: &CompanionKey) {
        self.by_rule.entry(key.rule.clone()).or_default().waiting.insert(key.workload.clone());
    }

    pub(crate) fn concerns(&self, key: &CompanionKey) -> bool {
        self.by_rule.get(&key.rule).is_some_and(|rollout| rollout.replaced.contains_key(&key.workload))
    }

    /// A replacement that was decided didn't happen.
    pub(crate) fn undo(&mut self, key: &CompanionKey) {
        if let Some(rollout) = self.by_rule.get_mut(&key.rule) {
            rollout.replaced.remove(&key.workload);
        }
        self.tidy(&key.rule);
    }

    /// A companion should exist and doesn't, for an unknown time.
    pub(crate) fn missing(&mut self, key: &CompanionKey) {
        let rollout = self.by_rule.entry(key.rule.clone()).or_default();
        rollout.replaced.insert(key.workload.clone(), Stage::Gone);
    }

    pub(crate) fn waiting(&self) -> Vec<RuleName> {
        let waiting = self.by_rule.iter().filter(|(_, rollout)| !rollout.waiting.is_empty());
        waiting.map(|(rule, _)| rule.clone()).collect()
    }

    /// A companion is like this now.
    pub(crate) fn observed(&mut self, key: &CompanionKey, now: Option<&Observed>) {
        let Some(rollout) = self.by_rule.get_mut(&key.rule) else { return };
        let Some(stage) = rollout.replaced.get_mut(&key.workload) else { return };
        let serves = now.is_some_and(|o| o.ready && !o.terminating);
        match (*stage, now) {
            (_, None) => *stage = Stage::Gone,
            (Stage::Doomed, Some(_)) if !serves => *stage = Stage::Down,
            (Stage::Gone, Some(_)) => {
                rollout.replaced.remove(&key.workload);
            }
            (Stage::Down, Some(_)) if serves => {
                rollout.replaced.remove(&key.workload);
            }
            _ => {}
        }
        self.tidy(&key.rule);
    }

    /// A companion that is no longer wanted takes no part in a rollout.
    pub(crate) fn unwanted(&mut self, key: &CompanionKey) {
        if let Some(rollout) = self.by_rule.get_mut(&key.rule) {
            rollout.waiting.remove(&key.workload);
            rollout.replaced.remove(&key.workload);
        }
        self.tidy(&key.rule);
    }

    /// A rollout that is over is forgotten.
    fn tidy(&mut self, rule: &RuleName) {
        if self.by_rule.get(rule).is_some_and(|r| r.waiting.is_empty() && r.replaced.is_empty()) {
            self.by_rule.remove(rule);
        }
    }

    pub(crate) fn waits(&self, rule: &RuleName) -> bool {
        self.by_rule.get(rule).is_some_and(|rollout| !rollout.waiting.is_empty())
    }

    /// The companions whose turn has come. [`Self::ask`] decides about each again.
    pub(crate) fn next(
        &mut self,
        rule: &RuleName,
        strategy: UpdateStrategy,
        availability: Availability,
    ) -> Vec<CompanionKey> {
        let Some(rollout) = self.by_rule.get_mut(rule) else { return Vec::new() };
        let turns = rollout.budget(strategy, availability);
        let mut keys = Vec::new();
        while keys.len() < turns
            && let Some(workload) = rollout.waiting.pop_first()
        {
            keys.push(CompanionKey { rule: rule.clone(), workload });
        }
        self.tidy(rule);
        keys
    }

    /// No companion waits now. Returns those that did: [`Self::ask`] decides about each again.
    pub(crate) fn restart(&mut self, rule: &RuleName) -> Vec<CompanionKey> {
        let waiting = self.by_rule.get_mut(rule).map(|rollout| std::mem::take(&mut rollout.waiting));
        let key = |workload| CompanionKey { rule: rule.clone(), workload };
        waiting.unwrap_or_default().into_iter().map(key).collect()
    }

    pub(crate) fn forget(&mut self, rule: &RuleName) {
        self.by_rule.remove(rule);
    }
}

impl Rollout {
    fn budget(&self, strategy: UpdateStrategy, availability: Availability) -> usize {
        let count = |stage| self.replaced.values().filter(|s| **s == stage).count();
        let gone = count(Stage::Gone);
        strategy.budget(availability.existing + gone, availability.unready + gone + count(Stage::Doomed))
    }
}

impl TenantData {
    /// The workloads are known for the first time. Companions that should exist and don't are down, whatever deleted them: a rollout
    /// that another process began continues from there.
    pub(crate) fn first_sync(&mut self, keys: &[CompanionKey]) {
        for key in keys {
            let wanted = matches!(self.index.desired(key), Desired::Wanted { .. });
            if wanted
                && self.with_companions(&key.rule, |companions| companions.get(key).is_none()) == Some(true)
            {
                self.rollouts.missing(key);
            }
        }
    }

    /// Whether a companion of an earlier template may be replaced now; otherwise it waits for its turn.
    pub(crate) fn may_replace(&mut self, key: &CompanionKey, registry: &Registry) -> bool {
        let (Some(rule), Some(entry)) = (self.index.rule(&key.rule), self.rules.get(&key.rule)) else {
            return false;
        };
        if !entry.validation.has_passed() {
            self.rollouts.wait(key);
            return false;
        }
        let strategy = rule.update();
        let serves =
            |companions: &mut CompanionCache| companions.get(key).is_some_and(|o| o.ready && !o.terminating);
        let ready = self.with_companions(&key.rule, serves).unwrap_or_default();
        let availability = self.availability(&key.rule, registry);
        self.rollouts.ask(key, ready, strategy, availability)
    }

    /// Companions whose turn in a rollout has come.
    pub(crate) fn turns(&mut self, rule: &RuleName, registry: &Registry) -> Vec<CompanionKey> {
        if !self.rollouts.waits(rule)
            || !self.rules.get(rule).is_some_and(|entry| entry.validation.has_passed())
        {
            return Vec::new();
        }
        let Some(strategy) = self.index.rule(rule).map(|rule| rule.update()) else { return Vec::new() };
        if strategy == UpdateStrategy::OnDelete {
            return Vec::new();
        }
        let availability = self.availability(rule, registry);
        self.rollouts.next(rule, strategy, availability)
    }

    /// Companions whose turn has come in any rollout.
    pub(crate) fn all_turns(&mut self, registry: &Registry) -> Vec<CompanionKey> {
        let rules = self.rollouts.waiting();
        rules.iter().flat_map(|rule| self.turns(rule, registry)).collect()
    }

    /// A companion may be other than before.
    pub(crate) fn companion_observed(&mut self, key: &CompanionKey) {
        if self.rollouts.concerns(key) {
            let now = self.with_companions(&key.rule, |companions| companions.get(key).cloned()).flatten();
            self.rollouts.observed(key, now.as_ref());
        }
    }

    fn availability(&mut self, rule: &RuleName, registry: &Registry) -> Availability {
        let tenant = self.tenant.clone();
        let has_dpu = |host: &str| tenant.as_ref().is_some_and(|tenant| registry.has_dpu(tenant, host));
        self.with_companions(rule, |companions| companions.availability(rule, has_dpu)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: UpdateStrategy =
        UpdateStrategy::RollingUpdate(outrigger_core::rollout::MaxUnavailable::Percent(25));

    fn key(i: usize) -> CompanionKey {
        CompanionKey { rule: RuleName::new("r").unwrap(), workload: format!("w{i:03}").into() }
    }

    fn pod(hash: &str, ready: bool) -> Observed {
        Observed { uid: hash.into(), template_hash: hash.into(), ready, ..Observed::default() }
    }

    /// Companions, and what is done to them by a rollout that is asked about one after the other.
    struct Stage {
        store: CompanionCache,
        rollouts: Rollouts,
        /// To be looked at.
        queue: Vec<CompanionKey>,
        most_down: usize,
    }

    impl Stage {
        fn new(count: usize) -> Self {
            let mut store = CompanionCache::default();
            for i in 0..count {
                store.applied(&i.to_string(), key(i), pod("old", true));
            }
            let queue = (0..count).map(key).collect();
            Self { store, rollouts: Rollouts::default(), queue, most_down: 0 }
        }

        fn availability(&self) -> Availability {
            self.store.availability(&key(0).rule, |_| true)
        }

        fn set(&mut self, key: &CompanionKey, new: Option<Observed>) {
            _ = match new {
                Some(new) => self.store.applied(&key.workload, key.clone(), new),
                None => self.store.deleted(outrigger_core::template::Kind::Pod, &key.workload),
            };
            self.rollouts.observed(key, self.store.get(key));
        }

        /// Every key in the queue gets its step; returns those that are to be deleted.
        fn steps(&mut self) -> Vec<CompanionKey> {
            let mut deletes = Vec::new();
            for key in std::mem::take(&mut self.queue) {
                let ready = self.store.get(&key).unwrap().ready;
                if self.rollouts.ask(&key, ready, MAX, self.availability()) {
                    deletes.push(key);
                }
            }
            deletes
        }

        fn wake(&mut self) {
            let availability = self.availability();
            self.queue.extend(self.rollouts.next(&key(0).rule, MAX, availability));
        }

        fn count_down(&mut self, all: usize) {
            let ready = self.store.counts(&key(0).rule).ready;
            self.most_down = self.most_down.max(all - usize::try_from(ready).unwrap());
        }
    }

    #[test]
    fn no_more_than_a_quarter_is_ever_down() {
        for all in [1, 3, 4, 20, 101] {
            let mut stage = Stage::new(all);
            let mut rounds = 0;
            while stage.store.updated(&key(0).rule, "new") < i64::try_from(all).unwrap() {
                rounds += 1;
                assert!(rounds < 1000, "it stands still");
                let deletes = stage.steps();
                for key in &deletes {
                    stage.set(key, None);
                    stage.count_down(all);
                    stage.wake();
                }
                for key in &deletes {
                    stage.set(key, Some(pod("new", false)));
                    stage.wake();
                    stage.count_down(all);
                }
                // They become ready one by one, the last first.
                for key in deletes.iter().rev() {
                    stage.set(key, Some(pod("new", true)));
                    stage.wake();
                    stage.count_down(all);
                }
            }
            assert_eq!(stage.most_down, (all / 4).max(1), "of {all}");
            assert!(!stage.rollouts.waits(&key(0).rule));
            assert!(stage.rollouts.by_rule.is_empty(), "nothing is remembered");
        }
    }

    #[test]
    fn one_that_never_comes_up_holds_the_rest() {
        let mut stage = Stage::new(8);
        let deletes = stage.steps();
        assert_eq!(deletes.len(), 2);
        for key in &deletes {
            stage.set(key, None);
            stage.set(key, Some(pod("new", false)));
        }
        stage.wake();
        assert_eq!(stage.steps().len(), 0);
        assert!(stage.rollouts.waits(&key(0).rule));
        // A newer template: those that are down go at once, and no other.
        stage.rollouts.restart(&key(0).rule);
        stage.queue = (0..8).map(key).collect();
        let mut again = stage.steps();
        again.sort();
        assert_eq!(again, deletes);
    }

    #[test]
    fn one_that_no_dpu_could_run_holds_nobody() {
        let mut stage = Stage::new(4);
        let lost = Observed { unplaced: true, host: Some("nowhere".into()), ..pod("old", false) };
        stage.set(&key(9), Some(lost));
        let rule = key(0).rule;
        assert_eq!(stage.store.availability(&rule, |_| true), Availability { existing: 5, unready: 1 });
        assert_eq!(
            stage.store.availability(&rule, |host| host != "nowhere"),
            Availability { existing: 5, unready: 0 }
        );
    }

    #[test]
    fn what_another_process_took_away_is_down() {
        let mut stage = Stage::new(6);
        for i in [6, 7] {
            stage.rollouts.missing(&key(i));
        }
        assert_eq!(stage.steps().len(), 0, "two of eight are down already");
        stage.set(&key(6), Some(pod("new", true)));
        stage.wake();
        assert_eq!(stage.steps().len(), 1);
    }

    #[test]
    fn what_did_not_happen_frees_its_place() {
        let mut stage = Stage::new(4);
        assert_eq!(stage.steps(), [key(0)]);
        stage.rollouts.undo(&key(0));
        stage.wake();
        assert_eq!(stage.steps(), [key(1)]);
        stage.rollouts.unwanted(&key(1));
        stage.rollouts.wait(&key(0));
        stage.wake();
        assert_eq!(stage.queue, [key(0)]);
        assert!(!stage.rollouts.ask(&key(0), true, UpdateStrategy::OnDelete, stage.availability()));
        assert!(!stage.rollouts.ask(&key(0), false, UpdateStrategy::OnDelete, stage.availability()));
    }
}
