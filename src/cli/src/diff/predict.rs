//! The manager's next step for each companion, before and after the change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::ResourceClaim;
use outrigger_admission::Decision;
use outrigger_agent::annotations::{Pattern, Selection, keys_of};
use outrigger_api::WorkloadRule;
use outrigger_core::companion::{self, Action, DeleteReason, Home, Observed, plan};
use outrigger_core::ids::RuleName;
use outrigger_core::index::{CompanionKey, Desired, TenantIndex};
use outrigger_core::rollout::UpdateStrategy;
use outrigger_core::rule::Rule;
use outrigger_core::template::Kind;
use outrigger_core::workload::Workload;
use outrigger_manager::companions::observe::{observe, observe_claim};
use outrigger_runtime::pod::Pod;
use serde_json::Value;

use super::report::{Change, CompanionChange};
use crate::admission::Admission;
use crate::companion::creation;
use crate::explain::explanation::{ExplanationContext, place};
use crate::explain::view::View;
use crate::files::{InputError, Object};

/// What a companion's next step is, as far as a change of it matters.
#[derive(Debug, Clone, PartialEq)]
struct Step {
    action: Action,
    over_limit: bool,
}

pub(super) struct Prediction<'a> {
    view: &'a View,
    host_label: &'a str,
    allowed: Arc<[Pattern]>,
    index: TenantIndex,
    /// The rules as they are in the end, by name.
    rules: BTreeMap<String, WorkloadRule>,
    /// The names of rules that are other than before.
    changed: BTreeSet<String>,
    deleted: BTreeSet<RuleName>,
    companions: BTreeMap<CompanionKey, Observed>,
    before: BTreeMap<CompanionKey, Step>,
    /// The companions aren't known, and are taken to be those of the present rules.
    is_settled: bool,
}

impl<'a> Prediction<'a> {
    /// `send`: the annotations that the agent sends besides those that rules name.
    pub(super) fn new(view: &'a View, host_label: &'a str, send: &[String]) -> Result<Self, InputError> {
        let allowed = send.iter().map(|pattern| pattern.parse()).collect::<Result<_, String>>();
        let allowed = allowed.map_err(|error| InputError::new("--send-annotation", error))?;
        let mut index = TenantIndex::default();
        if let Some(limits) = &view.limits {
            index.limit(limits.matches());
        }
        Ok(Self {
            view,
            host_label,
            allowed,
            index,
            rules: BTreeMap::new(),
            changed: BTreeSet::new(),
            deleted: BTreeSet::new(),
            companions: view.companions.clone().unwrap_or_default(),
            before: BTreeMap::new(),
            is_settled: view.companions.is_none(),
        })
    }

    /// The present: its rules, workloads, and companions.
    pub(super) fn begin(&mut self, present: &[Object], admission: &Admission) -> Result<(), InputError> {
        for object in present {
            self.set(object.read()?);
        }
        self.send_workloads();
        if self.view.all_workloads {
            self.index.complete(|_| true);
        }
        if self.is_settled {
            for key in self.index.matches() {
                if let Some(observed) = self.made(&key, admission)? {
                    self.companions.insert(key, observed);
                }
            }
        }
        let keys: Vec<CompanionKey> = self.keys().into_iter().collect();
        self.before = keys.into_iter().map(|key| (key.clone(), self.step(&key))).collect();
        Ok(())
    }

    /// Applies rules, and deletes others.
    pub(super) fn apply(&mut self, after: &[Object], gone: &BTreeSet<String>) -> Result<(), InputError> {
        for object in after {
            let rule: WorkloadRule = object.read()?;
            if self.rules.get(&object.name).is_none_or(|old| old.spec != rule.spec) {
                self.changed.insert(object.name.clone());
                self.set(rule);
            }
        }
        for name in gone {
            self.rules.remove(name);
            if let Ok(name) = RuleName::new(name) {
                self.index.remove_rule(&name);
                self.deleted.insert(name);
            }
        }
        self.send_workloads();
        while self.index.has_more() {
            self.index.fill();
        }
        Ok(())
    }

    /// A rule that can't be served keeps its companions and makes none, as at the manager.
    fn set(&mut self, rule: WorkloadRule) {
        let name = rule.metadata.name.clone().unwrap_or_default();
        match rule.compile() {
            Ok(compiled) => {
                self.index.apply_rule(Arc::new(compiled));
            }
            Err(_) => {
                if let Ok(name) = RuleName::new(&name) {
                    self.index.remove_rule(&name);
                }
            }
        }
        self.rules.insert(name, rule);
    }

    /// Sends the workloads as the agent does: with the annotations that it may send.
    fn send_workloads(&mut self) {
        let named = self.rules.values().flat_map(keys_of).collect();
        let selection = Selection::new(self.allowed.clone(), named);
        for workload in &self.view.workloads {
            let mut workload = Workload::clone(workload);
            workload.annotations.retain(|key| selection.includes(key));
            self.index.update(workload);
        }
    }

    fn home(&self) -> Option<Home<'a>> {
        let tenant = self.view.tenant.as_ref()?;
        Some(Home { tenant, namespace: &self.view.namespace, owned: true })
    }

    /// Every companion that exists, or should.
    fn keys(&self) -> BTreeSet<CompanionKey> {
        self.companions.keys().cloned().chain(self.index.matches()).collect()
    }

    fn step(&self, key: &CompanionKey) -> Step {
        let observed = self.companions.get(key);
        let desired = self.index.desired(key);
        let over_limit = matches!(desired, Desired::OverLimit);
        let action = match (self.home(), observed) {
            // Its rule owns it, so that the garbage collector deletes it.
            (_, Some(o)) if self.deleted.contains(&key.rule) && !o.terminating => {
                Action::Delete { uid: o.uid.clone(), reason: DeleteReason::RuleDeleted }
            }
            (Some(home), _) => plan(key, &desired, observed, &home),
            (None, _) => Action::Nothing,
        };
        Step { action, over_limit }
    }

    /// The companion of a match as it is created and admitted, as far as the manager sees it.
    fn made(&self, key: &CompanionKey, admission: &Admission) -> Result<Option<Observed>, InputError> {
        let Some((_, object)) = self.creation(key, None) else { return Ok(None) };
        let Ok(object) = admitted(&object, &self.view.namespace, admission)? else { return Ok(None) };
        let of = |error| InputError::new("companion", error);
        let is_claim =
            matches!(self.index.desired(key), Desired::Wanted { rule, .. } if rule.kind() == Kind::Claim);
        let seen = if is_claim {
            observe_claim(&serde_json::from_value::<ResourceClaim>(object).map_err(of)?)
        } else {
            observe(&serde_json::from_value::<Pod>(object).map_err(of)?)
        };
        Ok(seen.map(|(_, observed)| observed))
    }

    /// The object that is created for a match when no companion is there, or the reason why there can be none.
    fn creation(&self, key: &CompanionKey, action: Option<&Action>) -> Option<(Arc<Rule>, Value)> {
        let desired = self.index.desired(key);
        let Desired::Wanted { rule, .. } = desired else { return None };
        let planned = match action {
            Some(Action::Create(object)) => return Some((rule.clone(), object.clone())),
            _ => plan(key, &desired, None, &self.home()?),
        };
        let Action::Create(object) = planned else { return None };
        Some((rule.clone(), object))
    }

    /// What would happen to each companion. What would happen without the change too is left out.
    pub(super) fn companions(&self, admission: &Admission) -> Result<Vec<CompanionChange>, InputError> {
        let mut all = Vec::new();
        for key in self.keys() {
            let step = self.step(&key);
            let is_new = self.changed.contains(key.rule.as_str()) || self.before.get(&key) != Some(&step);
            if is_new && let Some(change) = self.change(&key, &step, admission)? {
                all.push(change);
            }
        }
        Ok(all)
    }

    fn change(
        &self,
        key: &CompanionKey,
        step: &Step,
        admission: &Admission,
    ) -> Result<Option<CompanionChange>, InputError> {
        let mut entry = CompanionChange {
            rule: key.rule.as_str().to_owned(),
            workload: self.workload(key),
            companion: companion::own_name(key),
            change: Change::Refused,
            reason: String::new(),
            annotations: Vec::new(),
            nodes: None,
            problem: None,
        };
        let desired = self.index.desired(key);
        match (&step.action, desired) {
            (Action::Nothing, _) if step.over_limit => {
                "the tenant's rules match more than is kept (Tenant spec.limits.companions)"
                    .clone_into(&mut entry.reason);
            }
            (Action::Nothing | Action::Wait, _) => return Ok(None),
            (Action::Refuse(message), _) => entry.reason.clone_from(message),
            (Action::Annotate(patch), _) => {
                entry.change = Change::Annotated;
                entry.annotations = self.annotations(key, patch);
            }
            (Action::Create(_), _) => {
                entry.change = Change::Created;
                self.admit(key, step, admission, &mut entry)?;
            }
            (Action::Delete { reason: DeleteReason::TemplateChanged, .. }, Desired::Wanted { rule, .. })
                if rule.update() == UpdateStrategy::OnDelete =>
            {
                entry.change = Change::Outdated;
                "the rule's updateStrategy is OnDelete".clone_into(&mut entry.reason);
            }
            (Action::Delete { reason, .. }, Desired::Wanted { .. }) => {
                entry.change = Change::Replaced;
                reason.as_str().clone_into(&mut entry.reason);
                self.admit(key, step, admission, &mut entry)?;
            }
            (Action::Delete { reason, .. }, _) => {
                entry.change = Change::Deleted;
                reason.as_str().clone_into(&mut entry.reason);
            }
        }
        Ok(Some(entry))
    }

    /// What admission makes of the new companion: where it may run, or why it is refused.
    fn admit(
        &self,
        key: &CompanionKey,
        step: &Step,
        admission: &Admission,
        entry: &mut CompanionChange,
    ) -> Result<(), InputError> {
        let Some((rule, object)) = self.creation(key, Some(&step.action)) else { return Ok(()) };
        let object = match admitted(&object, &self.view.namespace, admission)? {
            Ok(object) => object,
            Err(message) => {
                entry.change = Change::Refused;
                entry.reason = message;
                return Ok(());
            }
        };
        let (Some(nodes), Some(workload)) = (&self.view.nodes, self.index.workload(&key.workload)) else {
            return Ok(());
        };
        if rule.kind() == Kind::Pod {
            let around = ExplanationContext {
                tenant: self.view.tenant.as_ref(),
                namespace: &self.view.namespace,
                host_label: self.host_label,
                nodes: Some(nodes),
            };
            let placement = place(&object, &rule, workload, nodes, &around);
            let fits = placement.nodes.into_iter().filter(|node| node.obstacles.is_empty());
            entry.nodes = Some(fits.map(|node| node.node).collect());
            entry.problem = placement.problem;
        }
        Ok(())
    }

    /// The injected annotations that a patch changes.
    fn annotations(&self, key: &CompanionKey, patch: &Value) -> Vec<String> {
        let own = outrigger_core::keys::INJECTED;
        let changed = patch.pointer("/metadata/annotations").and_then(Value::as_object);
        let names = changed.into_iter().flatten().map(|(name, _)| name.clone()).filter(|name| name != own);
        let mut names: Vec<String> = names.collect();
        if names.is_empty() && self.companions.contains_key(key) {
            names.push(own.to_owned());
        }
        names
    }

    fn workload(&self, key: &CompanionKey) -> String {
        let known = self.index.workload(&key.workload);
        known.map_or_else(
            || key.workload.to_string(),
            |workload| format!("{}/{}", workload.resource_namespace, workload.resource_name),
        )
    }

    /// What else should be known about the prediction.
    pub(super) fn notes(&self, changes: &[CompanionChange]) -> Vec<String> {
        let mut notes = Vec::new();
        if self.is_settled {
            notes.push(
                "the state has no companions: they are taken to be those of the present rules".to_owned(),
            );
        }
        let count = |change| changes.iter().filter(|entry| entry.change == change).count();
        let will_exist =
            (self.companions.len() + count(Change::Created)).saturating_sub(count(Change::Deleted));
        if let Some(limits) = &self.view.limits
            && count(Change::Created) > 0
            && will_exist > usize::try_from(limits.companions).unwrap_or(usize::MAX)
        {
            notes.push(format!(
                "there would be {will_exist} companions, and the tenant may have {} (Tenant spec.limits.companions): the \
                 API server refuses the rest",
                limits.companions
            ));
        }
        notes
    }
}

/// A companion as admission leaves it, or why it is denied.
fn admitted(
    object: &Value,
    namespace: &str,
    admission: &Admission,
) -> Result<Result<Value, String>, InputError> {
    let mut request = creation(admission.manager(), namespace, object)?;
    Ok(match admission.decide(&mut request) {
        Decision::Allow { .. } => Ok(request.object),
        Decision::Deny { message, .. } => Err(message),
    })
}
