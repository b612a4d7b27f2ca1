//! The rules and workloads of one tenant, and which of them belong together.
//!
//! Synchronous: a change comes in as a method call and returns the companions that it may have changed. A workload is
//! tried only against rules that could match it. Each term is filed under one of its expressions that asks for a certain
//! value (or at least for the presence) of a field, so a workload looks up the values it has and leaves all other rules
//! alone: the cost of a workload depends on how many rules could match it, not on how many there are.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::ids::{RuleName, WorkloadId};
use crate::path::Path;
use crate::rule::{DpuSelectionPolicy, Expression, Rule, Test};
use crate::workload::Workload;

/// The only companion of a rule for a workload.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CompanionKey {
    /// The rule.
    pub rule: RuleName,
    /// The workload, by its label value ([`WorkloadId::label_value`]): that is what an existing companion tells.
    pub workload: Arc<str>,
}

/// What there should be for a [`CompanionKey`].
#[derive(Debug, Clone, Copy)]
pub enum Desired<'a> {
    /// A companion of this rule for this workload.
    Wanted {
        /// The rule.
        rule: &'a Arc<Rule>,
        /// The workload.
        workload: &'a Arc<Workload>,
    },
    /// The rule matches, but its companion has to be on the workload's node, which isn't known yet.
    Waiting,
    /// No companion: the workload doesn't match, or is known not to exist.
    Unwanted,
    /// There is no such rule, or none that can be served.
    RuleUnknown,
    /// The workload isn't known, and the tenant has not yet told of all that it has.
    Unknown,
}

/// The rules and workloads of one tenant.
#[derive(Debug, Default)]
pub struct TenantIndex {
    rules: HashMap<RuleName, Arc<Rule>>,
    filed: Filed,
    workloads: HashMap<Arc<str>, Entry>,
    matched: HashMap<RuleName, BTreeSet<Arc<str>>>,
    synced: bool,
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
        self.filed.insert(&rule);
        let mut matched = BTreeSet::new();
        for (id, entry) in &mut self.workloads {
            let matches = rule.matches(&entry.workload);
            match (entry.matched.binary_search(&name), matches) {
                (Ok(at), false) => {
                    entry.matched.remove(at);
                }
                (Err(at), true) => entry.matched.insert(at, name.clone()),
                _ => {}
            }
            if matches {
                matched.insert(id.clone());
            }
        }
        touched.extend(matched.iter().cloned());
        if !matched.is_empty() {
            self.matched.insert(name.clone(), matched);
        }
        self.rules.insert(name.clone(), rule);
        keys(&name, touched)
    }

    /// Removes a rule.
    pub fn remove_rule(&mut self, name: &RuleName) -> Vec<CompanionKey> {
        let touched = self.unfile(name);
        for id in &touched {
            if let Some(entry) = self.workloads.get_mut(id) {
                entry.matched.retain(|rule| rule != name);
            }
        }
        keys(name, touched)
    }

    /// Takes a rule out of everything but the workloads' lists; returns the workloads that it matched.
    fn unfile(&mut self, name: &RuleName) -> BTreeSet<Arc<str>> {
        if let Some(old) = self.rules.remove(name) {
            self.filed.remove(&old);
        }
        self.matched.remove(name).unwrap_or_default()
    }

    /// Sets a workload. An update that changes nothing touches nothing.
    pub fn update(&mut self, workload: Workload) -> Vec<CompanionKey> {
        let id = self.key_of(&workload.id);
        if self.workloads.get(&id).is_some_and(|entry| *entry.workload == workload) {
            return Vec::new();
        }
        let matched = self.filed.matching(&workload);
        let workload = Arc::new(workload);
        let before = match self.workloads.get_mut(&id) {
            Some(entry) => {
                entry.workload = workload;
                std::mem::replace(&mut entry.matched, matched.clone())
            }
            None => {
                self.workloads.insert(id.clone(), Entry { workload, matched: matched.clone() });
                Vec::new()
            }
        };
        self.rematch(&id, before, matched)
    }

    /// Removes a workload.
    pub fn delete(&mut self, id: &WorkloadId) -> Vec<CompanionKey> {
        let id = self.key_of(id);
        match self.workloads.remove(&id) {
            Some(entry) => self.rematch(&id, entry.matched, Vec::new()),
            None => Vec::new(),
        }
    }

    /// Sets all workloads: what is not among them is gone. From now on an unknown workload is one that doesn't exist.
    pub fn sync(&mut self, workloads: Vec<Workload>) -> Vec<CompanionKey> {
        let told: std::collections::HashSet<Arc<str>> =
            workloads.iter().map(|workload| self.key_of(&workload.id)).collect();
        let gone: Vec<Arc<str>> = self.workloads.keys().filter(|id| !told.contains(*id)).cloned().collect();
        let mut touched = Vec::new();
        for id in gone {
            if let Some(entry) = self.workloads.remove(&id) {
                touched.extend(self.rematch(&id, entry.matched, Vec::new()));
            }
        }
        for workload in workloads {
            touched.extend(self.update(workload));
        }
        self.synced = true;
        touched
    }

    /// Whether the tenant has told of all workloads that it has.
    pub fn synced(&self) -> bool {
        self.synced
    }

    /// What there should be for a key.
    pub fn desired(&self, key: &CompanionKey) -> Desired<'_> {
        let Some(rule) = self.rules.get(&key.rule) else { return Desired::RuleUnknown };
        let Some(entry) = self.workloads.get(&key.workload) else {
            return if self.synced { Desired::Unwanted } else { Desired::Unknown };
        };
        if entry.matched.binary_search(&key.rule).is_err() {
            return Desired::Unwanted;
        }
        if rule.policy() == DpuSelectionPolicy::SameNode && entry.workload.node_name.is_none() {
            return Desired::Waiting;
        }
        Desired::Wanted { rule, workload: &entry.workload }
    }

    /// How many workloads a rule matches.
    pub fn matched(&self, rule: &RuleName) -> usize {
        self.matched.get(rule).map_or(0, BTreeSet::len)
    }

    /// How many workloads are known.
    pub fn workloads(&self) -> usize {
        self.workloads.len()
    }

    /// All rules that are served.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.rules.values()
    }

    /// The key that an id has here; the one in use, if it is.
    fn key_of(&self, id: &WorkloadId) -> Arc<str> {
        let label = id.label_value();
        match self.workloads.get_key_value(label.as_str()) {
            Some((key, _)) => key.clone(),
            None => label.into(),
        }
    }

    /// A workload matched some rules and matches others now. All of them may have to do something: also where nothing
    /// but the workload's facts has changed.
    fn rematch(&mut self, id: &Arc<str>, before: Vec<RuleName>, now: Vec<RuleName>) -> Vec<CompanionKey> {
        let mut touched = Vec::with_capacity(before.len() + now.len());
        for rule in before {
            if now.binary_search(&rule).is_err() {
                if let Some(ids) = self.matched.get_mut(&rule) {
                    ids.remove(id);
                    if ids.is_empty() {
                        self.matched.remove(&rule);
                    }
                }
                touched.push(CompanionKey { rule, workload: id.clone() });
            }
        }
        for rule in now {
            self.matched.entry(rule.clone()).or_default().insert(id.clone());
            touched.push(CompanionKey { rule, workload: id.clone() });
        }
        touched
    }
}

fn keys(rule: &RuleName, workloads: BTreeSet<Arc<str>>) -> Vec<CompanionKey> {
    workloads.into_iter().map(|workload| CompanionKey { rule: rule.clone(), workload }).collect()
}

/// A term of a rule, by the rule's name and the term's place.
type TermId = (RuleName, usize);

/// Terms, filed by what a workload must have to match them.
#[derive(Debug, Default)]
struct Filed {
    /// Fixed field -> terms that ask for something of it. There are few fixed fields.
    by_field: HashMap<Path, Asks>,
    /// Map of `state.extra` -> key in it -> terms that ask for something of that entry. There may be many keys.
    by_entry: HashMap<Box<str>, HashMap<Box<str>, Asks>>,
    /// Terms that ask for nothing in particular.
    rest: Vec<Term>,
}

/// Terms that ask for something of one field.
#[derive(Debug, Default)]
struct Asks {
    /// For a certain value.
    values: HashMap<String, Vec<Term>>,
    /// For any value.
    presence: Vec<Term>,
}

impl Asks {
    fn is_empty(&self) -> bool {
        self.values.is_empty() && self.presence.is_empty()
    }

    fn remove(&mut self, values: &[String], other: impl Fn(&Term) -> bool) {
        for value in values {
            if let Some(terms) = self.values.get_mut(value) {
                terms.retain(&other);
                if terms.is_empty() {
                    self.values.remove(value);
                }
            }
        }
        if values.is_empty() {
            self.presence.retain(&other);
        }
    }

    /// Shows the terms that a workload with this value could match.
    fn show(&self, value: &str, try_all: &mut impl FnMut(&[Term])) {
        if let Some(terms) = self.values.get(value) {
            try_all(terms);
        }
        try_all(&self.presence);
    }
}

#[derive(Debug)]
struct Term {
    id: TermId,
    rule: Arc<Rule>,
}

/// Where a term is filed: under one of its expressions' fields, and the values that it asks for there. No values means
/// any. `None` where no expression asks for anything to be there.
///
/// Fewest values first: such a list is likely the one that the fewest workloads are in. A workload's own name or labels
/// tell it from others better than its namespace or node do.
fn place(term: &[Expression]) -> Option<(&Path, &[String])> {
    let rank = |path: &Path| match path {
        Path::Id | Path::ResourceName => 0,
        Path::ExtraEntry(..) => 1,
        Path::ResourceNamespace | Path::NodeName => 2,
        _ => 3,
    };
    let by_value = term
        .iter()
        .filter_map(|e| match &e.test {
            Test::In(values) => Some((&e.path, values.as_slice())),
            _ => None,
        })
        .min_by_key(|(path, values)| (values.len(), rank(path)));
    by_value.or_else(|| {
        let needs_entry = |e: &&Expression| {
            matches!(e.test, Test::Exists | Test::Gt(_) | Test::Lt(_)) && matches!(e.path, Path::ExtraEntry(..))
        };
        term.iter().find(needs_entry).map(|e| (&e.path, &[][..]))
    })
}

impl Filed {
    fn insert(&mut self, rule: &Arc<Rule>) {
        for (t, term) in rule.terms().iter().enumerate() {
            let file = || Term { id: (rule.name().clone(), t), rule: rule.clone() };
            let Some((path, values)) = place(term) else {
                self.rest.push(file());
                continue;
            };
            let asks = match path {
                Path::ExtraEntry(map, key) => {
                    self.by_entry.entry(map.clone()).or_default().entry(key.clone()).or_default()
                }
                field => self.by_field.entry(field.clone()).or_default(),
            };
            for value in values {
                asks.values.entry(value.clone()).or_default().push(file());
            }
            if values.is_empty() {
                asks.presence.push(file());
            }
        }
    }

    fn remove(&mut self, rule: &Rule) {
        for (t, term) in rule.terms().iter().enumerate() {
            let other = |filed: &Term| filed.id.1 != t || filed.id.0 != *rule.name();
            match place(term) {
                None => self.rest.retain(other),
                Some((Path::ExtraEntry(map, key), values)) => {
                    let Some(keys) = self.by_entry.get_mut(map) else { continue };
                    if let Some(asks) = keys.get_mut(key) {
                        asks.remove(values, other);
                        if asks.is_empty() {
                            keys.remove(key);
                        }
                    }
                }
                Some((field, values)) => {
                    if let Some(asks) = self.by_field.get_mut(field) {
                        asks.remove(values, other);
                        if asks.is_empty() {
                            self.by_field.remove(field);
                        }
                    }
                }
            }
        }
    }

    /// Names of the rules that match, sorted, each once.
    fn matching(&self, workload: &Workload) -> Vec<RuleName> {
        let mut names = Vec::new();
        let mut try_all = |terms: &[Term]| {
            for Term { id: (name, t), rule } in terms {
                let matches = rule.is_about(workload)
                    && rule.terms().get(*t).is_some_and(|term| term.iter().all(|e| e.matches(workload)));
                if matches {
                    names.push(name.clone());
                }
            }
        };
        for (field, asks) in &self.by_field {
            if let Some(value) = field.scalar(workload) {
                asks.show(value.as_str(), &mut try_all);
            }
        }
        for (map, keys) in &self.by_entry {
            let Some(entries) = workload.extra_map(map) else { continue };
            // Whichever is shorter is gone through, the other one is asked.
            if entries.len() <= keys.len() {
                for (key, value) in entries {
                    if let Some(asks) = keys.get(key.as_str()) {
                        asks.show(value, &mut try_all);
                    }
                }
            } else {
                for (key, asks) in keys {
                    if let Some(value) = entries.get(&**key) {
                        asks.show(value, &mut try_all);
                    }
                }
            }
        }
        try_all(&self.rest);
        names.sort_unstable();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests;
