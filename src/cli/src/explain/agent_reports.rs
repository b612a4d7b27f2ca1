//! What a tenant's own cluster says of the companions of its workloads: conditions of Pods and Nodes, and Events of Pods, which
//! the tenant's agent writes there.
//!
//! They can be read by whoever may read the Pod, without the infrastructure cluster. What a reason means is asked of the model,
//! so that the same word means the same here as in the reference.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Event;
use outrigger_core::json::{list, text};
use outrigger_core::keys;
use outrigger_core::reason::{Cause, Subject};
use outrigger_core::workload::Workload;
use serde::Serialize;
use serde_json::Value;

use crate::condition;
use crate::files::{InputError, Object};
use crate::state::State;

/// Maximum number of Events of a Pod that are shown, the newest.
const MAX_EVENTS: usize = 5;

/// What is said of a workload.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodReport {
    pub(crate) namespace: String,
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    /// Whether it waits for its companions; absent if it has no readiness gate of Outrigger.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gate: Option<Gate>,
    /// The Pod's conditions that the agent owns.
    pub(crate) conditions: Vec<ConditionReport>,
    /// The Node's condition; absent if it has none or can't be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dpu: Option<ConditionReport>,
    pub(crate) events: Vec<EventReport>,
    /// What isn't known because nothing says it.
    pub(crate) unknown: Vec<&'static str>,
    /// It is the one that was asked about, so that it is shown even if nothing is said of it.
    #[serde(skip)]
    pub(crate) named: bool,
}

/// Whether a Pod with the readiness gate waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Gate {
    /// The companions that it waits for are ready, or there are none.
    Open,
    /// It isn't Ready before they are.
    Waiting,
    /// The agent hasn't said anything, so it isn't Ready either.
    Unset,
}

/// A condition, with what its reason means.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConditionReport {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// When the status became this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<String>,
    /// What the reason means.
    pub(crate) meaning: String,
    /// What the tenant can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<&'static str>,
    /// The condition says itself that the agent doesn't know how the companions are.
    pub(crate) stale: bool,
}

/// An Event of the agent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventReport {
    /// When it was last seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<String>,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// The agent writes the condition late or never, and the cluster doesn't say which of these it is.
pub(crate) const NO_CONDITION: &str = "the Pod has no condition outrigger.dev/Companions: nothing has been wrong for as long as the agent waits, or no \
                            rule matches the Pod, or the agent doesn't run, may not write conditions, or hasn't reached a manager that \
                            tells how companions are";

/// Without it the Pod isn't Ready. The agent sets it as soon as it hears of the Pod's companions, or after a while without a manager.
const NO_GATE_CONDITION: &str = "the Pod has the readiness gate outrigger.dev/companions and not its condition: the agent hasn't \
                                 written it yet, doesn't run, or may not write conditions";

/// The condition of Nodes is off unless the tenant switches it on.
const NO_DPU_CONDITION: &str = "the Node has no condition outrigger.dev/DPUReady: the agent isn't configured to write it, or the Node \
                                is no host of the Tenant";

impl ConditionReport {
    fn new(condition: &Value) -> Self {
        let text = |field| printable(text(condition, field));
        let (status, reason, message) = (text("/status"), text("/reason"), text("/message"));
        let (meaning, cause) = words(&reason, &message);
        let since = Some(text("/lastTransitionTime")).filter(|time| !time.is_empty());
        let stale = status == "Unknown" || cause.is_some_and(|cause| cause.subject() == Subject::Link);
        let remedy = cause.filter(|_| status != "True").map(Cause::tenant_remedy);
        Self { kind: text("/type"), status, reason, message, since, meaning, remedy, stale }
    }

    pub(crate) fn is_true(&self) -> bool {
        self.status == "True"
    }
}

/// The text without characters that would change a terminal or begin a line: others than the agent may write a Pod's status.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Returns what a reason means, and its cause. A word that the model doesn't have means what the message says: an agent of a later
/// version may have written it, and nothing is wrong with some words.
fn words(reason: &str, message: &str) -> (String, Option<Cause>) {
    match reason.parse::<Cause>() {
        Ok(cause) => (cause.meaning().to_owned(), Some(cause)),
        Err(_) => (message.to_owned(), None),
    }
}

impl PodReport {
    fn new(pod: &Object, workload: &Workload) -> Self {
        let report_of = |kind: &str| condition::named(&pod.value, kind).map(ConditionReport::new);
        let (state, gate) = (report_of(keys::COMPANIONS_CONDITION), report_of(keys::COMPANIONS_GATE));
        let mut gates = list(&pod.value, "/spec/readinessGates").iter();
        let gated = gates.any(|gate| text(gate, "/conditionType") == keys::COMPANIONS_GATE);
        let mut unknown = Vec::new();
        if state.is_none() && gate.as_ref().is_none_or(ConditionReport::is_true) {
            unknown.push(NO_CONDITION);
        }
        // No agent has seen a Pod that only stands in a file.
        let exists = !text(&pod.value, "/metadata/creationTimestamp").is_empty();
        let gated = gated && (exists || gate.is_some());
        if gated && gate.is_none() {
            unknown.push(NO_GATE_CONDITION);
        }
        let waits = |gate: Option<&ConditionReport>| match gate {
            None => Gate::Unset,
            Some(gate) if gate.is_true() => Gate::Open,
            Some(_) => Gate::Waiting,
        };
        Self {
            namespace: workload.resource_namespace.clone(),
            name: workload.resource_name.clone(),
            node: workload.node_name.clone(),
            gate: gated.then(|| waits(gate.as_ref())),
            conditions: state.into_iter().chain(gate).collect(),
            dpu: None,
            events: Vec::new(),
            unknown,
            named: false,
        }
    }

    /// Whether the cluster says anything that is worth showing.
    pub(crate) fn is_said(&self) -> bool {
        !self.conditions.is_empty()
            || !self.events.is_empty()
            || self.gate == Some(Gate::Unset)
            || self.dpu.as_ref().is_some_and(|dpu| !dpu.is_true())
    }

    /// Whether all that is said is that all is well.
    pub(crate) fn is_well(&self) -> bool {
        !self.conditions.is_empty() && self.conditions.iter().all(ConditionReport::is_true)
    }
}

/// Returns what is said of each workload. `hosts`: the Nodes of the tenant's cluster, `None` if they can't be read. Of files, those
/// of which nothing is said are left out: what is in files was often never in a cluster.
pub(crate) fn read(
    state: &State,
    workloads: &[Arc<Workload>],
    hosts: Option<&[Object]>,
    live: bool,
) -> Result<Vec<PodReport>, InputError> {
    let pods: BTreeMap<(&str, &str), &Object> =
        state.of("", "Pod").map(|pod| ((pod.namespace_or_default(), pod.name.as_str()), pod)).collect();
    let nodes: Option<BTreeMap<&str, &Object>> =
        hosts.map(|hosts| hosts.iter().map(|node| (node.name.as_str(), node)).collect());
    let mut events = events(state)?;
    let mut reports = Vec::new();
    for workload in workloads {
        let (namespace, name) = (workload.resource_namespace.as_str(), workload.resource_name.as_str());
        let Some(pod) = pods.get(&(namespace, name)) else { continue };
        let mut report = PodReport::new(pod, workload);
        let about = events.remove(&(namespace.to_owned(), name.to_owned())).unwrap_or_default();
        // Those of a former Pod of this name say nothing of this one.
        let about = about.into_iter().filter(|(uid, _)| uid.is_empty() || uid == workload.id.as_str());
        report.events = newest(about.map(|(_, event)| event).collect());
        let named = workload.node_name.as_deref();
        if let Some(node) = nodes.as_ref().and_then(|nodes| nodes.get(named?)) {
            report.dpu = condition::named(&node.value, keys::DPU_READY).map(ConditionReport::new);
            if live && report.dpu.is_none() && !report.is_well() {
                report.unknown.push(NO_DPU_CONDITION);
            }
        }
        if live || report.is_said() {
            reports.push(report);
        }
    }
    Ok(reports)
}

/// Events of an object of this namespace and name, each with the object's uid.
type Events = BTreeMap<(String, String), Vec<(String, EventReport)>>;

/// The Events of Pods that agents wrote.
fn events(state: &State) -> Result<Events, InputError> {
    let mut found = Events::new();
    for event in state.all::<Event>("", "Event")? {
        let about = event.involved_object;
        if about.kind.as_deref() != Some("Pod") || event.reporting_component.as_deref() != Some(keys::AGENT) {
            continue;
        }
        let repeated = event.series.and_then(|series| series.last_observed_time);
        let at = repeated.or(event.event_time).map(|time| time.0);
        let at = at.or_else(|| event.last_timestamp.map(|time| time.0)).map(|time| time.to_string());
        let [reason, message] =
            [event.reason, event.message].map(|text| printable(&text.unwrap_or_default()));
        let key = (about.namespace.unwrap_or_default(), about.name.unwrap_or_default());
        let report = EventReport { at, reason, message };
        found.entry(key).or_default().push((about.uid.unwrap_or_default(), report));
    }
    Ok(found)
}

/// The newest of some Events, the oldest of them first.
fn newest(mut events: Vec<EventReport>) -> Vec<EventReport> {
    events.sort();
    events.split_off(events.len().saturating_sub(MAX_EVENTS))
}
