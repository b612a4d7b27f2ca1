//! The report of `outrigger explain`. docs/explain.md describes its structure, which is stable.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{self as meta, Time};
use kube::ResourceExt;
use outrigger_agent::annotations::Selection;
use outrigger_api::admin_workload_rule::AdminRule;
use outrigger_api::{AdminWorkloadRule, WorkloadRule};
use outrigger_core::companion::{self, Observed};
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
use serde::Serialize;

use super::ExplainArgs;
use super::agent_reports::PodReport;
use super::live::RulesKnown;
use super::view::{Unordered, View, namespace_of};
use crate::companion::PodName;
use crate::condition::Condition;
use crate::explain::allocation::ClaimReport;
use crate::explain::explanation::{CompanionOutcome, Explanation, ExplanationContext, explain};
use crate::files::InputError;
use crate::linger::lingers;
use crate::rules::RuleKind;
use crate::sent::NamedKeys;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
    pub(crate) notes: Vec<String>,
    /// What the tenant's own cluster says of its workloads.
    pub(crate) pods: Vec<PodReport>,
    pub(crate) rules_known: RulesKnown,
    pub(crate) rules: Vec<RuleReport>,
    /// `namespace/name` of Pods that have ended, and so are no workloads.
    pub(crate) ended: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuleReport {
    pub(crate) kind: RuleKind,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) policy: String,
    /// Whether a rule of the platform selects the tenant; absent for a tenant's own rule, and where it isn't known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) selected: Option<bool>,
    pub(crate) errors: Vec<FieldError>,
    pub(crate) warnings: Vec<String>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) events: Vec<String>,
    pub(crate) workloads: Vec<WorkloadReport>,
    /// Companions of workloads that aren't known here.
    pub(crate) companions: Vec<CompanionReport>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WorkloadReport {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    #[serde(flatten)]
    pub(crate) explanation: Explanation,
    /// Why the workload doesn't wait for its companion although the rule says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ordering: Option<String>,
    /// The claims that the companion uses, or is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) claims: Vec<ClaimReport>,
    /// The companion that exists; absent where there is none, or it can't be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<State>,
}

/// A companion of a workload that isn't known.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CompanionReport {
    pub(crate) companion: String,
    pub(crate) workload: String,
    pub(crate) state: State,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct State {
    pub(crate) phase: Phase,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Phase {
    Ready,
    Pending,
    NotAdmitted,
    Failed,
    Terminating,
    /// Its workload has ended, and it stays for the rule's `lingerSeconds`.
    Lingering,
    /// There should be one, and there is none.
    Absent,
}

impl Phase {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Pending => "pending",
            Self::NotAdmitted => "not admitted",
            Self::Failed => "failed",
            Self::Terminating => "terminating",
            Self::Lingering => "lingering",
            Self::Absent => "does not exist",
        }
    }
}

impl State {
    fn of(observed: &Observed) -> Self {
        let phase = match observed {
            o if o.terminating => Phase::Terminating,
            o if o.failed => Phase::Failed,
            o if o.gated => Phase::NotAdmitted,
            o if o.ready => Phase::Ready,
            _ => Phase::Pending,
        };
        Self { phase, message: observed.message.clone() }
    }

    /// The state of a companion whose workload isn't among those that are known. `linger`: of its rule.
    fn without_workload(observed: &Observed, linger: Duration) -> Self {
        let lingering = observed.ended.is_some() && !observed.terminating && !linger.is_zero();
        if !lingering {
            return Self::of(observed);
        }
        Self { phase: Phase::Lingering, message: lingers(observed.ended, linger) }
    }
}

impl WorkloadReport {
    pub(crate) fn is_of(&self, pod: &PodReport) -> bool {
        (&self.namespace, &self.name) == (&pod.namespace, &pod.name)
    }

    fn matches(&self) -> bool {
        self.explanation.outcome != CompanionOutcome::NoMatch
    }
}

impl Report {
    /// Names of workloads that a rule gives a companion, of which nothing is said and nothing can be seen.
    pub(crate) fn silent(&self) -> BTreeSet<String> {
        let wanted =
            |w: &&WorkloadReport| w.explanation.outcome == CompanionOutcome::Companion && w.state.is_none();
        let all = self.rules.iter().flat_map(|rule| &rule.workloads).filter(wanted);
        let is_silent =
            |w: &&WorkloadReport| self.pods.iter().any(|pod| w.is_of(pod) && !pod.is_said() && !pod.named);
        all.filter(is_silent).map(|w| format!("{}/{}", w.namespace, w.name)).collect()
    }

    pub(crate) fn new(view: &View, args: &ExplainArgs) -> Result<Self, InputError> {
        let sent = sent(view, args)?;
        let own = view.rules.iter().map(Subject::own);
        let of_platform = view.admin_rules.iter().map(|rule| Subject::admin(rule, view));
        let (rules, others): (Vec<Subject<'_>>, Vec<Subject<'_>>) =
            own.chain(of_platform).partition(|rule| args.rule.as_ref().is_none_or(|name| *name == rule.name));
        if let Some(name) = args.rule.as_ref().filter(|_| rules.is_empty()) {
            let names: BTreeSet<String> = others.into_iter().map(|rule| rule.name).collect();
            let message = match view.source.rules {
                RulesKnown::All => missing("WorkloadRule", name, names),
                RulesKnown::Some => {
                    format!("of the rules that may be read, {}", missing("WorkloadRule", name, names))
                }
                RulesKnown::None => format!("WorkloadRule {name} may not be read; ask without --rule"),
            };
            return Err(InputError::new("--rule", message));
        }
        let is_meant = |namespace: &str, name: &str| {
            let named = |wanted: &PodName| wanted.namespace == namespace && wanted.name == name;
            args.workload.as_ref().is_none_or(named)
                && args.namespace.as_ref().is_none_or(|wanted| wanted == namespace)
        };
        let of_workload =
            |workload: &&Arc<Workload>| is_meant(&workload.resource_namespace, &workload.resource_name);
        let as_sent = |workload: &Arc<Workload>| {
            let mut workload = Workload::clone(workload);
            sent.apply(&mut workload);
            Arc::new(workload)
        };
        let workloads: Vec<Arc<Workload>> = view.workloads.iter().filter(of_workload).map(as_sent).collect();
        let ended = view.ended.iter().filter(|(namespace, name)| is_meant(namespace, name));
        let ended: Vec<String> = ended.map(|(namespace, name)| format!("{namespace}/{name}")).collect();
        if let Some(PodName { namespace, name }) = &args.workload
            && workloads.is_empty()
            && ended.is_empty()
        {
            let name = format!("{namespace}/{name}");
            let full = |w: &Arc<Workload>| format!("{}/{}", w.resource_namespace, w.resource_name);
            return Err(InputError::new(
                "--workload",
                missing("workload", &name, view.workloads.iter().map(full).collect()),
            ));
        }
        let whole = args.workload.is_none() && args.namespace.is_none();
        let rules: Vec<RuleReport> =
            rules.into_iter().map(|rule| rule.report(&workloads, &sent, view, args, whole)).collect();
        let named = args.workload.is_some();
        // Of one rule only its workloads are of interest.
        let is_matched = |pod: &PodReport| {
            let mut all = rules.iter().flat_map(|rule| &rule.workloads);
            args.rule.is_none() || named || all.any(|w| w.is_of(pod) && w.matches())
        };
        let pods =
            view.pod_reports.iter().filter(|pod| is_meant(&pod.namespace, &pod.name) && is_matched(pod));
        let pods = pods.map(|pod| PodReport { named, ..pod.clone() }).collect();
        let tenant = view.tenant.as_ref().map(ToString::to_string);
        let (notes, rules_known) = (view.source.notes.clone(), view.source.rules);
        Ok(Self { tenant, notes, pods, rules_known, rules, ended })
    }

    /// Whether any workload has a companion coming.
    pub(crate) fn any_companion(&self) -> bool {
        let mut all = self.rules.iter().flat_map(|rule| &rule.workloads);
        all.any(|workload| workload.explanation.outcome == CompanionOutcome::Companion)
    }
}

/// The annotations that the tenant's agent sends.
fn sent(view: &View, args: &ExplainArgs) -> Result<Selection, InputError> {
    let mut keys = NamedKeys::default();
    for rule in &view.rules {
        keys.name(rule, view.is_copied(rule));
    }
    for admin in view.admin_rules.iter().filter_map(|rule| rule.compile().ok()) {
        keys.ask(admin.rule.annotation_keys());
    }
    Ok(keys.selection(&args.annotations.allowed()?))
}

/// That there is no such thing, and what there is.
fn missing(what: &str, name: &str, names: BTreeSet<String>) -> String {
    const SHOWN: usize = 10;
    if names.is_empty() {
        return format!("there is no {what} {name}, nor any other");
    }
    let more = names.len().saturating_sub(SHOWN);
    let shown: Vec<String> = names.into_iter().take(SHOWN).collect();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("there is no {what} {name}; there are {}{more}", shown.join(", "))
}

/// A rule of either kind, as far as both have the same.
struct Subject<'a> {
    kind: RuleKind,
    namespace: String,
    name: String,
    policy: &'a str,
    selected: Option<bool>,
    created: Option<&'a Time>,
    is_being_deleted: bool,
    template: &'a Json,
    conditions: &'a [meta::Condition],
    compiled: Result<Rule, Vec<FieldError>>,
}

impl<'a> Subject<'a> {
    fn own(object: &'a WorkloadRule) -> Self {
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

    fn admin(object: &'a AdminWorkloadRule, view: &View) -> Self {
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
    fn report(
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
