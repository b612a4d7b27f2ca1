//! The rules and workloads of one tenant, and which of them belong together.
//!
//! Synchronous: a change comes in as a method call and returns the companions that it may have changed. A workload is
//! tried only against rules that could match it. Each term is filed under one of its expressions that asks for a certain
//! value (or at least for the presence) of a field, so a workload looks up the values it has and leaves all other rules
//! alone: the cost of a workload depends on how many rules could match it, not on how many there are.
//!
//! Workloads go by their label value, since that is all that an existing companion tells of its workload. It is the id
//! itself, or 128 bits of its SHA-256: two ids with one label value do not happen by chance, and a tenant that makes
//! them up confuses only its own companions.

use crate::fault;
use crate::map::{HashMap, remove_from};
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::ids::{RuleName, WorkloadId};
use crate::rule::Rule;
use crate::workload::Workload;

mod annotations;
mod desired;
mod dpus;
mod groups;
mod refused;
mod room;
mod terms;

use annotations::{Annotations, Decision, Matching};
pub use desired::{CompanionKey, Desired, whole};
pub use dpus::{HostDpus, OwnDpus};
use groups::Groups;
pub use groups::Members;
pub use refused::RefusedWorkload;
use refused::RefusedWorkloads;
use room::{Place, Room};
use terms::TermIndex;

/// The rules and workloads of one tenant.
#[derive(Debug, Default)]
pub struct TenantIndex {
    rules: HashMap<RuleName, Arc<Rule>>,
    terms: TermIndex,
    workloads: HashMap<Arc<str>, Entry>,
    groups: Groups,
    matched: HashMap<RuleName, BTreeSet<Arc<str>>>,
    room: Room,
    annotations: Annotations,
    refused: RefusedWorkloads,
    synced: bool,
    /// The tenant's DPUs, as far as they are known.
    pub dpus: HostDpus,
}

#[derive(Debug)]
struct Entry {
    workload: Arc<Workload>,
    /// Names of the rules that match, sorted. Few have any.
    matched: Vec<RuleName>,
}

impl TenantIndex {
    /// Sets a rule, or replaces the one of its name.
    pub fn apply_rule(&mut self, rule: Arc<Rule>) -> Vec<CompanionKey> {
        let name = rule.name().clone();
        let mut touched = self.unfile(&name);
        self.annotations.name(&rule, true);
        self.annotations.forget_unnamed();
        let (workloads, annotations) = (&mut self.workloads, &mut self.annotations);
        self.terms.insert(&rule, || workloads.iter().map(|(label, entry)| (label, &*entry.workload)));
        let mut matched = BTreeSet::new();
        let room = &mut self.room;
        let candidates = self.terms.candidates(&rule, annotations);
        let mut try_one =
            |label: &Arc<str>, entry: &mut Entry| match annotations.decide(&rule, &entry.workload) {
                Decision::Match if room.take(&name, label, Place::of(Some(&rule), &entry.workload)) => {
                    if let Err(at) = entry.matched.binary_search(&name) {
                        entry.matched.insert(at, name.clone());
                    }
                    matched.insert(label.clone());
                }
                Decision::Undecided => annotations.leave_undecided(&rule, label),
                Decision::Match | Decision::NoMatch => {}
            };
        match candidates {
            Some(labels) => {
                for label in labels {
                    if let Some(entry) = workloads.get_mut(&label) {
                        try_one(&label, entry);
                    }
                }
            }
            None => workloads.iter_mut().for_each(|(label, entry)| try_one(label, entry)),
        }
        touched.extend(matched.iter().cloned());
        if !matched.is_empty() {
            self.matched.insert(name.clone(), matched);
        }
        self.rules.insert(name.clone(), rule);
        let mut touched = keys(&name, touched);
        touched.append(&mut self.fill());
        touched
    }

    /// Removes a rule.
    pub fn remove_rule(&mut self, name: &RuleName) -> Vec<CompanionKey> {
        let mut touched = keys(name, self.unfile(name));
        self.annotations.forget_unnamed();
        touched.append(&mut self.fill());
        touched
    }

    /// Takes a rule out of everything; returns the workloads that it matched.
    fn unfile(&mut self, name: &RuleName) -> BTreeSet<Arc<str>> {
        let old = self.rules.remove(name);
        if let Some(old) = &old {
            self.terms.remove(old);
            self.annotations.name(old, false);
            self.annotations.forget_rule(old);
        }
        let matched = self.matched.remove(name).unwrap_or_default();
        for label in &matched {
            if let Some(entry) = self.workloads.get_mut(label) {
                entry.matched.retain(|rule| rule != name);
                self.room.give(name, Place::of(old.as_ref(), &entry.workload));
            }
        }
        self.room.forget_rule(name);
        matched
    }

    /// Sets a workload. An update that changes nothing touches nothing.
    pub fn update(&mut self, workload: Workload) -> Vec<CompanionKey> {
        let id = self.key_of(&workload.id);
        self.set(&id, workload)
    }

    fn set(&mut self, id: &Arc<str>, mut workload: Workload) -> Vec<CompanionKey> {
        // Companions from before it was refused may be unwanted now.
        let mut touched = self.forget_refused(id);
        let former = self.workloads.get(id).map(|entry| entry.workload.clone());
        if former.as_deref() != Some(&workload) {
            let (undecided, left_out) = (self.undecided_rules(id), self.left_out_rules(id));
            self.hold(id, former.as_deref(), Some(&workload));
            if let Some(former) = former.as_ref().filter(|former| former.id == workload.id) {
                // One text for the id, not one more with each update.
                workload.id = former.id.clone();
            }
            let now = self.terms.matching(&workload, &self.annotations);
            let decided = undecided.into_iter().filter(|rule| now.undecided.binary_search(rule).is_err());
            let unmatched = left_out.into_iter().filter(|rule| now.names.binary_search(rule).is_err());
            touched.extend(decided.chain(unmatched).map(|rule| CompanionKey { rule, workload: id.clone() }));
            let entry = Entry { workload: Arc::new(workload), matched: Vec::new() };
            let before = self.workloads.insert(id.clone(), entry).map(|entry| entry.matched);
            touched.append(&mut self.rematch(id, former.as_deref(), before.unwrap_or_default(), now));
        }
        touched.append(&mut self.fill());
        touched
    }

    /// A workload was this one and is that one now; `None` where it is not there.
    fn hold(&mut self, id: &Arc<str>, before: Option<&Workload>, now: Option<&Workload>) {
        self.terms.hold(id, before, now);
        self.groups.hold(id, before, now);
        self.annotations.hold(id, now);
    }

    /// Removes a workload.
    pub fn delete(&mut self, id: &WorkloadId) -> Vec<CompanionKey> {
        let id = self.key_of(id);
        self.forget(&id)
    }

    fn forget(&mut self, id: &Arc<str>) -> Vec<CompanionKey> {
        let mut touched = self.forget_refused(id);
        let rules = self.undecided_rules(id).into_iter().chain(self.left_out_rules(id));
        touched.extend(rules.map(|rule| CompanionKey { rule, workload: id.clone() }));
        let Some(entry) = self.workloads.remove(id) else { return touched };
        self.hold(id, Some(&entry.workload), None);
        touched.append(&mut self.rematch(id, Some(&entry.workload), entry.matched, Matching::default()));
        touched.append(&mut self.fill());
        touched
    }

    /// Sets all workloads: what is not among them is gone. From now on an unknown workload is one that doesn't exist.
    /// Of a workload that is named more than once the last state counts.
    pub fn sync(&mut self, workloads: Vec<Workload>) -> Vec<CompanionKey> {
        let listed: HashMap<WorkloadId, Workload> =
            workloads.into_iter().map(|workload| (workload.id.clone(), workload)).collect();
        let mut touched = self.complete(|id| listed.contains_key(id));
        for workload in listed.into_values() {
            touched.append(&mut self.update(workload));
        }
        touched.sort_unstable();
        touched
    }

    /// Ends a sync whose workloads were set by [`Self::update`]: what wasn't sent is gone. From now on an unknown workload is
    /// one that doesn't exist. If fewer are refused than before ([`Self::refused_count`]), any companion may be unwanted.
    pub fn complete(&mut self, sent: impl Fn(&WorkloadId) -> bool) -> Vec<CompanionKey> {
        self.synced = true;
        self.retain(sent)
    }

    /// Forgets what wasn't `sent`, without a word about whether it exists: from now on unknown workloads are unknown, until the
    /// next [`Self::complete`]. To make room within a sync that replaces most workloads.
    pub fn doubt(&mut self, sent: impl Fn(&WorkloadId) -> bool) {
        self.synced = false;
        self.retain(sent);
    }

    fn retain(&mut self, sent: impl Fn(&WorkloadId) -> bool) -> Vec<CompanionKey> {
        let goes = |entry: &Entry| !sent(&entry.workload.id) && !fault("sync-forgets-no-workload");
        let others = self.workloads.iter().filter(|(_, entry)| goes(entry));
        let gone: Vec<Arc<str>> = others.map(|(label, _)| label.clone()).collect();
        self.refused.retain(|_, workload| sent(&workload.id));
        gone.iter().flat_map(|label| self.forget(label)).collect()
    }

    /// Every pair of a rule and a workload that it matches.
    pub fn matches(&self) -> impl Iterator<Item = CompanionKey> {
        let of = |(rule, workloads): (&RuleName, &BTreeSet<Arc<str>>)| keys(rule, workloads.clone());
        self.matched.iter().flat_map(of)
    }

    /// Whether the tenant has sent all of its workloads.
    pub fn synced(&self) -> bool {
        self.synced
    }

    /// What there should be for a key.
    pub fn desired(&self, key: &CompanionKey) -> Desired<'_> {
        let Some(rule) = self.rules.get(&key.rule) else { return Desired::RuleUnknown };
        let label = key.label();
        let Some(entry) = self.workloads.get(label) else {
            return match self.synced && self.refused(label).is_none() {
                false => Desired::Unknown,
                true if rule.linger().is_zero() => Desired::Unwanted,
                true => Desired::Ended { rule },
            };
        };
        if entry.matched.binary_search(&key.rule).is_err() {
            let lacks = self.room.lacks(label);
            if !lacks && self.annotations.is_complete(&entry.workload) {
                return Desired::Unwanted;
            }
            return match self.annotations.decide(rule, &entry.workload) {
                Decision::Undecided => Desired::Undecided,
                Decision::Match if lacks => Desired::OverLimit,
                Decision::Match | Decision::NoMatch => Desired::Unwanted,
            };
        }
        match Desired::of_match(rule, &entry.workload) {
            Desired::Wanted { rule, workload } if !self.dpus.fit(rule, workload, key.dpu()) => {
                Desired::OnOtherDpus { rule, workload }
            }
            desired => desired,
        }
    }

    /// Keeps at most so many matches of the tenant's own rules: pairs of a rule and a workload. What is kept beyond that stays until
    /// it no longer matches. Admin rules don't count.
    pub fn limit(&mut self, most: usize) -> Vec<CompanionKey> {
        self.room.most = most;
        self.fill()
    }

    /// The limit, where matches of this rule may be left out for it.
    pub fn over_limit(&self, rule: &RuleName) -> Option<usize> {
        self.room.is_short(rule).then_some(self.room.most)
    }

    /// Workloads for which more or fewer matches are left out since the last call of this. There are as many as workloads at most,
    /// where the matches that are left out have no limit.
    pub fn left_out_changed(&mut self) -> BTreeSet<Arc<str>> {
        self.room.changed()
    }

    /// Label values of the workloads for which matches may be left out, those after one.
    pub fn left_out_after(&self, label: Option<&Arc<str>>) -> impl Iterator<Item = &Arc<str>> {
        self.room.lacking_after(label)
    }

    /// How many workloads there are for which matches may be left out.
    pub fn left_out(&self) -> usize {
        self.room.lacking()
    }

    /// The rules that match a workload and are left out for it.
    pub fn left_out_of(&self, label: &str) -> Vec<&Arc<Rule>> {
        let Some(entry) = self.workloads.get(label).filter(|_| self.room.lacks(label)) else {
            return Vec::new();
        };
        let names = self.terms.matching(&entry.workload, &self.annotations).names;
        let left_out = names.iter().filter(|name| entry.matched.binary_search(name).is_err());
        left_out.filter_map(|name| self.rules.get(name)).collect()
    }

    /// The names of [`Self::left_out_of`].
    fn left_out_rules(&self, id: &Arc<str>) -> Vec<RuleName> {
        self.left_out_of(id).into_iter().map(|rule| rule.name().clone()).collect()
    }

    /// How many matches of the tenant's own rules are kept: these count towards the limit.
    pub fn own_matches(&self) -> usize {
        self.room.taken()
    }

    /// The limit as it was set.
    pub fn most(&self) -> usize {
        self.room.most
    }

    /// Whether [`Self::fill`] has more to do.
    pub fn has_more(&self) -> bool {
        self.room.has_more()
    }

    /// Gives room that there is to matches that were left out, a few at a time: each look takes a workload off those that lack
    /// some. Every change does this too, and no more of it, so that what one change costs has a limit.
    pub fn fill(&mut self) -> Vec<CompanionKey> {
        let mut touched = Vec::new();
        for _ in 0..room::LOOKS {
            let Some(id) = self.room.next() else { break };
            let Some(entry) = self.workloads.get_mut(&id) else { continue };
            let before = std::mem::take(&mut entry.matched);
            let workload = entry.workload.clone();
            let (known, now) = (before.clone(), self.terms.matching(&workload, &self.annotations));
            let all = self.rematch(&id, Some(&workload), before, now);
            touched.extend(all.into_iter().filter(|key| known.binary_search(&key.rule).is_err()));
        }
        touched
    }

    /// Names of the rules that match a workload, sorted, whether or not the workload is one of the index.
    pub fn matching(&self, workload: &Workload) -> Vec<RuleName> {
        self.terms.matching(workload, &self.annotations).names
    }

    /// A rule that is served.
    pub fn rule(&self, name: &RuleName) -> Option<&Arc<Rule>> {
        self.rules.get(name)
    }

    /// A workload, by its label value or by what stands for it in a [`CompanionKey`].
    pub fn workload(&self, label: &str) -> Option<&Arc<Workload>> {
        self.workloads.get(desired::label_of(label)).map(|entry| &entry.workload)
    }

    /// The known workloads of a group ([`crate::workload::DisruptionGroup`]).
    pub fn group(&self, id: &str) -> Option<&Members> {
        self.groups.get(id)
    }

    /// The workloads that a rule matches, in the order of their label values.
    pub fn workloads_of(&self, rule: &RuleName) -> impl Iterator<Item = &Arc<Workload>> {
        self.matched.get(rule).into_iter().flatten().filter_map(|label| self.workload(label))
    }

    /// How many workloads a rule matches.
    pub fn matched(&self, rule: &RuleName) -> usize {
        self.matched.get(rule).map_or(0, BTreeSet::len)
    }

    /// How many workloads are known.
    pub fn workloads(&self) -> usize {
        self.workloads.len()
    }

    /// The label values of all workloads, in no order.
    pub fn labels(&self) -> impl Iterator<Item = &Arc<str>> {
        self.workloads.keys()
    }

    /// All rules that are served.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.rules.values()
    }

    /// The key that an id has here; the one in use, if it is.
    fn key_of(&self, id: &WorkloadId) -> Arc<str> {
        // Nearly every id is its own label value, and an update's workload is known: nothing to allocate then. Keys are label values,
        // so an id that is one has it as its own.
        if let Some((key, _)) = self.workloads.get_key_value(id.as_str()) {
            return key.clone();
        }
        let label = id.label_value();
        match self.workloads.get_key_value(label.as_str()) {
            Some((key, _)) => key.clone(),
            None if label == id.as_str() => id.shared().clone(),
            None => label.into(),
        }
    }

    /// A workload matched some rules, which its entry no longer says, and matches those now: it is another one than `former`, or is
    /// gone. All of them may have to do something: also where nothing but the workload's facts has changed.
    fn rematch(
        &mut self,
        id: &Arc<str>,
        former: Option<&Workload>,
        before: Vec<RuleName>,
        now: Matching,
    ) -> Vec<CompanionKey> {
        let Matching { names: mut now, waits, .. } = now;
        self.annotations.set_undecided(id, waits);
        let present = self.workloads.get(id).map(|entry| entry.workload.clone());
        for rule in before.iter().filter(|_| present.is_some()) {
            if let Err(at) = now.binary_search(rule)
                && fault("relabelled-workload-still-matches")
            {
                now.insert(at, rule.clone());
            }
        }
        let Self { rules, matched, room, .. } = self;
        let place = |rule: &RuleName, workload: Option<&Workload>| {
            workload.map(|workload| Place::of(rules.get(rule), workload))
        };
        let is = |rule: &RuleName| place(rule, present.as_deref());
        let stays = |rule: &RuleName| now.binary_search(rule).is_ok() && is(rule) == place(rule, former);
        let (kept, moved): (Vec<RuleName>, Vec<RuleName>) = before.into_iter().partition(stays);
        // Room that is given back first may be taken again.
        for rule in &moved {
            if let Some(was) = place(rule, former) {
                room.give(rule, was);
            }
            remove_from(matched, rule, |ids| ids.remove(id));
        }
        room.forget(id);
        now.retain(|rule| {
            kept.binary_search(rule).is_ok() || is(rule).is_some_and(|place| room.take(rule, id, place))
        });
        for rule in &now {
            matched.entry(rule.clone()).or_default().insert(id.clone());
        }
        let gone = moved.iter().filter(|rule| now.binary_search(rule).is_err());
        let key = |rule: &RuleName| CompanionKey { rule: rule.clone(), workload: id.clone() };
        let touched = gone.chain(&now).map(key).collect();
        if let Some(entry) = self.workloads.get_mut(id).filter(|_| !now.is_empty()) {
            entry.matched = now;
        }
        touched
    }
}

fn keys(rule: &RuleName, workloads: BTreeSet<Arc<str>>) -> Vec<CompanionKey> {
    workloads.into_iter().map(|workload| CompanionKey { rule: rule.clone(), workload }).collect()
}

#[cfg(test)]
pub(crate) mod tests;
