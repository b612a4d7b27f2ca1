//! The rules that would be applied, beside those that there are.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use outrigger_admission::Decision;
use outrigger_core::admin::AdminNamespaces;
use outrigger_core::field::FieldError;
use outrigger_core::ids::TenantId;
use outrigger_core::{keys, machine};
use serde_json::{Value, json};

use super::report::{RuleChange, RuleVerdict};
use crate::admission::Admission;
use crate::companion::creation;
use crate::explain::view::{View, namespace_of};
use crate::files::{InputError, Object};
use crate::rules::{AnyRule, RuleKind};
use crate::state::State;

/// The user as whom rules are applied. It has no rights of its own.
const ANYBODY: &str = "outrigger:diff";

/// The only tenant in whose namespaces the new rules are, if there is one.
pub(super) fn tenant_of(state: &State, new: &[Object]) -> Option<String> {
    let own = new.iter().filter(|object| RuleKind::WorkloadRule.is(object));
    let all: BTreeSet<&str> = own.filter_map(|object| state.tenant_of(&object.namespace)).collect();
    if all.len() == 1 { all.into_iter().next().map(str::to_owned) } else { None }
}

/// Whether companions of a rule would be guests of Machines.
pub(super) fn makes_guests(object: &Object) -> bool {
    let labels = object.value.pointer("/spec/template/metadata/labels").and_then(Value::as_object);
    RuleKind::WorkloadRule.is(object) && labels.and_then(machine::guest).is_some()
}

/// A note that names the kinds of objects that aren't compared, if there are some.
pub(super) fn note_on_others(new: &[Object]) -> Option<String> {
    let others = new.iter().filter(|object| RuleKind::of(object).is_none());
    let kinds: BTreeSet<&str> = others.map(|object| object.kind.as_str()).collect();
    let kinds: Vec<&str> = kinds.into_iter().collect();
    let kinds = kinds.join(", ");
    (!kinds.is_empty()).then(|| {
        format!("only WorkloadRules and AdminWorkloadRules are compared; --filename also has: {kinds}")
    })
}

/// The rules of one kind in one namespace as they are and as they would be, by name.
#[derive(Debug)]
pub(super) struct RuleSet {
    kind: RuleKind,
    namespace: String,
    present: BTreeMap<String, Object>,
    /// `None`: deleted.
    new: BTreeMap<String, Option<Object>>,
}

impl RuleSet {
    fn empty(kind: RuleKind, namespace: &str) -> Self {
        Self { kind, namespace: namespace.to_owned(), present: BTreeMap::new(), new: BTreeMap::new() }
    }

    /// A tenant's rules. All are in the tenant's namespace, where the agent puts the rules of the tenant's own cluster too. `prune`:
    /// those that aren't among the new ones are deleted.
    pub(super) fn of_tenant(
        state: &State,
        view: &View,
        new: &[Object],
        prune: bool,
    ) -> Result<Self, InputError> {
        let mut this = Self::empty(RuleKind::WorkloadRule, &view.namespace);
        let known: BTreeSet<(String, String)> =
            view.rules.iter().map(|rule| (namespace_of(rule), rule.name_any())).collect();
        for object in state.of(keys::WORKLOAD_GROUP, "WorkloadRule") {
            let namespace = object.namespace_or_default();
            let is_own = namespace == this.namespace;
            let is_known = known.contains(&(namespace.to_owned(), object.name.clone()));
            // The manager serves the rule of the infrastructure cluster, where both have one.
            if is_known && (is_own || !this.present.contains_key(&object.name)) {
                this.present.insert(object.name.clone(), this.placed(object));
            }
        }
        for object in new.iter().filter(|object| RuleKind::WorkloadRule.is(object)) {
            let owner = state.tenant_of(&object.namespace).and_then(|id| TenantId::new(id).ok());
            if owner.is_some() && owner != view.tenant {
                let namespace = &object.namespace;
                let message =
                    format!("is in {namespace}, the namespace of another tenant: run diff once for each");
                return Err(object.wrong(message));
            }
            this.propose(object)?;
        }
        this.prune(prune);
        Ok(this)
    }

    /// The platform's rules: first those that are served, then those of other namespaces. Rules without a namespace are taken to be
    /// of the one that is served.
    pub(super) fn of_platform(
        state: &State,
        admin: &AdminNamespaces,
        new: &[Object],
        prune: bool,
    ) -> Result<Vec<Self>, InputError> {
        const KIND: RuleKind = RuleKind::AdminWorkloadRule;
        let mut sets = vec![Self::empty(KIND, &admin.rules)];
        let place = |object: &Object| {
            if object.namespace.is_empty() { admin.rules.to_string() } else { object.namespace.clone() }
        };
        for object in new.iter().filter(|object| KIND.is(object)) {
            let namespace = place(object);
            if !sets.iter().any(|set| set.namespace == namespace) {
                sets.push(Self::empty(KIND, &namespace));
            }
        }
        for set in &mut sets {
            for object in state.of(keys::WORKLOAD_GROUP, "AdminWorkloadRule") {
                if place(object) == set.namespace {
                    set.present.insert(object.name.clone(), set.placed(object));
                }
            }
            for object in new.iter().filter(|object| KIND.is(object)) {
                if place(object) == set.namespace {
                    set.propose(object)?;
                }
            }
        }
        if let Some(served) = sets.first_mut() {
            served.prune(prune);
        }
        Ok(sets)
    }

    fn propose(&mut self, object: &Object) -> Result<(), InputError> {
        if object.name.is_empty() {
            return Err(object.wrong("metadata.name: is missing"));
        }
        self.new.insert(object.name.clone(), Some(self.proposed(object)));
        Ok(())
    }

    fn prune(&mut self, prune: bool) {
        for name in self.present.keys().filter(|_| prune) {
            self.new.entry(name.clone()).or_insert(None);
        }
    }

    /// A rule in this namespace.
    fn placed(&self, object: &Object) -> Object {
        let mut object = object.clone();
        object.value["metadata"]["namespace"] = json!(self.namespace);
        object.namespace.clone_from(&self.namespace);
        object
    }

    /// A rule as the API server would store it: with the uid of the one that there is, and the next generation if the spec differs.
    fn proposed(&self, object: &Object) -> Object {
        let mut object = self.placed(object);
        let Some(old) = self.present.get(&object.name) else { return object };
        let is_same = match (AnyRule::read(old), AnyRule::read(&object)) {
            (Ok(old), Ok(new)) => old.same_spec(&new),
            _ => old.value["spec"] == object.value["spec"],
        };
        let spec = object.value["spec"].take();
        let mut value = old.value.clone();
        if !is_same {
            let generation = value["metadata"]["generation"].as_i64().unwrap_or_default();
            value["metadata"]["generation"] = json!(generation + 1);
            value["spec"] = spec;
        }
        object.value = value;
        object
    }

    /// The rules that there are.
    pub(super) fn present(&self) -> impl Iterator<Item = &Object> {
        self.present.values()
    }

    /// The rules that are given, as they are and as they would be.
    pub(super) fn given(&self) -> impl Iterator<Item = (Option<&Object>, Option<&Object>)> {
        self.new.iter().map(|(name, new)| (self.present.get(name), new.as_ref()))
    }

    /// Whether an object is one of these rules, and among those that are deleted.
    pub(super) fn is_gone(&self, object: &Object, gone: &BTreeSet<String>) -> bool {
        self.kind.is(object) && object.namespace == self.namespace && gone.contains(&object.name)
    }

    /// The new rules, and the names of those that are deleted, without those that are refused.
    pub(super) fn accepted(&self, verdicts: &[RuleVerdict]) -> Accepted {
        let refused: BTreeSet<&str> = verdicts
            .iter()
            .filter(|verdict| verdict.is_refused())
            .map(|verdict| verdict.name.as_str())
            .collect();
        let mut accepted = Accepted { kind: self.kind, after: Vec::new(), gone: BTreeSet::new() };
        for (name, object) in self.new.iter().filter(|(name, _)| !refused.contains(name.as_str())) {
            match object {
                Some(object) => accepted.after.push(object.clone()),
                None => {
                    accepted.gone.insert(name.clone());
                }
            }
        }
        accepted
    }

    /// What admission says of each rule.
    pub(super) fn judge(&self, admission: &Admission) -> Result<Vec<RuleVerdict>, InputError> {
        let mut verdicts = Vec::new();
        for (name, object) in &self.new {
            let mut verdict = RuleVerdict {
                kind: self.kind,
                namespace: self.namespace.clone(),
                name: name.clone(),
                change: RuleChange::Deleted,
                errors: Vec::new(),
                warnings: Vec::new(),
            };
            if let Some(object) = object {
                self.decide(admission, object, &mut verdict)?;
            }
            verdicts.push(verdict);
        }
        Ok(verdicts)
    }

    fn decide(
        &self,
        admission: &Admission,
        object: &Object,
        verdict: &mut RuleVerdict,
    ) -> Result<(), InputError> {
        let old = self.present.get(&object.name);
        let is_changed = old.is_none_or(|old| old.value["spec"] != object.value["spec"]);
        if !is_changed {
            verdict.change = RuleChange::Unchanged;
            return Ok(());
        }
        let mut request = creation(ANYBODY, &self.namespace, &object.value)?;
        if let Some(old) = old {
            "UPDATE".clone_into(&mut request.operation);
            request.old_object = old.value.clone();
        }
        match admission.decide(&mut request) {
            Decision::Allow { warnings, .. } => {
                verdict.change = if old.is_some() { RuleChange::Changed } else { RuleChange::Created };
                verdict.warnings = warnings;
            }
            Decision::Deny { message, causes, .. } => {
                verdict.change = RuleChange::Refused;
                verdict.errors = causes;
                if verdict.errors.is_empty() {
                    verdict.errors.push(FieldError::new("spec", message));
                }
            }
        }
        Ok(())
    }
}

/// What is applied of a set.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) kind: RuleKind,
    pub(super) after: Vec<Object>,
    /// The names of those that are deleted.
    pub(super) gone: BTreeSet<String>,
}
