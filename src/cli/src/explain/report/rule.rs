//! What a rule does for the workloads that are asked about.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{self as meta, Time};
use kube::ResourceExt;
use outrigger_agent::annotations::Selection;
use outrigger_api::admin_workload_rule::AdminRule;
use outrigger_api::{AdminWorkloadRule, WorkloadRule};
use outrigger_core::companion;
use outrigger_core::field::FieldError;
use outrigger_core::gate::Hold;
use outrigger_core::ids::TenantId;
use outrigger_core::index::{CompanionKey, HostDpus};
use outrigger_core::json::Json;
use outrigger_core::node::Node;
use outrigger_core::rule::{Ordering, Rule};
use outrigger_core::validate::{self, ValidationContext};
use outrigger_core::workload::Workload;
use outrigger_core::{keys, lint};

use super::{CompanionReport, Phase, RuleReport, State, WorkloadReport};
use crate::condition::Condition;
use crate::explain::ExplainArgs;
use crate::explain::explanation::{CompanionOutcome, ExplanationContext, explain};
use crate::explain::view::{Unordered, View, namespace_of};
use crate::rules::RuleKind;

/// A rule of either kind, as far as both have the same.
pub(super) struct Subject<'a> {
    kind: RuleKind,
    namespace: String,
    pub(super) name: String,
    policy: &'a str,
    selected: Option<bool>,
    created: Option<&'a Time>,
    is_being_deleted: bool,
    template: &'a Json,
    conditions: &'a [meta::Condition],
    compiled: Result<Rule, Vec<FieldError>>,
}

impl<'a> Subject<'a> {
    pub(super) fn own(object: &'a WorkloadRule) -> Self {
        Self {
            kind: RuleKind::WorkloadRule,
            namespace: namespace_of(object),
            name: object.name_any(),
            policy: &object.spec.dpu_selection_policy,
            selected: None,
            created: object.metadata.creation_timestamp.as_ref(),
            is_being_deleted: object.metadata.deletion_timestamp.is_some(),
            template: &object.spec.template,
            conditions: object.status.as_ref().map_or(&[], |status| &status.conditions),
            compiled: object.compile(),
        }
    }

    pub(super) fn admin(object: &'a AdminWorkloadRule, view: &View) -> Self {
        let compiled = object.compile();
        let selects =
            |rule: &AdminRule| Some(rule.tenants.selects(view.tenant.as_ref()?, view.labels.as_ref()?));
        let spec = &object.spec.rule;
        Self {
            kind: RuleKind::AdminWorkloadRule,
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            policy: &spec.dpu_selection_policy,
            selected: compiled.as_ref().ok().and_then(selects),
            created: object.metadata.creation_timestamp.as_ref(),
            is_being_deleted: object.metadata.deletion_timestamp.is_some(),
            template: &spec.template,
            conditions: object.status.as_ref().map_or(&[], |status| &status.conditions),
            compiled: compiled.map(|admin| admin.rule),
        }
    }

    /// `whole`: all workloads are asked about.
    pub(super) fn report(
        self,
        workloads: &[Arc<Workload>],
        sent: &Selection,
        view: &View,
        args: &ExplainArgs,
        whole: bool,
    ) -> RuleReport {
        let is_its = |(n, r, _): &&(String, String, String)| *n == self.namespace && *r == self.name;
        let mut report = RuleReport {
            kind: self.kind,
            policy: self.policy.to_owned(),
            selected: self.selected,
            errors: Vec::new(),
            warnings: Vec::new(),
            conditions: self.conditions.iter().map(Condition::from).collect(),
            events: view.events.iter().filter(is_its).map(|(_, _, words)| words.clone()).collect(),
            workloads: Vec::new(),
            companions: Vec::new(),
            namespace: self.namespace,
            name: self.name,
        };
        let linger = self.compiled.as_ref().map(Rule::linger).unwrap_or_default();
        match self.compiled {
            Err(errors) => report.errors = errors,
            // The platform's rules are held to no tenant's policy.
            Ok(rule) => {
                if self.kind == RuleKind::WorkloadRule {
                    report.errors = forbidden(self.template, &rule, view, args);
                }
                let mut refused = (!report.errors.is_empty())
                    .then_some("the template asks for what the tenant's Pods may not have");
                if self.is_being_deleted {
                    refused = Some("the rule is being deleted");
                    let message = "is set: the rule is being deleted, and makes no companions";
                    report.errors.push(FieldError::new("metadata.deletionTimestamp", message));
                }
                if view.is_leaving {
                    refused = Some("the tenant is being deleted");
                }
                report.warnings = lint::rule(&rule, &lint_context(view, args));
                let rule = Arc::new(rule);
                if self.selected != Some(false) {
                    // Other rules have one companion for a workload, whatever DPUs there are.
                    let dpus = if rule.policy().is_on_all() {
                        view.dpus(&args.admission.host_labels)
                    } else {
                        HostDpus::default()
                    };
                    let explained = |workload: &Arc<Workload>, key: &CompanionKey| {
                        explained(&rule, self.created, (workload, key), refused, sent, view, args)
                    };
                    report.workloads = workloads
                        .iter()
                        .flat_map(|workload| {
                            keys_of(&rule, workload, &dpus).into_iter().map(move |key| (workload, key))
                        })
                        .map(|(workload, key)| explained(workload, &key))
                        .collect();
                }
            }
        }
        if whole {
            report.companions = others(&report, linger, view);
        }
        report
    }
}

fn lint_context<'a>(view: &'a View, args: &'a ExplainArgs) -> lint::LintContext<'a> {
    let tenant = view.tenant.as_ref().map(TenantId::as_str);
    let is_theirs =
        |node: &&Node| tenant.is_none() || node.labels.get(keys::NODE_TENANT).map(String::as_str) == tenant;
    let dpus = view.nodes.as_ref().map(|nodes| nodes.iter().filter(is_theirs).count());
    lint::LintContext { host_labels: &args.admission.host_labels, tenant, dpus }
}

/// Fields of the template that admission denies to the tenant's Pods.
fn forbidden(template: &Json, rule: &Rule, view: &View, args: &ExplainArgs) -> Vec<FieldError> {
    let Some(policy) = &view.policy else { return Vec::new() };
    let facts = ValidationContext {
        manager: true,
        default_priority_class: view.default_priority_class.as_deref(),
        device_resources: &view.device_resources,
        ..ValidationContext::new(policy, &view.namespace, &args.admission.scheduler_name)
    };
    let mut faults = validate::template(&template.tree(), "spec.template", &facts);
    faults.extend(validate::device_claims(rule, &facts));
    faults
}

/// Says that a Pod doesn't wait for its companion as the rule asks; `created`: when the rule was.
fn unordered(ordering: Ordering, pod: &Unordered, created: Option<&Time>) -> Option<String> {
    let (lacks, so) = match pod.held {
        _ if !ordering.gates() => return None,
        _ if !pod.gated => ("readiness gate", "doesn't wait for its companion"),
        None if ordering.holds() => ("claim", "starts before its companion"),
        Some(Hold::Start) if ordering.binds() => {
            ("claim for binding", "is bound before its companion is Ready, and starts after it")
        }
        _ => return None,
    };
    let given = ordering.as_str();
    Some(if created.is_some_and(|rule| *rule > pod.created) {
        format!(
            "spec.ordering is {given}, but the Pod was created before the rule, so it has no {lacks} and {so}: recreate it"
        )
    } else {
        format!(
            "spec.ordering is {given}, but the Pod has no {lacks} and {so}: Pods get it from the agent's gate when they are created"
        )
    })
}

/// The companions that a rule has for a workload if it matches: one on each of these DPUs that is in the workload's host, or where there is
/// none, one whose key has no DPU.
fn keys_of(rule: &Rule, workload: &Workload, dpus: &HostDpus) -> Vec<CompanionKey> {
    let key = CompanionKey::of(rule.name(), &workload.id);
    let on_all: Vec<CompanionKey> = dpus.of(rule, workload).map(|dpu| key.on(dpu)).collect();
    if on_all.is_empty() { vec![key] } else { on_all }
}

/// `created`: when the rule was. `served`: admission takes what the rule's template asks for.
fn explained(
    rule: &Arc<Rule>,
    created: Option<&Time>,
    (workload, key): (&Arc<Workload>, &CompanionKey),
    refused: Option<&str>,
    sent: &Selection,
    view: &View,
    args: &ExplainArgs,
) -> WorkloadReport {
    let scope = rule.name().scope();
    let namespace = view.home(scope);
    let around = ExplanationContext {
        tenant: view.tenant.as_ref(),
        namespace,
        host_labels: &args.admission.host_labels,
        host_names: &view.host_names,
        nodes: view.nodes.as_deref(),
        sent,
        unknown_attributes: &view.unknown_attributes,
    };
    let mut explanation = explain(rule, workload, key, &around);
    if let Some(why) = refused.filter(|_| explanation.outcome == CompanionOutcome::Companion) {
        explanation.outcome = CompanionOutcome::Refused;
        explanation.reason = Some(why.to_owned());
        explanation.placement = None;
    }
    let wanted = explanation.outcome == CompanionOutcome::Companion;
    let claims = if wanted {
        let (companion, placement) = (&explanation.companion, explanation.placement.as_ref());
        view.devices.of_companion(rule, namespace, companion, key.label(), placement)
    } else {
        Vec::new()
    };
    let matches = explanation.outcome != CompanionOutcome::NoMatch;
    let pod = view.unordered.get(workload.id.as_str()).filter(|_| matches);
    let ordering = pod.and_then(|pod| unordered(rule.ordering(), pod, created));
    let absent = || wanted.then(|| State { phase: Phase::Absent, message: String::new() });
    WorkloadReport {
        namespace: workload.resource_namespace.clone(),
        name: workload.resource_name.clone(),
        id: workload.id.to_string(),
        node: workload.node_name.clone(),
        explanation,
        ordering,
        claims,
        state: view.companions_of(scope).and_then(|all| all.get(key).map(State::of).or_else(absent)),
    }
}

/// The rule's companions of workloads that aren't among those that are explained. `linger`: of the rule.
fn others(report: &RuleReport, linger: Duration, view: &View) -> Vec<CompanionReport> {
    let shown: BTreeSet<&str> = report.workloads.iter().map(|w| w.explanation.companion.as_str()).collect();
    let name = report.kind.name(&report.name);
    let all = view.companions_of(report.kind.scope()).into_iter().flatten();
    let all = all.filter(|(key, _)| Some(&key.rule) == name.as_ref());
    all.map(|(key, observed)| CompanionReport {
        companion: companion::own_name(key),
        workload: key.label().to_owned(),
        state: State::without_workload(observed, linger),
    })
    .filter(|other| !shown.contains(other.companion.as_str()))
    .collect()
}
