//! The rules that would be applied, beside those that there are.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use outrigger_admission::Decision;
use outrigger_api::WorkloadRule;
use outrigger_core::field::FieldError;
use outrigger_core::ids::TenantId;
use outrigger_core::keys;
use serde_json::{Value, json};

use super::report::{RuleChange, RuleVerdict};
use crate::admission::Admission;
use crate::companion::creation;
use crate::explain::view::{View, namespace_of};
use crate::files::{InputError, Object};
use crate::state::State;

/// The user as whom rules are applied. It has no rights of its own.
const ANYBODY: &str = "outrigger:diff";

fn is_rule(object: &Object) -> bool {
    object.is(keys::WORKLOAD_GROUP, "WorkloadRule")
}

/// The only tenant in whose namespaces the new rules are, if there is one.
pub(super) fn tenant_of(state: &State, new: &[Object]) -> Option<String> {
    let owner = |object: &Object| {
        state.namespace_labels(&object.namespace)?.get(keys::TENANT).map(|tenant| (*tenant).to_owned())
    };
    let all: BTreeSet<String> = new.iter().filter(|object| is_rule(object)).filter_map(owner).collect();
    if all.len() == 1 { all.into_iter().next() } else { None }
}

/// A tenant's rules as they are and as they would be, by name. All are in the tenant's namespace, where the agent puts the rules
/// of the tenant's own cluster too.
#[derive(Debug)]
pub(super) struct Proposals {
    namespace: String,
    present: BTreeMap<String, Object>,
    /// `None`: deleted.
    new: BTreeMap<String, Option<Object>>,
    /// Kinds of the other objects that were given.
    others: BTreeSet<String>,
}

impl Proposals {
    /// `prune`: rules that aren't among the new ones are deleted.
    pub(super) fn new(state: &State, view: &View, new: &[Object], prune: bool) -> Result<Self, InputError> {
        if view.tenant.is_none() {
            return Err(InputError::new("--tenant", "there is no Tenant to which the rules would belong"));
        }
        let namespace = view.namespace.clone();
        let mut this =
            Self { namespace, present: BTreeMap::new(), new: BTreeMap::new(), others: BTreeSet::new() };
        let known: BTreeSet<(String, String)> =
            view.rules.iter().map(|rule| (namespace_of(rule), rule.name_any())).collect();
        for object in state.of(keys::WORKLOAD_GROUP, "WorkloadRule") {
            let namespace = if object.namespace.is_empty() { "default" } else { &object.namespace };
            let is_own = *namespace == *this.namespace;
            let is_known = known.contains(&(namespace.to_owned(), object.name.clone()));
            // The manager serves the rule of the infrastructure cluster, where both have one.
            if is_known && (is_own || !this.present.contains_key(&object.name)) {
                this.present.insert(object.name.clone(), this.placed(object));
            }
        }
        for object in new {
            if !is_rule(object) {
                this.others.insert(object.kind.clone());
                continue;
            }
            if object.name.is_empty() {
                return Err(object.wrong("metadata.name: is missing"));
            }
            let labels = state.namespace_labels(&object.namespace).unwrap_or_default();
            let owner = labels.get(keys::TENANT).and_then(|id| TenantId::new(id).ok());
            if owner.is_some() && owner != view.tenant {
                let namespace = &object.namespace;
                let message =
                    format!("is in {namespace}, the namespace of another tenant: run diff once for each");
                return Err(object.wrong(message));
            }
            this.new.insert(object.name.clone(), Some(this.proposed(object)));
        }
        if this.new.is_empty() && !prune {
            return Err(InputError::new("--filename", "has no WorkloadRule"));
        }
        if prune {
            for name in this.present.keys() {
                this.new.entry(name.clone()).or_insert(None);
            }
        }
        Ok(this)
    }

    /// A rule in the tenant's namespace.
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
        let spec = object.value["spec"].take();
        let mut value = old.value.clone();
        if !same_spec(&old.value["spec"], &spec) {
            let generation = value["metadata"]["generation"].as_i64().unwrap_or_default();
            value["metadata"]["generation"] = json!(generation + 1);
            value["spec"] = spec;
        }
        object.value = value;
        object
    }

    /// The rules that there are.
    pub(super) fn present(&self) -> Vec<Object> {
        self.present.values().cloned().collect()
    }

    pub(super) fn is_rule(&self, object: &Object) -> bool {
        is_rule(object) && object.namespace == self.namespace
    }

    /// The new rules among those that are served, and the names of those that are deleted.
    pub(super) fn accepted(&self, served: impl Fn(&str) -> bool) -> (Vec<Object>, BTreeSet<String>) {
        let accepted = self.new.iter().filter(|(name, _)| served(name));
        let (mut after, mut gone) = (Vec::new(), BTreeSet::new());
        for (name, object) in accepted {
            match object {
                Some(object) => after.push(object.clone()),
                None => {
                    gone.insert(name.clone());
                }
            }
        }
        (after, gone)
    }

    /// What admission says of each rule, and notes on the input.
    pub(super) fn judge(&self, admission: &Admission) -> Result<(Vec<RuleVerdict>, Vec<String>), InputError> {
        let mut verdicts = Vec::new();
        for (name, object) in &self.new {
            let mut verdict = RuleVerdict {
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
        let mut notes = Vec::new();
        if !self.others.is_empty() {
            let kinds: Vec<&str> = self.others.iter().map(String::as_str).collect();
            notes.push(format!("only WorkloadRules are compared; --filename also has: {}", kinds.join(", ")));
        }
        Ok((verdicts, notes))
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

/// Whether two specs say the same, with the schema's defaults.
fn same_spec(old: &Value, new: &Value) -> bool {
    let read = |spec: &Value| serde_json::from_value::<WorkloadRule>(json!({"metadata": {}, "spec": spec}));
    match (read(old), read(new)) {
        (Ok(old), Ok(new)) => old.spec == new.spec,
        _ => old == new,
    }
}
