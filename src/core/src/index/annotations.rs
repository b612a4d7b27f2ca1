//! What is known of the annotations that a tenant's workloads lack, and what follows for rules that name them.
//!
//! Where an annotation that isn't sent decides, a rule of the tenant makes no companion and deletes none, and a rule of the platform has
//! its companion: a tenant can't evade it by not sending an annotation. As long as the agent hasn't said whether it sends the annotation,
//! nothing is made and nothing deleted for either.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{CompanionKey, TenantIndex};
use crate::annotations::{Answer, Known, MAX_ASKED, key_of};
use crate::ids::RuleName;
use crate::map::after;
use crate::path::Path;
use crate::rule::{Rule, Verdict, term_verdict};
use crate::workload::Workload;

/// Whether a rule has a companion for a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Match,
    /// An annotation decides that isn't known: what exists stays, and nothing is made.
    Undecided,
    NoMatch,
}

/// The rules that a workload may match.
#[derive(Debug, Default)]
pub(super) struct Matching {
    /// Names of those that match, sorted.
    pub(super) names: Vec<RuleName>,
    /// Names of those of which it isn't decided whether they do. Some may be there twice.
    pub(super) undecided: Vec<RuleName>,
    /// The workload waits for the companion of one of these.
    pub(super) waits: bool,
}

/// How many rules name a key.
#[derive(Debug, Default)]
struct Named {
    all: usize,
    /// Those that the agent hasn't copied, and so doesn't know.
    unknown_to_agent: usize,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Annotations {
    known: Known,
    named: BTreeMap<Box<str>, Named>,
    /// The keys that rules name and of which a workload that lacks them may have them.
    open: BTreeSet<Box<str>>,
    /// Workloads, by label value, with annotations that were too large to be sent.
    withholding: BTreeSet<Arc<str>>,
    /// Workloads that wait for a companion of which it isn't decided whether there is to be one. That may have been decided since.
    undecided: BTreeSet<Arc<str>>,
    /// Workloads that have joined or left those since [`Self::changed`].
    changed: BTreeSet<Arc<str>>,
}

impl Annotations {
    /// A rule exists from now on, or no longer does.
    pub(super) fn name(&mut self, rule: &Rule, exists: bool) {
        for key in rule.annotation_keys() {
            let named = self.named.entry(key.into()).or_default();
            for (count, counts) in [(&mut named.all, true), (&mut named.unknown_to_agent, !rule.is_copied())]
            {
                *count = if exists { *count + usize::from(counts) } else { *count - usize::from(counts) };
            }
            match named.all {
                0 => {
                    self.named.remove(key);
                    self.open.remove(key);
                }
                1 if exists && is_open(&self.known, key) => {
                    self.open.insert(key.into());
                }
                _ => {}
            }
        }
    }

    /// Rules have changed: for keys for which nobody asks any longer nobody waits.
    pub(super) fn forget_unnamed(&mut self) {
        let named = |key: &str| self.named.get(key).is_some_and(|named| named.unknown_to_agent > 0);
        self.known.retain_overdue(named);
    }

    fn reopen(&mut self) {
        let open = self.named.keys().filter(|key| is_open(&self.known, key));
        self.open = open.cloned().collect();
    }

    fn answer(&self, rule: &Rule, key: &str) -> Answer {
        self.known.answer(rule.is_copied(), key)
    }

    /// Whether everything is known of a workload that rules ask for.
    pub(super) fn is_complete(&self, workload: &Workload) -> bool {
        self.open.is_empty() && workload.withheld.is_empty()
    }

    fn lacks(&self, rule: &Rule, workload: &Workload, path: &Path) -> bool {
        key_of(path).is_some_and(|key| {
            let open = || self.open.contains(key) && self.answer(rule, key) != Answer::Sent;
            workload.annotations.get(key).is_none() && (is_withheld(workload, key) || open())
        })
    }

    /// Whether a workload passes a term of a rule.
    pub(super) fn verdict(&self, rule: &Rule, number: usize, workload: &Workload) -> Verdict {
        match rule.terms().get(number).filter(|_| rule.is_about(workload)) {
            Some(term) => term_verdict(term, workload, |path| self.lacks(rule, workload, path)),
            None => Verdict::No,
        }
    }

    /// What follows where an unknown annotation decides.
    pub(super) fn unknown(&self, rule: &Rule) -> Decision {
        let pending = || rule.annotation_keys().iter().any(|key| self.answer(rule, key) == Answer::Pending);
        if rule.name().is_admin() && !pending() { Decision::Match } else { Decision::Undecided }
    }

    pub(super) fn decide(&self, rule: &Rule, workload: &Workload) -> Decision {
        if self.is_complete(workload) {
            return if rule.matches(workload) { Decision::Match } else { Decision::NoMatch };
        }
        match rule.verdict(workload, |path| self.lacks(rule, workload, path)) {
            Verdict::Yes => Decision::Match,
            Verdict::No => Decision::NoMatch,
            Verdict::Unknown => self.unknown(rule),
        }
    }

    /// The keys of annotations that a workload lacks and may have nevertheless.
    pub(super) fn open_of<'a>(&'a self, workload: &'a Workload) -> impl Iterator<Item = &'a str> {
        let open = self.open.iter().filter(|key| !is_withheld(workload, key));
        let all = workload.withheld.iter().chain(open).map(|key| &**key);
        all.filter(|key| workload.annotations.get(key).is_none())
    }

    /// The workloads that may have an annotation, whatever they were sent with; `None` if any may.
    pub(super) fn may_have(&self, key: &str) -> Option<impl Iterator<Item = &Arc<str>>> {
        (!self.open.contains(key)).then(|| self.withholding.iter())
    }

    /// The workload of this label value is this one now; `None` if it is gone.
    pub(super) fn hold(&mut self, label: &Arc<str>, workload: Option<&Workload>) {
        if workload.is_some_and(|workload| !workload.withheld.is_empty()) {
            self.withholding.insert(label.clone());
        } else if !self.withholding.is_empty() {
            self.withholding.remove(label);
        }
    }

    /// It is decided or not whether a workload has all companions for which it waits.
    pub(super) fn set_undecided(&mut self, label: &Arc<str>, undecided: bool) {
        let changed = match undecided {
            true => self.undecided.insert(label.clone()),
            false => !self.undecided.is_empty() && self.undecided.remove(label),
        };
        if changed {
            self.changed.insert(label.clone());
        }
    }

    /// It isn't decided whether a rule has a companion for a workload.
    pub(super) fn leave_undecided(&mut self, rule: &Rule, label: &Arc<str>) {
        if waits(rule) {
            self.undecided.insert(label.clone());
            self.changed.insert(label.clone());
        }
    }

    /// A rule is gone, or about to be matched with all workloads.
    pub(super) fn forget_rule(&mut self, rule: &Rule) {
        if waits(rule) {
            self.changed.extend(self.undecided.iter().cloned());
        }
        if self.open.is_empty() && self.withholding.is_empty() {
            self.undecided.clear();
        }
    }
}

/// Whether a workload that lacks the annotation with this key may have it.
fn is_open(known: &Known, key: &str) -> bool {
    known.answer(false, key) != Answer::Sent
}

/// Whether workloads wait by what is said here of a rule's companion. The agent knows itself which workloads match the rules that it
/// has copied, and has them wait until it hears of their companions.
pub(super) fn waits(rule: &Rule) -> bool {
    rule.ordering().gates() && !rule.is_copied()
}

/// Whether an annotation of the workload was too large to be sent.
fn is_withheld(workload: &Workload, key: &str) -> bool {
    workload.withheld.iter().any(|withheld| **withheld == *key)
}

impl TenantIndex {
    /// What is known of annotations.
    pub fn known(&self) -> &Known {
        &self.annotations.known
    }

    /// What is known of annotations changes. Returns the companions that this may concern, and the rules of which other companions that
    /// exist may no longer be wanted.
    pub fn set_known(&mut self, known: Known) -> (Vec<CompanionKey>, Vec<RuleName>) {
        // Without workloads nobody was understood otherwise.
        let known = if self.workloads.is_empty() { known.completed() } else { known };
        if known == self.annotations.known {
            return Default::default();
        }
        let answers = |annotations: &Annotations, rule: &Rule| {
            let keys = rule.annotation_keys();
            keys.into_iter().map(|key| annotations.answer(rule, key)).collect::<Vec<_>>()
        };
        let naming: Vec<(Arc<Rule>, Vec<Answer>)> = self
            .rules
            .values()
            .map(|rule| (rule.clone(), answers(&self.annotations, rule)))
            .filter(|(_, before)| !before.is_empty())
            .collect();
        let stale = known.overdue(BTreeSet::new()) != self.annotations.known.overdue(BTreeSet::new());
        self.annotations.known = known;
        self.annotations.reopen();
        let (mut touched, mut rules) = (Vec::new(), Vec::new());
        if stale {
            touched.append(&mut self.forget_states_of_refused());
        }
        for (rule, before) in naming {
            if answers(&self.annotations, &rule) != before {
                rules.push(rule.name().clone());
                touched.append(&mut self.apply_rule(rule));
            }
        }
        (touched, rules)
    }

    /// The keys of annotations that rules name which the agent doesn't know, in their order.
    pub fn needed(&self) -> impl Iterator<Item = &str> {
        let needed = self.annotations.named.iter().filter(|(_, named)| named.unknown_to_agent > 0);
        needed.map(|(key, _)| &**key)
    }

    /// The first of these, for which the agent is to be asked.
    pub fn asked(&self) -> impl Iterator<Item = &str> {
        self.needed().take(MAX_ASKED)
    }

    /// The keys of annotations that a rule names and that aren't sent, and what the agent says of them.
    pub fn unsent<'a>(&self, rule: &'a Rule) -> BTreeMap<&'a str, Answer> {
        let answers = rule.annotation_keys().into_iter().map(|key| (key, self.annotations.answer(rule, key)));
        answers.filter(|(_, answer)| *answer != Answer::Sent).collect()
    }

    /// Names of the rules of which it isn't decided whether they match a workload as it is: companions of theirs may exist.
    pub(super) fn undecided_rules(&self, id: &Arc<str>) -> Vec<RuleName> {
        let entry = self.workloads.get(id).filter(|entry| !self.annotations.is_complete(&entry.workload));
        entry
            .map(|entry| self.terms.matching(&entry.workload, &self.annotations).undecided)
            .unwrap_or_default()
    }

    /// Workloads that have joined or left those of [`Self::undecided_of`] since the last call of this.
    pub fn undecided_changed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.annotations.changed)
    }

    /// The label value of the first workload after another one that may wait for an undecided companion.
    pub fn undecided_after(&self, label: Option<&Arc<str>>) -> Option<&Arc<str>> {
        self.annotations.undecided.range(after(label)).next()
    }

    /// How many workloads may wait for an undecided companion.
    pub fn undecided(&self) -> usize {
        self.annotations.undecided.len()
    }

    /// The rules for whose companions a workload waits and of which it isn't decided whether they have one for it.
    pub fn undecided_of(&self, label: &str) -> Vec<&Arc<Rule>> {
        let entry = self.workloads.get(label).filter(|_| self.annotations.undecided.contains(label));
        let Some(entry) = entry else { return Vec::new() };
        let waited_for = self.rules.values().filter(|rule| waits(rule));
        let open =
            waited_for.filter(|rule| self.annotations.decide(rule, &entry.workload) == Decision::Undecided);
        open.collect()
    }
}

#[cfg(test)]
mod tests;
