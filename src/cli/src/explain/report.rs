//! The report of `outrigger explain`. docs/explain.md describes its structure, which is stable.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outrigger_agent::annotations::Selection;
use outrigger_core::companion::Observed;
use outrigger_core::field::FieldError;
use outrigger_core::workload::Workload;
use serde::Serialize;

use self::rule::Subject;
use super::ExplainArgs;
use super::agent_reports::PodReport;
use super::live::RulesKnown;
use super::view::View;
use crate::companion::PodName;
use crate::condition::Condition;
use crate::explain::allocation::ClaimReport;
use crate::explain::explanation::{CompanionOutcome, Explanation};
use crate::files::InputError;
use crate::linger::lingers;
use crate::rules::RuleKind;
use crate::sent::NamedKeys;

mod rule;

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
