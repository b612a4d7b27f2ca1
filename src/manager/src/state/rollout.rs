//! Rollouts: companions of an earlier template are replaced by those of the new one, a few at a time.
//!
//! Unavailable companions are counted from those that exist and from those that were deleted, by whomever, and have not been created
//! again. Companions that no DPU could run don't count, and neither do those that the scheduler finds no Node for, where the
//! workload has never had one that ran: they would block a rollout for ever.
//!
//! Besides the rule's own maximum there are the [`groups`] of the workloads, which the tenant tells: the workloads of one owner, and those
//! of a PodDisruptionBudget. A tenant can only delay its own rules by them. Rules of the platform wait for them no longer than the
//! administrator permits (`--admin-rollout-deadline`), and no longer for companions that have no room where another one of the new template
//! runs: a tenant may have more workloads than its DPUs have room for, and then the place of one that is replaced goes to another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use outrigger_core::companion::Observed;
use outrigger_core::fault;
use outrigger_core::ids::RuleName;
use outrigger_core::index::CompanionKey;
use outrigger_core::rollout::UpdateStrategy;
use tokio::time::Instant;

use self::groups::Groups;
use self::permission::{Permission, Wait};
use super::companions::of_workload;

mod groups;
mod of_tenant;
mod permission;

/// The time after which a rollout that waits for groups is looked at again. What changes in them isn't always about the rule.
const LOOK: Duration = Duration::from_secs(10);
/// The time between two questions about all that wait, where the answer was that none may go: there may be very many, and every step of the
/// rule asks.
const QUIET: Duration = Duration::from_secs(1);

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
    /// Workloads that were ready when their companions were replaced. Until they are ready again they count as down in their groups, but
    /// not in the rule's own maximum.
    settling: BTreeSet<Arc<str>>,
    /// Companions of `waiting` that wait for their groups. Since when is recorded on those of the platform
    /// ([`Held`](outrigger_core::companion::Held)).
    held: BTreeSet<Arc<str>>,
    /// When the rollout is looked at again.
    look: Option<Instant>,
    /// Until when those that wait aren't asked about: their groups have just permitted none of them, and nothing was replaced since.
    quiet: Option<Instant>,
}

/// When a decision about a rollout is made, and by which rules.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub now: Instant,
    /// The same by the clock that records are written by.
    pub wall: Timestamp,
    /// For how long a companion of an admin rule waits for its groups.
    pub admin_deadline: Duration,
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
    /// How many of these aren't ready, without those that are [excused](super::companions::CompanionCache::is_excused).
    pub unready: usize,
    /// How many of `unready` are companions of the platform that have no room on a DPU on which another one of the present template runs.
    pub crowded: usize,
    /// A companion of an earlier template isn't available and is still to be replaced. That costs nothing, so it goes before those that are
    /// available, as of a Deployment (`cleanupUnhealthyReplicas`). Otherwise one of the earlier template could get the room of one that
    /// is replaced: it would wait for its turn then, and the replaced one for room, which may use up the maximum for ever.
    pub outdated_down: bool,
}

/// Whether a companion is ready and stays so, as far as is known.
pub(crate) fn serves(o: &Observed) -> bool {
    o.ready && !o.terminating && !o.is_changing()
}

impl Rollouts {
    /// Whether a companion of an earlier template may be replaced now, which then counts as decided. Otherwise it waits. `permitted`:
    /// whether its groups permit it, which is asked only where they matter; `settles`: its workload is ready.
    fn ask(
        &mut self,
        key: &CompanionKey,
        (ready, settles): (bool, bool),
        strategy: UpdateStrategy,
        availability: Availability,
        permitted: impl FnOnce(&mut Rollout, Wait) -> bool,
    ) -> bool {
        let rollout = self.by_rule.entry(key.rule.clone()).or_default();
        let (room, wait) = rollout.room(strategy, availability);
        let ignored = room == 0 && fault("rollout-ignores-its-maximum");
        let wait = if ignored { Wait::ForGroups } else { wait };
        // A companion that is down already is replaced at once.
        let stage = if ready { Stage::Doomed } else { Stage::Down };
        let turn = strategy != UpdateStrategy::OnDelete
            && (!ready
                || rollout.replaced.contains_key(&key.workload)
                || (room > 0 || ignored) && permitted(rollout, wait));
        if turn {
            rollout.leaves(&key.workload);
            rollout.replaced.insert(key.workload.clone(), stage);
            if settles {
                rollout.settling.insert(key.workload.clone());
            }
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

    /// A replacement that was decided didn't happen. One that is down has been so before, or another has deleted it.
    pub(crate) fn undo(&mut self, key: &CompanionKey) {
        if let Some(rollout) = self.by_rule.get_mut(&key.rule)
            && rollout.replaced.get(&key.workload) == Some(&Stage::Doomed)
        {
            rollout.replaced.remove(&key.workload);
            rollout.settling.remove(&key.workload);
        }
        self.tidy(&key.rule);
    }

    /// A companion was changed in place instead of being replaced: its place is free once it serves.
    pub(crate) fn changed_in_place(&mut self, key: &CompanionKey) {
        let stage =
            self.by_rule.get_mut(&key.rule).and_then(|rollout| rollout.replaced.get_mut(&key.workload));
        if let Some(stage) = stage {
            *stage = Stage::Down;
        }
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
        rollout.quiet = None;
        let serves = now.is_some_and(serves);
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

    /// Those of a rule that were down count as deleted where they don't `exist`. A watch removes a companion from the cache before it calls
    /// [`Self::observed`], and another thread may decide in between: the companion would count neither as down nor as deleted.
    fn catch_up(&mut self, rule: &RuleName, exist: impl Fn(&Arc<str>) -> bool) {
        let of_rule = self.by_rule.get_mut(rule).into_iter().flat_map(|rollout| &mut rollout.replaced);
        for (workload, stage) in of_rule {
            if *stage == Stage::Down && !exist(workload) && !fault("rollout-lags-behind-its-cache") {
                *stage = Stage::Gone;
            }
        }
    }

    /// A companion that is no longer wanted takes no part in a rollout.
    pub(crate) fn unwanted(&mut self, key: &CompanionKey) {
        if let Some(rollout) = self.by_rule.get_mut(&key.rule) {
            rollout.leaves(&key.workload);
            rollout.replaced.remove(&key.workload);
            rollout.settling.remove(&key.workload);
        }
        self.tidy(&key.rule);
    }

    /// The companions of a rule for a workload that were on single DPUs, and are being replaced.
    fn on_dpus(&self, key: &CompanionKey) -> impl Iterator<Item = CompanionKey> {
        let of_rule = self.by_rule.get(&key.rule).into_iter();
        of_rule.flat_map(|of| of_workload(key, |first| of.replaced.range::<str, _>(first).map(|(at, _)| at)))
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

    /// The companions whose turn has come, of those that are `permitted`, and those that need a record of their waiting: [`Self::ask`]
    /// decides about each again. It is asked about one that waits as long as there is room in the rule's own maximum.
    fn next(
        &mut self,
        rule: &RuleName,
        strategy: UpdateStrategy,
        (availability, now): (Availability, Instant),
        mut permitted: impl FnMut(&mut Rollout, &Arc<str>, Wait) -> Permission,
    ) -> Vec<CompanionKey> {
        let Some(rollout) = self.by_rule.get_mut(rule) else { return Vec::new() };
        let (turns, wait) = rollout.room(strategy, availability);
        let (mut keys, mut unrecorded) = (Vec::new(), Vec::new());
        let key = |workload| CompanionKey { rule: rule.clone(), workload };
        if let Some(until) = rollout.quiet.filter(|until| now < *until) {
            rollout.look = Some(rollout.look.map_or(until, |at| at.min(until)));
        } else if turns > 0 {
            for workload in std::mem::take(&mut rollout.waiting) {
                let permission =
                    if keys.len() < turns { permitted(rollout, &workload, wait) } else { Permission::Waits };
                if permission == Permission::Goes {
                    keys.push(key(workload));
                    continue;
                }
                if permission == Permission::Unrecorded {
                    unrecorded.push(key(workload.clone()));
                }
                rollout.waiting.insert(workload);
            }
            rollout.quiet = keys.is_empty().then_some(now + QUIET);
        }
        self.tidy(rule);
        keys.append(&mut unrecorded);
        keys
    }

    /// One of the companions that wait for their groups, and the time after which a step for it looks at the rollout again. `None` where
    /// no companion does. It is asked for after each step, because an earlier step of that companion may be due, which takes this one's
    /// place.
    pub(crate) fn look(&mut self, rule: &RuleName, now: Instant) -> Option<(CompanionKey, Duration)> {
        let rollout = self.by_rule.get_mut(rule)?;
        let workload = rollout.held.first()?;
        let at = rollout.look.filter(|at| now < *at).unwrap_or(now + LOOK);
        rollout.look = Some(at);
        Some((CompanionKey { rule: rule.clone(), workload: workload.clone() }, at - now))
    }

    /// The same of all rollouts.
    pub(crate) fn look_at_all(&mut self, now: Instant) -> Vec<(CompanionKey, Duration)> {
        self.waiting().iter().filter_map(|rule| self.look(rule, now)).collect()
    }

    /// A companion is as its rule says, or is changed otherwise: it doesn't wait for a turn, and isn't going to be replaced.
    pub(crate) fn stays(&mut self, key: &CompanionKey) {
        let Some(rollout) = self.by_rule.get_mut(&key.rule) else { return };
        rollout.leaves(&key.workload);
        self.undo(key);
    }

    /// No companion waits now. Returns those that did: [`Self::ask`] decides about each again.
    pub(crate) fn restart(&mut self, rule: &RuleName) -> Vec<CompanionKey> {
        let waiting = self.by_rule.get_mut(rule).map(|rollout| {
            rollout.held.clear();
            rollout.quiet = None;
            std::mem::take(&mut rollout.waiting)
        });
        let key = |workload| CompanionKey { rule: rule.clone(), workload };
        waiting.unwrap_or_default().into_iter().map(key).collect()
    }

    pub(crate) fn forget(&mut self, rule: &RuleName) {
        self.by_rule.remove(rule);
    }
}

impl Rollout {
    /// A companion waits no longer.
    fn leaves(&mut self, workload: &Arc<str>) {
        self.waiting.remove(workload);
        self.held.remove(workload);
    }

    /// Whether a companion that waits so may be replaced. `otherwise`: what holds where the groups of its workload don't permit it.
    fn permits(
        &mut self,
        groups: &mut Groups<'_>,
        (workload, wait): (&Arc<str>, Wait),
        otherwise: impl FnOnce() -> Permission,
    ) -> Permission {
        let permitted = groups.permit(workload) || fault("rollout-ignores-owners-and-budgets");
        if wait == Wait::ForGroups && permitted {
            return Permission::Goes;
        }
        self.held.insert(workload.clone());
        otherwise()
    }

    /// How many more companions the rule's own maximum permits, and what each of them waits for.
    fn room(&self, strategy: UpdateStrategy, availability: Availability) -> (usize, Wait) {
        let count = |stage| self.replaced.values().filter(|s| **s == stage).count();
        let (gone, doomed) = (count(Stage::Gone), count(Stage::Doomed));
        let gone = if gone > 0 && fault("deleted-companions-are-not-down") { 0 } else { gone };
        if availability.outdated_down {
            return (0, Wait::ForGroups);
        }
        let budget = |unready: usize| strategy.budget(availability.existing + gone, unready + gone + doomed);
        match budget(availability.unready) {
            0 => (budget(availability.unready.saturating_sub(availability.crowded)), Wait::ForDeadline),
            room => (room, Wait::ForGroups),
        }
    }
}

#[cfg(test)]
mod tests;
