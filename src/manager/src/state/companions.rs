//! The companions of one namespace, by key and counted by rule. Which of two states of an object is newer has been decided before,
//! by the [`Feed`](outrigger_runtime::cache::Feed) of its kind.

use outrigger_core::map::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use outrigger_core::companion::{Observed, equal_part};
use outrigger_core::ids::RuleName;
use outrigger_core::index::CompanionKey;
use outrigger_core::template::Kind;

use self::hosts::{ANY, WaitingHosts};
use super::rollout::Availability;

mod hosts;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// They exist and are not being deleted.
    pub created: i64,
    /// Of these, those that are ready: Pods whose Ready condition is true, claims that have devices.
    pub ready: i64,
    /// Of `ready`, those that are being changed in place: a container of them may be restarted for it.
    pub changing: i64,
    /// Of `ready`, those that aren't as they should be ([`Observed::is_impaired`]).
    pub impaired: i64,
    /// Of these, claims that no Pod has used yet. A rollout doesn't wait for them.
    pub idle: i64,
    /// Besides these, companions that outlive their workloads.
    pub lingering: i64,
    /// Besides these, claims that are being deleted. They stay as long as Pods use them.
    pub leaving: i64,
}

impl Counts {
    /// A note for users about companions that outlive their workloads, to be appended to a message; empty where there are none.
    pub(crate) fn lingering_note(&self) -> String {
        match self.lingering {
            0 => String::new(),
            1 => "; 1 more companion outlives its workload (lingerSeconds)".to_owned(),
            n => format!("; {n} more companions outlive their workloads (lingerSeconds)"),
        }
    }

    /// A note for users about claims that can't be deleted, to be appended to a message; empty where there are none. Nothing deletes
    /// the Pods that use them, because others may own those.
    pub(crate) fn leaving_note(&self) -> String {
        match self.leaving {
            0 => String::new(),
            1 => {
                "; 1 claim that is being deleted waits for the Pods that use it: delete those Pods".to_owned()
            }
            n => format!(
                "; {n} claims that are being deleted wait for the Pods that use them: delete those Pods"
            ),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct CompanionCache {
    by_rule: BTreeMap<RuleName, RuleCompanions>,
    /// A second object with the key of one in `by_rule`, of another kind: two replicas may have made one each, when a rule's
    /// template became one of another kind.
    duplicates: BTreeMap<CompanionKey, Observed>,
    /// The companion that an object is, by the object's kind and name.
    names: HashMap<(Kind, Box<str>), CompanionKey>,
    /// How many companions outlive their workloads, of all rules.
    lingering: usize,
}

#[derive(Debug, Default)]
struct RuleCompanions {
    by_workload: BTreeMap<Arc<str>, Observed>,
    counts: Counts,
    /// Workloads of those that aren't available, and haven't ended.
    unready: BTreeSet<Arc<str>>,
    /// Workloads of those that the scheduler has found no Node for.
    unplaced: BTreeSet<Arc<str>>,
    /// The hosts that these have to run on, but for those that have never run.
    hosts: WaitingHosts,
    /// How many of `unplaced` have never run, and no companion of their workloads before them.
    never_run: usize,
    /// Workloads whose companion is gone, and may have run.
    gone: BTreeSet<Arc<str>>,
    /// Workloads that have ended, and whose companions linger or wait to be deleted for it.
    ended: BTreeSet<Arc<str>>,
    /// Those of `ended` that aren't being deleted, after the end of their workloads: the oldest comes first.
    lingering: BTreeSet<(i64, Arc<str>)>,
    /// How many that exist and are not being deleted were made from which template, by its hashes.
    templates: BTreeMap<Made, i64>,
    /// The same of those that aren't available.
    down: BTreeMap<Made, i64>,
    /// The same of those that are ready, by their hosts or [`ANY`].
    ready: HashMap<Box<str>, BTreeMap<Made, i64>>,
}

/// What a companion was made from: the hashes of the template as it is written and of what it means.
type Made = (String, Option<String>);

/// Adds to a count, or subtracts from it.
fn count<K: Ord>(counts: &mut BTreeMap<K, i64>, key: K, change: i64) {
    let count = counts.entry(key).or_default();
    *count += change;
    if *count == 0 {
        counts.retain(|_, count| *count != 0);
    }
}

/// The keys of a rule's companions for the workload of a key that are on single DPUs. `from`: what stands for workloads within these bounds, in
/// order.
pub(super) fn of_workload<'a, I: Iterator<Item = &'a Arc<str>>>(
    key: &CompanionKey,
    from: impl FnOnce((Bound<&str>, Bound<&str>)) -> I,
) -> Vec<CompanionKey> {
    let first = key.on("").workload;
    from((Bound::Included(&*first), Bound::Unbounded))
        .map(|workload| CompanionKey { rule: key.rule.clone(), workload: workload.clone() })
        .take_while(|other| other.label() == key.label())
        .collect()
}

/// The host whose DPU a companion has to run on.
fn host_of(o: &Observed) -> &str {
    o.host.as_deref().unwrap_or(ANY)
}

impl CompanionCache {
    pub(crate) fn get(&self, key: &CompanionKey) -> Option<&Observed> {
        self.by_rule.get(&key.rule)?.by_workload.get(&key.workload)
    }

    pub(crate) fn exists(&self, rule: &RuleName, workload: &Arc<str>) -> bool {
        self.by_rule.get(rule).is_some_and(|of_rule| of_rule.by_workload.contains_key(workload))
    }

    /// An object that has the key of a companion besides it, and is of another kind. There should be none.
    pub(crate) fn duplicate(&self, key: &CompanionKey) -> Option<&Observed> {
        self.duplicates.get(key)
    }

    /// An object is a companion and looks like this. Returns the key of the companion that it was before, if it was another.
    pub(crate) fn applied(
        &mut self,
        name: &str,
        key: CompanionKey,
        mut observed: Observed,
    ) -> Option<CompanionKey> {
        let kind = observed.kind;
        let known = [self.get(&key), self.duplicate(&key)];
        let was_ready = known.into_iter().flatten().any(|o| o.uid == observed.uid && o.was_ready);
        observed.was_ready = was_ready || observed.ready;
        let before = self.names.insert((kind, name.into()), key.clone()).filter(|before| *before != key);
        if let Some(before) = &before {
            self.remove(before, kind);
        }
        if self.get(&key).is_some_and(|o| o.kind != kind) {
            self.duplicates.insert(key, observed);
        } else {
            self.set(&key, Some(observed));
        }
        before
    }

    /// An object is deleted, or is no longer a companion. Returns the key of the companion that it was.
    pub(crate) fn deleted(&mut self, kind: Kind, name: &str) -> Option<CompanionKey> {
        let key = self.names.remove(&(kind, name.into()))?;
        self.remove(&key, kind);
        Some(key)
    }

    /// The API server has accepted a deletion by this replica.
    pub(crate) fn deleting(&mut self, key: &CompanionKey, uid: &str) {
        if let Some(observed) = self.get(key).filter(|o| o.uid == uid) {
            let observed = Observed { terminating: true, ready: false, ..observed.clone() };
            self.set(key, Some(observed));
        }
        if let Some(duplicate) = self.duplicates.get_mut(key).filter(|o| o.uid == uid) {
            duplicate.terminating = true;
        }
    }

    pub(crate) fn counts(&self, rule: &RuleName) -> Counts {
        self.by_rule.get(rule).map(|of_rule| of_rule.counts).unwrap_or_default()
    }

    /// How many companions of a rule were made from such a template, by its hashes, and are not being deleted.
    pub(crate) fn updated(&self, rule: &RuleName, makes: impl Fn(&str, Option<&str>) -> bool) -> i64 {
        let templates = self.by_rule.get(rule).into_iter().flat_map(|of_rule| &of_rule.templates);
        let made = templates.filter(|((template, content), _)| makes(template, content.as_deref()));
        made.map(|(_, count)| count).sum()
    }

    /// Whether a companion that isn't available, and isn't being deleted, was made from another template than such a one, by its hashes:
    /// one of a workload that `counts`.
    pub(crate) fn is_outdated_one_down(
        &self,
        rule: &RuleName,
        makes: impl Fn(&str, Option<&str>) -> bool,
        counts: impl Fn(&Arc<str>) -> bool,
    ) -> bool {
        let Some(of_rule) = self.by_rule.get(rule) else { return false };
        let outdated = |template: &str, content: Option<&str>| !makes(template, content);
        // Most often there is none, and many may be down: they are looked at only where there is one.
        of_rule.down.keys().any(|(template, content)| outdated(template, content.as_deref()))
            && of_rule.unready.iter().any(|workload| {
                let companion = of_rule.by_workload.get(workload).filter(|o| !o.terminating);
                companion.is_some_and(|o| outdated(&o.template_hash, o.content_hash.as_deref()))
                    && counts(workload)
            })
    }

    /// How many of a rule's companions are available, for its rollout; `has_dpu` tells whether a DPU is in a host, and `epoch` how often
    /// that has changed.
    pub(crate) fn availability(
        &mut self,
        rule: &RuleName,
        epoch: u64,
        has_dpu: impl Fn(&str) -> bool,
    ) -> Availability {
        let Some(of_rule) = self.by_rule.get_mut(rule) else { return Availability::default() };
        // No rollout concerns companions of workloads that have ended.
        let existing = of_rule.by_workload.len().saturating_sub(of_rule.ended.len());
        let Counts { ready, idle, changing, .. } = of_rule.counts;
        let available = usize::try_from(ready + idle - changing).unwrap_or_default();
        let excused = of_rule.never_run + of_rule.hosts.without_dpu(epoch, has_dpu);
        let unready = existing.saturating_sub(available).saturating_sub(excused);
        Availability { existing, unready, ..Availability::default() }
    }

    /// How many of those that count as not ready in the last answer of [`Self::availability`] have no Node, though a companion that was made
    /// from such a template, by its hashes, is ready on the DPU that they wait for: the template isn't the reason.
    pub(crate) fn crowded(&self, rule: &RuleName, makes: impl Fn(&str, Option<&str>) -> bool) -> usize {
        let Some(of_rule) = self.by_rule.get(rule) else { return 0 };
        let runs = |(host, _): &(&str, usize)| {
            let ready = of_rule.ready.get(*host);
            ready.is_some_and(|made| {
                made.keys().any(|(template, content)| makes(template, content.as_deref()))
            })
        };
        of_rule.hosts.with_dpu().filter(runs).map(|(_, companions)| companions).sum()
    }

    /// Nothing is known of DPUs: the companions are those of another tenant.
    pub(crate) fn forget_dpus(&mut self) {
        self.by_rule.values_mut().for_each(|of_rule| of_rule.hosts.forget());
    }

    /// The workloads whose companions of a rule aren't available, without those that are [excused](Self::is_excused): as many as
    /// [`Self::availability`] says.
    pub(crate) fn unready(
        &self,
        rule: &RuleName,
        has_dpu: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = &Arc<str>> {
        let unready = self.by_rule.get(rule).into_iter().flat_map(|of_rule| &of_rule.unready);
        unready.filter(move |workload| !self.is_excused(rule, workload, &has_dpu))
    }

    /// Whether the companion of a workload isn't down because of any rollout: no DPU could run it, or there was never room for one.
    pub(crate) fn is_excused(
        &self,
        rule: &RuleName,
        workload: &Arc<str>,
        has_dpu: impl Fn(&str) -> bool,
    ) -> bool {
        let Some(of_rule) = self.by_rule.get(rule).filter(|of_rule| of_rule.unplaced.contains(workload))
        else {
            return false;
        };
        let companion = of_rule.by_workload.get(workload);
        companion.is_some_and(|o| o.has_never_run() || o.host.as_deref().is_some_and(|host| !has_dpu(host)))
    }

    /// Whether a companion that is missing may have run before: there was one of its key, and it isn't known that it never had a Node.
    pub(crate) fn has_run(&self, key: &CompanionKey) -> bool {
        self.by_rule.get(&key.rule).is_some_and(|of_rule| of_rule.gone.contains(&key.workload))
    }

    /// A companion that should exist and doesn't may have run: nobody has seen it.
    pub(crate) fn missing(&mut self, key: &CompanionKey) {
        self.by_rule.entry(key.rule.clone()).or_default().gone.insert(key.workload.clone());
    }

    /// A companion that is missing is not going to be created again.
    pub(crate) fn unwanted(&mut self, key: &CompanionKey) {
        if let Some(of_rule) = self.by_rule.get_mut(&key.rule) {
            of_rule.gone.remove(&key.workload);
        }
        self.tidy(&key.rule);
    }

    /// The same of all companions of a rule.
    pub(crate) fn forget_missing(&mut self, rule: &RuleName) {
        if let Some(of_rule) = self.by_rule.get_mut(rule) {
            of_rule.gone.clear();
        }
        self.tidy(rule);
    }

    /// The same of all companions.
    pub(crate) fn forget_all_missing(&mut self) {
        self.by_rule.retain(|_, of_rule| {
            of_rule.gone.clear();
            !of_rule.by_workload.is_empty()
        });
    }

    fn tidy(&mut self, rule: &RuleName) {
        let is_empty = |of_rule: &RuleCompanions| of_rule.by_workload.is_empty() && of_rule.gone.is_empty();
        if self.by_rule.get(rule).is_some_and(is_empty) {
            self.by_rule.remove(rule);
        }
    }

    /// The companions of a rule that the scheduler has found no Node for.
    pub(crate) fn unplaced<'a>(&'a self, rule: &RuleName) -> impl Iterator<Item = &'a Observed> + use<'a> {
        let of_rule = self.by_rule.get(rule).into_iter();
        of_rule.flat_map(|of_rule| of_rule.unplaced.iter().filter_map(|w| of_rule.by_workload.get(w)))
    }

    /// The companions of workloads that have ended which give way where those of all rules may be `room` at most: the oldest of each
    /// rule beyond its part. No more than so many of each rule, because each deletion asks for the next.
    pub(crate) fn lingering_beyond(&self, room: usize, most: usize) -> Vec<CompanionKey> {
        let Some(part) = self.part(room) else { return Vec::new() };
        let beyond = |(rule, of_rule): (&RuleName, &RuleCompanions)| {
            let rule = rule.clone();
            let oldest = of_rule.beyond(part).take(most);
            let keys = oldest.map(|workload| CompanionKey { rule: rule.clone(), workload: workload.clone() });
            keys.collect::<Vec<_>>()
        };
        self.by_rule.iter().flat_map(beyond).collect()
    }

    /// How many companions outlive their workloads, of all rules.
    pub(crate) fn lingering(&self) -> usize {
        self.lingering
    }

    /// Whether a companion of a workload that has ended gives way.
    pub(crate) fn gives_way(&self, key: &CompanionKey, room: usize) -> bool {
        let (Some(part), Some(of_rule)) = (self.part(room), self.by_rule.get(&key.rule)) else {
            return false;
        };
        of_rule.beyond(part).any(|workload| *workload == key.workload)
    }

    /// How many companions of each rule may outlive their workloads; `None` where all that do may.
    fn part(&self, room: usize) -> Option<usize> {
        let counts = || self.by_rule.values().map(|of_rule| of_rule.lingering.len()).collect();
        (self.lingering > room).then(|| equal_part(counts(), room))
    }

    /// The companions of a rule that have the mark of their workload's end. Where the rule changes, the index doesn't name them,
    /// because it doesn't know their workloads.
    pub(crate) fn ended(&self, rule: &RuleName) -> Vec<CompanionKey> {
        let ended = self.by_rule.get(rule).into_iter().flat_map(|of_rule| &of_rule.ended);
        ended.map(|workload| CompanionKey { rule: rule.clone(), workload: workload.clone() }).collect()
    }

    /// A ready companion of a rule that isn't as it should be, for the first cause.
    pub(crate) fn impaired<'a>(&'a self, rule: &'a RuleName) -> Option<(CompanionKey, &'a Observed)> {
        let exist = self.counts(rule).impaired > 0;
        let all = exist.then(|| self.of_rule(rule)).into_iter().flatten();
        all.filter(|(_, o)| o.is_impaired() && o.ended.is_none()).min_by_key(|(_, o)| o.trouble)
    }

    pub(crate) fn of_rule<'a>(
        &'a self,
        rule: &'a RuleName,
    ) -> impl Iterator<Item = (CompanionKey, &'a Observed)> + 'a {
        let of_rule = self.by_rule.get(rule).into_iter().flat_map(|of_rule| &of_rule.by_workload);
        of_rule.map(|(workload, o)| (CompanionKey { rule: rule.clone(), workload: workload.clone() }, o))
    }

    /// The companions of a rule for a workload that are on single DPUs.
    pub(crate) fn on_dpus(&self, key: &CompanionKey) -> impl Iterator<Item = CompanionKey> {
        let of_rule = self.by_rule.get(&key.rule).into_iter();
        of_rule
            .flat_map(|of| of_workload(key, |first| of.by_workload.range::<str, _>(first).map(|(at, _)| at)))
    }

    /// The same of those that are gone, and may have run.
    pub(crate) fn gone_on_dpus(&self, key: &CompanionKey) -> impl Iterator<Item = CompanionKey> {
        let of_rule = self.by_rule.get(&key.rule).into_iter();
        of_rule.flat_map(|of| of_workload(key, |first| of.gone.range::<str, _>(first)))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = CompanionKey> {
        self.by_rule.keys().flat_map(|rule| self.of_rule(rule).map(|(key, _)| key))
    }

    /// Removes the object of a kind that has a key. A duplicate replaces the other object.
    fn remove(&mut self, key: &CompanionKey, kind: Kind) {
        if self.duplicates.get(key).is_some_and(|o| o.kind == kind) {
            self.duplicates.remove(key);
        }
        if self.get(key).is_some_and(|o| o.kind == kind) {
            let duplicate = self.duplicates.remove(key);
            self.set(key, duplicate);
        }
    }

    fn set(&mut self, key: &CompanionKey, new: Option<Observed>) {
        let of_rule = self.by_rule.entry(key.rule.clone()).or_default();
        self.lingering -= of_rule.lingering.len();
        if let Some(old) = of_rule.by_workload.remove(&key.workload) {
            of_rule.count(&old, -1);
            if !of_rule.unplaced.remove(&key.workload) {
                of_rule.gone.insert(key.workload.clone());
            } else if old.has_never_run() {
                of_rule.never_run -= 1;
            } else {
                of_rule.gone.insert(key.workload.clone());
                of_rule.hosts.remove(host_of(&old));
            }
            of_rule.unready.remove(&key.workload);
            of_rule.ended.remove(&key.workload);
            of_rule.lingering.remove(&(old.ended.unwrap_or_default(), key.workload.clone()));
        }
        if let Some(new) = new {
            of_rule.gone.remove(&key.workload);
            of_rule.count(&new, 1);
            if let Some(end) = new.ended {
                of_rule.ended.insert(key.workload.clone());
                if !new.terminating {
                    of_rule.lingering.insert((end, key.workload.clone()));
                }
            } else if !is_available(&new) {
                of_rule.unready.insert(key.workload.clone());
            }
            if new.unplaced && new.ended.is_none() {
                of_rule.unplaced.insert(key.workload.clone());
                if new.has_never_run() {
                    of_rule.never_run += 1;
                } else {
                    of_rule.hosts.add(host_of(&new));
                }
            }
            of_rule.by_workload.insert(key.workload.clone(), new);
        }
        self.lingering += of_rule.lingering.len();
        self.tidy(&key.rule);
    }
}

/// Whether a companion is ready and isn't being changed in place, or a claim that no Pod has used yet: nothing waits for that.
fn is_available(o: &Observed) -> bool {
    !o.terminating && (o.ready && !o.is_changing() || o.kind == Kind::Claim)
}

impl RuleCompanions {
    /// The workloads of those that outlive them beyond so many, the oldest first.
    fn beyond(&self, part: usize) -> impl Iterator<Item = &Arc<str>> {
        let beyond = self.lingering.len().saturating_sub(part);
        self.lingering.iter().take(beyond).map(|(_, workload)| workload)
    }

    /// Adds a companion to the counts (`change` is 1), or subtracts it (-1).
    fn count(&mut self, o: &Observed, change: i64) {
        if o.terminating {
            self.counts.leaving += change * i64::from(o.kind == Kind::Claim);
            return;
        }
        if o.ended.is_some() {
            self.counts.lingering += change;
            return;
        }
        self.counts.created += change;
        self.counts.ready += change * i64::from(o.ready);
        self.counts.changing += change * i64::from(o.is_changing());
        self.counts.impaired += change * i64::from(o.is_impaired());
        self.counts.idle += change * i64::from(!o.ready && o.kind == Kind::Claim);
        let made = (o.template_hash.clone(), o.content_hash.clone());
        if o.ready {
            let host = host_of(o);
            let of_host = self.ready.entry(host.into()).or_default();
            count(of_host, made.clone(), change);
            if of_host.is_empty() {
                self.ready.remove(host);
            }
        }
        if !is_available(o) {
            count(&mut self.down, made.clone(), change);
        }
        count(&mut self.templates, made, change);
    }
}

#[cfg(test)]
mod tests;
