//! The manager's next step for each companion, before and after the change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;
use outrigger_admission::Decision;
use outrigger_agent::annotations::{Allowed, Selection};
use outrigger_api::{WorkloadRule, rule_wire};
use outrigger_core::admin::AdminNamespaces;
use outrigger_core::companion::{self, Action, DeleteReason, Home, Observed, plan};
use outrigger_core::host::HostLabels;
use outrigger_core::ids::RuleName;
use outrigger_core::index::{CompanionKey, Desired, TenantIndex};
use outrigger_core::rollout::UpdateStrategy;
use outrigger_core::rule::Rule;
use outrigger_core::template::Kind;
use outrigger_core::workload::Workload;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::proposal::Accepted;
use super::quota::Quotas;
use super::report::{Change, CompanionChange};
use crate::admission::Admission;
use crate::companion::{creation, of_claim, of_pod};
use crate::explain::explanation::{ExplanationContext, place};
use crate::explain::view::View;
use crate::files::{InputError, Object};
use crate::linger::lingers;
use crate::rules::{AnyRule, Filing, RuleKind};
use crate::sent::NamedKeys;

const ON_DELETE: &str = "the rule's updateStrategy is OnDelete";

/// What a companion's next step is, as far as a change of it matters.
#[derive(Debug, Clone, PartialEq)]
struct Step {
    action: Action,
    over_limit: bool,
}

/// What is the same for all tenants.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings<'a> {
    /// Where admin rules and their companions are.
    pub(super) admin: &'a AdminNamespaces,
    /// Node labels that name the host of a DPU.
    pub(super) host_labels: &'a HostLabels,
    /// The annotations that agents may send besides those that rules of the tenant's cluster name.
    pub(super) allowed: &'a Allowed,
    /// The state has no companions: they are taken to be those of the present rules.
    pub(super) is_settled: bool,
    /// Cancelled when nobody waits for the report.
    pub(super) stop: &'a CancellationToken,
}

impl Settings<'_> {
    /// # Errors
    /// Nobody waits for the report.
    fn go_on(&self) -> Result<(), InputError> {
        if self.stop.is_cancelled() {
            return Err(InputError::new("diff", "nobody waits for the answer"));
        }
        Ok(())
    }
}

/// What happens to the companions of one tenant.
pub(super) struct Prediction<'a> {
    view: &'a View,
    settings: Settings<'a>,
    index: TenantIndex,
    /// The rules as they are in the end, by name.
    rules: BTreeMap<RuleName, AnyRule>,
    /// The names of rules that are other than before.
    changed: BTreeSet<RuleName>,
    /// The rules that are deleted, or are about other tenants.
    absent: BTreeSet<RuleName>,
    companions: BTreeMap<CompanionKey, Observed>,
    /// The Pods of the companions that are taken to exist.
    made: Vec<Value>,
    before: BTreeMap<CompanionKey, Step>,
}

impl<'a> Prediction<'a> {
    pub(super) fn new(view: &'a View, settings: Settings<'a>) -> Self {
        let mut index = TenantIndex::default();
        if let Some(limits) = &view.limits {
            index.limit(limits.matches());
        }
        index.dpus = view.dpus(settings.host_labels);
        let mut companions = view.companions.clone().unwrap_or_default();
        companions.extend(view.admin_companions.clone());
        Self {
            view,
            settings,
            index,
            rules: BTreeMap::new(),
            changed: BTreeSet::new(),
            absent: BTreeSet::new(),
            companions,
            made: Vec::new(),
            before: BTreeMap::new(),
        }
    }

    /// The present: its rules, workloads, and companions.
    pub(super) fn begin(&mut self, present: &[&Object], admission: &Admission) -> Result<(), InputError> {
        for object in present {
            self.settings.go_on()?;
            if let Some(name) = name_of(object) {
                self.set(name, AnyRule::read(object)?);
            }
        }
        self.send_workloads();
        if self.view.source.workloads {
            self.index.complete(|_| true);
        }
        if self.settings.is_settled {
            for key in self.matches().collect::<Vec<_>>() {
                self.settings.go_on()?;
                if let Some((observed, object)) = self.make(&key, admission)? {
                    self.made.push(object);
                    self.companions.insert(key, observed);
                }
            }
        }
        let keys: Vec<CompanionKey> = self.keys().into_iter().collect();
        for key in keys {
            self.settings.go_on()?;
            let step = self.step(&key);
            self.before.insert(key, step);
        }
        Ok(())
    }

    /// Applies rules, and deletes others.
    pub(super) fn apply(&mut self, accepted: &[&Accepted]) -> Result<(), InputError> {
        for object in accepted.iter().flat_map(|accepted| &accepted.after) {
            self.settings.go_on()?;
            let Some(name) = name_of(object) else { continue };
            let rule = AnyRule::read(object)?;
            if self.rules.get(&name).is_none_or(|old| !old.same_spec(&rule)) {
                self.changed.insert(name.clone());
                self.set(name, rule);
            }
        }
        for accepted in accepted {
            for name in accepted.gone.iter().filter_map(|name| accepted.kind.name(name)) {
                self.rules.remove(&name);
                self.index.remove_rule(&name);
                self.absent.insert(name);
            }
        }
        self.send_workloads();
        while self.index.has_more() {
            self.settings.go_on()?;
            self.index.fill();
        }
        Ok(())
    }

    /// Files a rule as the manager does.
    fn set(&mut self, name: RuleName, rule: AnyRule) {
        let Some(tenant) = &self.view.tenant else { return };
        self.absent.remove(&name);
        match rule.filing(tenant, self.view.labels.as_ref()) {
            Filing::Served(compiled) => {
                self.index.apply_rule(compiled);
            }
            Filing::Invalid => {
                self.index.remove_rule(&name);
            }
            Filing::Elsewhere => {
                self.index.remove_rule(&name);
                self.absent.insert(name.clone());
            }
        }
        self.rules.insert(name, rule);
    }

    /// Sends the workloads as the agent does, with the annotations that it may send, and says which these are.
    fn send_workloads(&mut self) {
        let mut keys = NamedKeys::default();
        for (name, rule) in &self.rules {
            match rule {
                AnyRule::Own(rule) => keys.name(rule, self.is_copied(name, rule)),
                AnyRule::Admin(_) => {
                    keys.ask(self.index.rule(name).iter().flat_map(|rule| rule.annotation_keys()));
                }
            }
        }
        let selection = keys.selection(self.settings.allowed);
        self.index.set_known(self.index.known().said(selection.statement()));
        for workload in &self.view.workloads {
            let mut workload = Workload::clone(workload);
            selection.apply(&mut workload);
            self.index.update(workload);
        }
    }

    /// Whether a rule is in the tenant's cluster, too: one that is changed here is where it was, and a new one is created there.
    fn is_copied(&self, name: &RuleName, rule: &WorkloadRule) -> bool {
        let present = self.view.rules.iter().find(|present| present.name_any() == name.as_str());
        present.is_none_or(|present| self.view.is_copied(present)) || !rule_wire::origin(rule).is_empty()
    }

    /// Where the companions of a rule are.
    fn home(&self, rule: &RuleName) -> Option<Home<'a>> {
        let tenant = self.view.tenant.as_ref()?;
        let (admin, host_names) = (self.settings.admin, &*self.view.host_names);
        Some(if rule.is_admin() {
            Home { tenant, namespace: &admin.resources, owned: admin.owned(), host_names }
        } else {
            Home { tenant, namespace: &self.view.namespace, owned: true, host_names }
        })
    }

    /// Every companion that exists, or should.
    fn keys(&self) -> BTreeSet<CompanionKey> {
        self.companions.keys().cloned().chain(self.matches()).collect()
    }

    /// Every companion of a workload that its rule matches.
    fn matches(&self) -> impl Iterator<Item = CompanionKey> {
        self.index.matches().flat_map(|key| self.index.companions_of(&key))
    }

    fn step(&self, key: &CompanionKey) -> Step {
        let observed = self.companions.get(key);
        let desired = self.index.desired(key);
        let over_limit = matches!(desired, Desired::OverLimit);
        let action = match (self.home(&key.rule), observed) {
            // Its rule owns it, so that the garbage collector deletes it, or the manager does so.
            (_, Some(o)) if self.absent.contains(&key.rule) && !o.terminating => {
                Action::Delete { uid: o.uid.clone(), reason: DeleteReason::RuleDeleted }
            }
            (Some(home), _) if !self.is_open(key) => plan(key, &desired, observed, &home),
            _ => Action::Nothing,
        };
        Step { action, over_limit }
    }

    /// Whether attributes of devices decide about a match that aren't known here. Then no change is predicted.
    fn is_open(&self, key: &CompanionKey) -> bool {
        let (rule, workload) = (self.index.rule(&key.rule), self.index.workload(&key.workload));
        rule.zip(workload).is_some_and(|(rule, workload)| self.view.unknown_attributes.decide(rule, workload))
    }

    /// The companion of a match as it is created and admitted, as far as the manager sees it.
    fn make(
        &self,
        key: &CompanionKey,
        admission: &Admission,
    ) -> Result<Option<(Observed, Value)>, InputError> {
        let Some((rule, object, home)) = self.creation(key) else { return Ok(None) };
        let Ok(object) = admitted(&object, home.namespace, admission)? else { return Ok(None) };
        let of = |error| InputError::new("companion", error);
        let found = match rule.kind() {
            Kind::Claim => of_claim(&serde_json::from_value(object.clone()).map_err(of)?, home.namespace),
            Kind::Pod => of_pod(&serde_json::from_value(object.clone()).map_err(of)?, home.namespace),
        };
        Ok(found.map(|(.., observed)| (observed, object)))
    }

    /// The companions that are taken to exist, where the state has none.
    pub(super) fn made(&self) -> &[Value] {
        &self.made
    }

    /// Gives back the slots and quotas of companions that are deleted, also of those that are created again.
    pub(super) fn release(&self, admission: &Admission, quotas: &mut Quotas) {
        for (key, observed) in &self.companions {
            if let (Action::Delete { reason, .. }, Some(home)) = (self.step(key).action, self.home(&key.rule))
                && !self.stays(key, reason)
            {
                let name = companion::name(key, home.tenant);
                admission.release_slot(home.namespace, &name);
                quotas.release(home.namespace, observed.kind, &name);
            }
        }
    }

    /// Whether a companion that would be replaced stays until somebody deletes it.
    fn stays(&self, key: &CompanionKey, reason: DeleteReason) -> bool {
        let on_delete = |rule: &Rule| rule.update() == UpdateStrategy::OnDelete;
        reason == DeleteReason::TemplateChanged
            && matches!(self.index.desired(key), Desired::Wanted { rule, .. } if on_delete(rule))
    }

    /// The object that is created for a match when no companion is there, and where; `None` where there can be none.
    fn creation(&self, key: &CompanionKey) -> Option<(Arc<Rule>, Value, Home<'a>)> {
        let (home, desired) = (self.home(&key.rule)?, self.index.desired(key));
        let Desired::Wanted { rule, .. } = desired else { return None };
        if self.is_open(key) {
            return None;
        }
        match plan(key, &desired, None, &home) {
            Action::Create(object) => Some((rule.clone(), object, home)),
            _ => None,
        }
    }

    /// What would happen to each companion. What would happen without the change too is left out.
    pub(super) fn companions(
        &self,
        admission: &Admission,
        quotas: &mut Quotas,
    ) -> Result<Vec<CompanionChange>, InputError> {
        let mut all = Vec::new();
        for key in self.keys() {
            self.settings.go_on()?;
            let step = self.step(&key);
            let is_new = self.changed.contains(&key.rule) || self.before.get(&key) != Some(&step);
            if is_new && let Some(change) = self.change(&key, &step, admission, quotas)? {
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
        quotas: &mut Quotas,
    ) -> Result<Option<CompanionChange>, InputError> {
        let Some(home) = self.home(&key.rule) else { return Ok(None) };
        let (change, reason) = match &step.action {
            Action::Nothing if step.over_limit => {
                let why = "the tenant's rules match more than is kept (Tenant spec.limits.companions)";
                (Change::Refused, why.to_owned())
            }
            Action::Nothing | Action::Wait => return Ok(None),
            Action::Refuse(_, message) => (Change::Refused, message.clone()),
            Action::Annotate(_) => (Change::Annotated, String::new()),
            Action::Linger(lingering) => (Change::Lingering, lingers(lingering.ended, lingering.time)),
            Action::Create(_) => (Change::Created, String::new()),
            Action::InPlace { .. } if self.stays(key, DeleteReason::TemplateChanged) => {
                (Change::Outdated, ON_DELETE.to_owned())
            }
            Action::InPlace { change, .. } => Change::in_place(*change),
            Action::Delete { reason, .. } if self.stays(key, *reason) => {
                (Change::Outdated, ON_DELETE.to_owned())
            }
            Action::Delete { reason, .. } => {
                let is_wanted = matches!(self.index.desired(key), Desired::Wanted { .. });
                let change = if is_wanted { Change::Replaced } else { Change::Deleted };
                (change, reason.as_str().to_owned())
            }
        };
        let mut entry = CompanionChange {
            tenant: home.tenant.to_string(),
            rule_kind: RuleKind::named(&key.rule),
            rule: key.rule.as_str().to_owned(),
            workload: self.workload(key),
            namespace: home.namespace.to_owned(),
            companion: companion::name(key, home.tenant),
            change,
            reason,
            annotations: match &step.action {
                Action::Annotate(patch) => self.annotations(key, patch),
                _ => Vec::new(),
            },
            nodes: None,
            slot: None,
            problem: None,
        };
        if matches!(change, Change::Created | Change::Replaced) {
            self.admit(key, admission, quotas, &mut entry)?;
        }
        Ok(Some(entry))
    }

    /// What admission and quotas make of the new companion: where it may run, or why it is refused.
    fn admit(
        &self,
        key: &CompanionKey,
        admission: &Admission,
        quotas: &mut Quotas,
        entry: &mut CompanionChange,
    ) -> Result<(), InputError> {
        let Some((rule, object, home)) = self.creation(key) else { return Ok(()) };
        // Companions of the platform are no guests.
        let slot = if rule.name().is_admin() { None } else { admission.slot_of(home.namespace, &object) };
        let counted = admitted(&object, home.namespace, admission)?.and_then(|object| {
            let counted = quotas.take(home.namespace, rule.kind(), &object).map(|()| object);
            // The webhook's grant of a slot expires.
            counted.inspect_err(|_| admission.release_slot(home.namespace, &entry.companion))
        });
        let object = match counted {
            Ok(object) => object,
            Err(message) => {
                (entry.change, entry.reason) = (Change::Refused, message);
                return Ok(());
            }
        };
        entry.slot = slot;
        let (Some(nodes), Some(workload), Kind::Pod) =
            (&self.view.nodes, self.index.workload(&key.workload), rule.kind())
        else {
            return Ok(());
        };
        let around = ExplanationContext {
            tenant: self.view.tenant.as_ref(),
            namespace: home.namespace,
            host_labels: self.settings.host_labels,
            host_names: &self.view.host_names,
            nodes: Some(nodes),
            sent: &Selection::default(),
            unknown_attributes: &self.view.unknown_attributes,
        };
        let placement = place(&object, &rule, key, workload, nodes, &around);
        let fits = placement.nodes.into_iter().filter(|node| node.obstacles.is_empty());
        entry.nodes = Some(fits.map(|node| node.node).collect());
        entry.problem = placement.problem;
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
            || key.label().to_owned(),
            |workload| format!("{}/{}", workload.resource_namespace, workload.resource_name),
        )
    }

    /// What else should be known about the prediction.
    pub(super) fn notes(&self, changes: &[CompanionChange], quotas: &Quotas) -> Vec<String> {
        let unsent = self.index.rules().map(|rule| (rule.name(), self.index.unsent(rule)));
        let mut notes: Vec<String> = unsent
            .filter(|(_, keys)| !keys.is_empty())
            .map(|(rule, keys)| {
                let keys = keys.into_keys().collect::<Vec<_>>().join(", ");
                let effect = if rule.is_admin() { "workloads have a companion" } else { "nothing changes" };
                format!(
                    "rule {rule} names annotations that the agent doesn't send ({keys}): where they decide, {effect}; if the agent \
                     sends them, repeat its --allow-annotation or --send-annotation here"
                )
            })
            .collect();
        notes.extend(self.view.unknown_attributes.notes(&self.view.workloads, self.index.rules()));
        notes.sort_unstable();
        // Those of admin rules don't count as the tenant's.
        let count = |change| {
            let own = changes.iter().filter(|entry| entry.rule_kind == RuleKind::WorkloadRule);
            own.filter(|entry| entry.change == change).count()
        };
        let present = self.companions.keys().filter(|key| !key.rule.is_admin()).count();
        let will_exist = (present + count(Change::Created)).saturating_sub(count(Change::Deleted));
        if let Some(limits) = &self.view.limits
            && !quotas.count_pods(&self.view.namespace)
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

fn name_of(object: &Object) -> Option<RuleName> {
    RuleKind::of(object)?.name(&object.name)
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
