//! Index of rules' terms, by which a workload finds the rules that could match it, and a rule the workloads.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::sync::Arc;

use super::annotations::{Annotations, Decision, Matching};
use crate::annotations::{self, MAP};
use crate::fault;
use crate::ids::RuleName;
use crate::map::{HashMap, State, remove_from};
use crate::path::Path;
use crate::rule::{Expression, Rule, Test, Verdict};
use crate::workload::Workload;

/// A value that nearly every workload has selects next to nothing: such an expression is used when there is no better.
const COMMON: usize = 64;

/// That an entry is there says less than which value it has.
const PRESENCE: usize = 16;

/// Terms of rules by the field value that a workload must have to match them.
#[derive(Debug, Default)]
pub(super) struct TermIndex {
    /// Fixed field -> terms that require something of it. There are few fixed fields.
    by_field: HashMap<Path, FieldTerms>,
    /// Map of `state.extra` -> key in it -> terms that require something of that entry. There may be many keys.
    by_entry: HashMap<Box<str>, HashMap<Box<str>, FieldTerms>>,
    /// Terms without an expression to index them by.
    rest: Vec<Term>,
    /// Rule -> for each of its terms, the expression that it is filed under; `None` for one of the rest.
    places: HashMap<RuleName, Vec<Option<usize>>>,
    hasher: State,
}

/// Terms that require something of one field.
#[derive(Debug, Default)]
struct FieldTerms {
    /// For a certain value.
    values: HashMap<String, Vec<Term>>,
    /// For any value.
    presence: Vec<Term>,
    /// The workloads that have the field, while there are terms that ask for a value of it.
    holders: Option<Holders>,
}

/// Hash of a value, and the label value of a workload that has it. Hashes, because annotations may be long; a workload
/// too many is only one more to try.
type Holders = BTreeSet<(u64, Arc<str>)>;

/// A term of a rule.
#[derive(Debug, Clone)]
struct Term {
    rule: Arc<Rule>,
    /// Its place among the rule's terms.
    number: usize,
}

impl Term {
    /// Whether a workload of which everything is known matches.
    fn matches(&self, workload: &Workload) -> bool {
        self.rule.is_about(workload)
            && self.rule.terms().get(self.number).is_some_and(|term| term.iter().all(|e| e.matches(workload)))
            && !(self.number > 0 && fault("only-the-first-term-counts"))
    }
}

impl FieldTerms {
    fn is_empty(&self) -> bool {
        self.values.is_empty() && self.presence.is_empty()
    }

    /// How many more workloads and terms meet when a term is filed under this test; `None` when it can't be.
    fn cost(asks: Option<&Self>, expression: &Expression) -> Option<usize> {
        let entry = matches!(expression.path, Path::ExtraEntry(..));
        match &expression.test {
            Test::In(values) => {
                let common = matches!(expression.path, Path::Ready | Path::Orchestrator | Path::ResourceType);
                let filed = |value| asks.and_then(|asks| asks.values.get(value)).map_or(0, Vec::len);
                let terms: usize = values.iter().map(|value| 1 + filed(value)).sum();
                Some(if common { terms * COMMON } else { terms })
            }
            Test::Exists | Test::Gt(_) | Test::Lt(_) if entry => {
                Some((1 + asks.map_or(0, |asks| asks.presence.len())) * PRESENCE)
            }
            _ => None,
        }
    }

    fn insert(&mut self, test: &Test, term: &Term) {
        match test {
            Test::In(values) => {
                let filed =
                    if values.len() > 1 && fault("only-the-first-value-counts") { 1 } else { values.len() };
                for value in values.iter().take(filed) {
                    self.values.entry(value.clone()).or_default().push(term.clone());
                }
            }
            _ => self.presence.push(term.clone()),
        }
    }

    fn remove(&mut self, test: &Test, other: impl Fn(&Term) -> bool) {
        match test {
            Test::In(values) => {
                for value in values {
                    remove_from(&mut self.values, value, |terms| terms.retain(&other));
                }
                if self.values.is_empty() {
                    self.holders = None;
                }
            }
            _ => self.presence.retain(other),
        }
    }

    /// Passes on the terms that a workload with this value could match.
    fn show(&self, value: &str, try_all: &mut impl FnMut(&[Term])) {
        if let Some(terms) = self.values.get(value) {
            try_all(terms);
        }
        try_all(&self.presence);
    }
}

impl TermIndex {
    /// Inserts a rule. A rule of the same name has been removed before. `workloads` are all workloads.
    pub(super) fn insert<'w, W>(&mut self, rule: &Arc<Rule>, workloads: impl Fn() -> W)
    where
        W: Iterator<Item = (&'w Arc<str>, &'w Workload)>,
    {
        let mut places = Vec::with_capacity(rule.terms().len());
        for (number, expressions) in rule.terms().iter().enumerate() {
            let term = Term { rule: rule.clone(), number };
            let place = self.place(expressions);
            match place.and_then(|at| expressions.get(at)) {
                None => self.rest.push(term),
                Some(e) => {
                    // All workloads are gone through for the first rule that asks for values of a field, not for each.
                    let hasher = self.hasher;
                    let asks = self.asks_mut(&e.path);
                    if matches!(e.test, Test::In(_)) && asks.holders.is_none() {
                        let hash = |w| e.path.scalar(w).map(|value| hasher.hash_one(value.as_str()));
                        let holders = workloads().filter_map(|(label, w)| Some((hash(w)?, label.clone())));
                        asks.holders = Some(holders.collect());
                    }
                    asks.insert(&e.test, &term);
                }
            }
            places.push(place);
        }
        self.places.insert(rule.name().clone(), places);
    }

    /// The workloads that a filed rule could match, each once; `None` when any could be.
    pub(super) fn candidates(&self, rule: &Rule, annotations: &Annotations) -> Option<Vec<Arc<str>>> {
        let first: Arc<str> = Arc::default();
        let mut found = Vec::new();
        for (term, place) in rule.terms().iter().zip(self.places.get(rule.name())?) {
            let expression = term.get((*place)?)?;
            let Test::In(values) = &expression.test else { return None };
            if let Some(key) = annotations::key_of(&expression.path) {
                found.extend(annotations.may_have(key)?.cloned());
            }
            let holders = self.asks(&expression.path)?.holders.as_ref()?;
            for value in values {
                let hash = self.hasher.hash_one(value.as_str());
                let same = holders.range((hash, first.clone())..).take_while(|(other, _)| *other == hash);
                found.extend(same.map(|(_, label)| label.clone()));
            }
        }
        found.sort_unstable();
        found.dedup();
        Some(found)
    }

    /// The workload of this label value was that one and is this one now; `None` where it is not there.
    pub(super) fn hold(&mut self, label: &Arc<str>, before: Option<&Workload>, now: Option<&Workload>) {
        if let Some(before) = before {
            self.each_held(before, now, |holders, hash| {
                holders.remove(&(hash, label.clone()));
            });
        }
        if let Some(now) = now {
            self.each_held(now, before, |holders, hash| {
                holders.insert((hash, label.clone()));
            });
        }
    }

    /// Calls `change` with the hash of each value that the workload holds and the other one doesn't.
    fn each_held(
        &mut self,
        workload: &Workload,
        other: Option<&Workload>,
        mut change: impl FnMut(&mut Holders, u64),
    ) {
        let hasher = &self.hasher;
        for (field, asks) in &mut self.by_field {
            let Some(holders) = &mut asks.holders else { continue };
            let value = field.scalar(workload);
            if let Some(held) = value.filter(|_| value != other.and_then(|other| field.scalar(other))) {
                change(holders, hasher.hash_one(held.as_str()));
            }
        }
        for (map, keys) in &mut self.by_entry {
            let Some(entries) = workload.extra_map(map) else { continue };
            let other = other.and_then(|other| other.extra_map(map));
            let mut each = |key: &str, value: &str, asks: &mut FieldTerms| {
                if let Some(holders) = &mut asks.holders
                    && other.and_then(|other| other.get(key)) != Some(value)
                {
                    change(holders, hasher.hash_one(value));
                }
            };
            if entries.len() <= keys.len() {
                for (key, value) in entries.iter() {
                    if let Some(asks) = keys.get_mut(key) {
                        each(key, value, asks);
                    }
                }
            } else {
                for (key, asks) in keys {
                    if let Some(value) = entries.get(key) {
                        each(key, value, asks);
                    }
                }
            }
        }
    }

    /// Removes a rule.
    pub(super) fn remove(&mut self, rule: &Rule) {
        for (number, place) in self.places.remove(rule.name()).unwrap_or_default().into_iter().enumerate() {
            let other = |filed: &Term| filed.number != number || filed.rule.name() != rule.name();
            let expression = place.and_then(|at| rule.terms().get(number)?.get(at));
            match expression {
                None => self.rest.retain(other),
                Some(Expression { path: Path::ExtraEntry(map, key), test }) => {
                    let Some(keys) = self.by_entry.get_mut(map) else { continue };
                    if let Some(asks) = keys.get_mut(key) {
                        asks.remove(test, other);
                        if asks.is_empty() {
                            keys.remove(key);
                        }
                    }
                    if keys.is_empty() {
                        self.by_entry.remove(map);
                    }
                }
                Some(Expression { path, test }) => {
                    if let Some(asks) = self.by_field.get_mut(path) {
                        asks.remove(test, other);
                        if asks.is_empty() {
                            self.by_field.remove(path);
                        }
                    }
                }
            }
        }
    }

    /// Under which of its expressions a term is filed: where the fewest other terms are. What many rules ask for alike,
    /// such as `tier In [frontend]`, soon costs more than what distinguishes them, whichever field that is.
    fn place(&self, term: &[Expression]) -> Option<usize> {
        // Among equals, what likely tells a workload from others: its own name, then its labels, then its namespace.
        let rank = |path: &Path| match path {
            Path::Id | Path::ResourceName => 0,
            Path::ExtraEntry(..) => 1,
            _ => 2,
        };
        term.iter()
            .enumerate()
            .filter_map(|(at, e)| Some((FieldTerms::cost(self.asks(&e.path), e)?, rank(&e.path), at)))
            .min()
            .map(|(_, _, at)| at)
    }

    fn asks(&self, path: &Path) -> Option<&FieldTerms> {
        match path {
            Path::ExtraEntry(map, key) => self.by_entry.get(map)?.get(key),
            field => self.by_field.get(field),
        }
    }

    fn asks_mut(&mut self, path: &Path) -> &mut FieldTerms {
        match path {
            Path::ExtraEntry(map, key) => {
                self.by_entry.entry(map.clone()).or_default().entry(key.clone()).or_default()
            }
            field => self.by_field.entry(field.clone()).or_default(),
        }
    }

    /// The rules that match, each once.
    pub(super) fn matching(&self, workload: &Workload, annotations: &Annotations) -> Matching {
        let (mut names, mut open) = (Vec::new(), Vec::new());
        let complete = annotations.is_complete(workload);
        self.each_candidate(workload, annotations, |term| {
            let verdict = match complete {
                true => term.matches(workload).into(),
                false => annotations.verdict(&term.rule, term.number, workload),
            };
            match verdict {
                Verdict::Yes => names.push(term.rule.name().clone()),
                Verdict::Unknown => open.push(term.rule.clone()),
                Verdict::No => {}
            }
        });
        // A rule may have thousands of terms.
        names.sort_unstable();
        names.dedup();
        open.sort_unstable_by(|a: &Arc<Rule>, b| a.name().cmp(b.name()));
        open.dedup_by(|a, b| a.name() == b.name());
        open.retain(|rule| names.binary_search(rule.name()).is_err());
        let (mut undecided, mut waits) = (Vec::new(), false);
        for rule in open {
            match annotations.unknown(&rule) {
                Decision::Match => names.push(rule.name().clone()),
                _ => {
                    undecided.push(rule.name().clone());
                    waits |= super::annotations::waits(&rule);
                }
            }
        }
        names.sort_unstable();
        Matching { names, undecided, waits }
    }

    /// Passes on the terms that a workload could match, some of them more than once.
    fn each_candidate(&self, workload: &Workload, annotations: &Annotations, each: impl FnMut(&Term)) {
        let mut each = each;
        let mut try_all = |terms: &[Term]| terms.iter().for_each(&mut each);
        for (field, asks) in &self.by_field {
            if let Some(value) = field.scalar(workload) {
                asks.show(value.as_str(), &mut try_all);
            }
        }
        for (map, keys) in &self.by_entry {
            let Some(entries) = workload.extra_map(map) else { continue };
            // Whichever is shorter is gone through, the other one is asked.
            if entries.len() <= keys.len() {
                for (key, value) in entries.iter() {
                    if let Some(asks) = keys.get(key) {
                        asks.show(value, &mut try_all);
                    }
                }
            } else {
                for (key, asks) in keys {
                    if let Some(value) = entries.get(key) {
                        asks.show(value, &mut try_all);
                    }
                }
            }
        }
        if let Some(keys) = self.by_entry.get(MAP) {
            for asks in annotations.open_of(workload).filter_map(|key| keys.get(key)) {
                asks.values.values().for_each(|terms| try_all(terms));
                try_all(&asks.presence);
            }
        }
        try_all(&self.rest);
    }

    /// Whether the index is empty.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_field.is_empty() && self.by_entry.is_empty() && self.rest.is_empty() && self.places.is_empty()
    }

    /// Length of the longest list of terms that a workload may have to be tried against.
    #[cfg(test)]
    pub(super) fn longest_list(&self) -> usize {
        let asks = self.by_field.values().chain(self.by_entry.values().flat_map(HashMap::values));
        let lists = asks.flat_map(|asks| asks.values.values().chain([&asks.presence]));
        lists.chain([&self.rest]).map(Vec::len).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
