//! Explains whether a rule gives a workload a companion and where that companion may run, by the functions that decide it.
//!
//! The types serialise to the documented output of `outrigger explain -o json`.

use std::collections::BTreeMap;
use std::sync::Arc;

use outrigger_agent::annotations::Selection;
use outrigger_core::companion::{self, Action, Home};
use outrigger_core::field::FieldError;
use outrigger_core::host::HostLabels;
use outrigger_core::ids::TenantId;
use outrigger_core::index::{CompanionKey, Desired};
use outrigger_core::keys;
use outrigger_core::mutate::{self, PodContext};
use outrigger_core::node::{Node, obstacles};
use outrigger_core::path::Path;
use outrigger_core::rule::{ExprOutcome, Rule, Verdict, shortened};
use outrigger_core::selector;
use outrigger_core::syntax::unlabelable;
use outrigger_core::template::Kind;
use outrigger_core::tenant::hosts::HostNames;
use outrigger_core::workload::Workload;
use serde::Serialize;
use serde_json::{Value, json};

use crate::attributes::{UnknownAttributes, is_attribute};
use crate::sent::is_unknown;

/// What is known besides the rule and the workload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExplanationContext<'a> {
    /// The tenant of rule and workload; `None` where it isn't known. Then placement leaves the tenants' isolation out.
    pub(crate) tenant: Option<&'a TenantId>,
    pub(crate) namespace: &'a str,
    /// Node labels that name the host of a DPU.
    pub(crate) host_labels: &'a HostLabels,
    /// Names that the tenant's hosts have as Nodes of its cluster.
    pub(crate) host_names: &'a HostNames,
    /// The Nodes of the infrastructure cluster; `None` where they can't be seen, as from a tenant's own cluster.
    pub(crate) nodes: Option<&'a [Node]>,
    /// The annotations that the tenant's agent sends: of others nothing is known to the manager.
    pub(crate) sent: &'a Selection,
    /// Of which workloads attributes of devices aren't known.
    pub(crate) unknown_attributes: &'a UnknownAttributes,
}

impl ExplanationContext<'_> {
    /// Whether it isn't known what a workload has at a path.
    fn lacks(&self, workload: &Workload, path: &Path) -> bool {
        is_unknown(self.sent, path) || self.unknown_attributes.include(workload, path)
    }

    /// Why it isn't known.
    fn why(&self, path: &Path) -> &str {
        if is_attribute(path) { self.unknown_attributes.why() } else { "the tenant's agent doesn't send it" }
    }
}

/// Whether a workload gets a companion by a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum CompanionOutcome {
    Companion,
    /// None, for the workload doesn't match.
    NoMatch,
    /// What exists stays, and nothing is made: an annotation decides that the tenant's agent doesn't send. Or it isn't known here, because
    /// an attribute of devices decides that isn't known here.
    Undecided,
    /// None yet: it would have to be on the workload's node, and the workload has none, or on each DPU there, and none is known.
    Waiting,
    /// None: it can't be made.
    Refused,
}

/// Why, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Explanation {
    pub(crate) outcome: CompanionOutcome,
    /// The reason of the outcome, where the terms don't show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Name of the companion, the one there is or the one there would be; absent where its DPU isn't known and belongs to its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) companion: String,
    /// The rule's ORed terms.
    pub(crate) terms: Vec<Term>,
    /// Where the companion may run; absent where there is none, or the Nodes aren't known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) placement: Option<Placement>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Term {
    pub(crate) passes: bool,
    pub(crate) expressions: Vec<Finding>,
}

/// One expression, and what it found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) key: String,
    /// The operator, as the API spells it.
    pub(crate) operator: &'static str,
    /// What the field is compared with, sorted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) values: Vec<String>,
    /// What the workload has there, the beginning of it; absent where it has nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) found: Option<String>,
    pub(crate) passes: bool,
    /// The tenant's agent doesn't send it, or it can't be read here, so it isn't known whether it passes; absent where it is.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unknown: bool,
    /// What would have to change; absent where it passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) change: Option<String>,
}

/// Where a companion may run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Placement {
    /// The candidate Nodes: those of the workload's host for `SameNode`, its own DPU for `SameNodeAll`, else the tenant's.
    pub(crate) nodes: Vec<NodePlacement>,
    /// Why none of them is suitable; absent where one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct NodePlacement {
    pub(crate) node: String,
    /// What keeps the companion from running there; empty where it may run.
    pub(crate) obstacles: Vec<String>,
}

const UNDECIDED: &str = "an annotation decides that the tenant's agent doesn't send: a companion that exists stays, and none is made; if the \
                         agent sends it, repeat its --allow-annotation or --send-annotation here";
const ASSUMED: &str = "an annotation decides that the tenant's agent doesn't send, which counts in favour of companions of the platform; if \
                       the agent sends it, repeat its --allow-annotation or --send-annotation here";

/// `key`: of one of the companions that the rule has for the workload if it matches; without a DPU where each DPU of the workload's host has
/// one and none of these is known.
pub(crate) fn explain(
    rule: &Arc<Rule>,
    workload: &Arc<Workload>,
    key: &CompanionKey,
    around: &ExplanationContext<'_>,
) -> Explanation {
    let is_known = !rule.policy().is_on_all() || key.dpu().is_some();
    let unknown = |path: &Path| around.lacks(workload, path);
    let evaluated = if rule.is_about(workload) { rule.evaluate(workload, unknown) } else { Vec::new() };
    let (outcome, reason, placement) = decided(rule, workload, key, is_known, around);
    Explanation {
        outcome,
        reason,
        companion: if is_known { companion::own_name(key) } else { String::new() },
        terms: evaluated.iter().map(|term| findings(term, around)).collect(),
        placement,
    }
}

/// The outcome, its reason, and where the companion may run. `is_known`: it is known which companion it is.
fn decided(
    rule: &Arc<Rule>,
    workload: &Arc<Workload>,
    key: &CompanionKey,
    is_known: bool,
    around: &ExplanationContext<'_>,
) -> (CompanionOutcome, Option<String>, Option<Placement>) {
    if !rule.is_about(workload) {
        let (wanted, is) = (rule.resource_kind(), &workload.resource_type);
        let reason = format!("the rule is about {wanted}, the workload is {is}");
        return (CompanionOutcome::NoMatch, Some(reason), None);
    }
    let reason = match rule.verdict(workload, |path| around.lacks(workload, path)) {
        Verdict::No => return (CompanionOutcome::NoMatch, None, None),
        Verdict::Unknown if around.unknown_attributes.are_compared(rule, workload) => {
            return (CompanionOutcome::Undecided, Some(around.unknown_attributes.undecided()), None);
        }
        Verdict::Unknown if !rule.name().is_admin() => {
            return (CompanionOutcome::Undecided, Some(UNDECIDED.to_owned()), None);
        }
        Verdict::Unknown => Some(ASSUMED.to_owned()),
        Verdict::Yes => None,
    };
    let desired = Desired::of_match(rule, workload);
    if !matches!(desired, Desired::Wanted { .. }) {
        let policy = rule.policy().as_str();
        let reason = format!("{policy} waits for the workload's node: the workload isn't bound to one yet");
        return (CompanionOutcome::Waiting, Some(reason), None);
    }
    // A node in no host is refused below.
    if !is_known && companion::host(rule, workload, around.host_names).is_some() {
        return (CompanionOutcome::Waiting, Some(no_dpu(rule, workload, around)), None);
    }
    match admitted(key, &desired, rule, workload, around) {
        Ok(pod) => {
            // A claim has no place of its own: the Pods that use it have.
            let nodes = around.nodes.filter(|_| rule.kind() == Kind::Pod);
            let placement = nodes.map(|nodes| place(&pod, rule, key, workload, nodes, around));
            (CompanionOutcome::Companion, reason, placement)
        }
        Err(message) => (CompanionOutcome::Refused, Some(message), None),
    }
}

/// Why it isn't known on which DPUs of its host a workload has companions.
fn no_dpu(rule: &Rule, workload: &Workload, around: &ExplanationContext<'_>) -> String {
    let policy = rule.policy().as_str();
    let host = companion::host(rule, workload, around.host_names).unwrap_or_default();
    match around.nodes {
        None => format!(
            "{policy}: each DPU of the workload's host has a companion, and Nodes can't be seen from here"
        ),
        Some(_) => format!(
            "{policy} waits for a DPU: none of host {} is the tenant's",
            around.host_names.described(host)
        ),
    }
}

/// The companion as admission leaves it.
fn admitted(
    key: &CompanionKey,
    desired: &Desired<'_>,
    rule: &Rule,
    workload: &Workload,
    around: &ExplanationContext<'_>,
) -> Result<Value, String> {
    let home =
        |tenant| Home { tenant, namespace: around.namespace, owned: true, host_names: around.host_names };
    if rule.kind() == Kind::Claim {
        // No webhook changes it.
        let Some(tenant) = around.tenant else { return Ok(Value::Null) };
        return match companion::plan(key, desired, None, &home(tenant)) {
            Action::Refuse(_, message) => Err(message),
            _ => Ok(Value::Null),
        };
    }
    let facts = [(keys::HOST, workload.node_name.as_deref()), (keys::DPU, key.dpu())];
    let annotations: BTreeMap<&str, &str> =
        facts.into_iter().filter_map(|(key, fact)| Some((key, fact?))).collect();
    let mut pod = match around.tenant.map(|tenant| companion::plan(key, desired, None, &home(tenant))) {
        Some(Action::Create(pod)) => pod,
        Some(Action::Refuse(_, message)) => return Err(message),
        // The fields of a companion that decide its placement don't depend on the tenant.
        _ => json!({
            "metadata": {"annotations": annotations},
            "spec": rule.template().get("spec"),
        }),
    };
    let facts = PodContext {
        tenant: around.tenant,
        rule: Some(rule),
        offloading: None,
        machine: None,
        host_labels: around.host_labels,
    };
    mutate::mutate(&mut pod, &facts).map_err(|error: FieldError| error.to_string())?;
    Ok(pod)
}

fn findings(term: &[ExprOutcome<'_>], around: &ExplanationContext<'_>) -> Term {
    let expressions: Vec<Finding> = term.iter().map(|outcome| finding(outcome, around)).collect();
    Term { passes: expressions.iter().all(|e| e.passes), expressions }
}

fn finding(outcome: &ExprOutcome<'_>, around: &ExplanationContext<'_>) -> Finding {
    let (operator, values) = outcome.expression.test.parts();
    Finding {
        key: outcome.expression.path.to_string(),
        operator,
        values,
        found: outcome.actual.as_deref().map(|found| shortened(found).into_owned()),
        passes: outcome.passes == Verdict::Yes,
        unknown: outcome.passes == Verdict::Unknown,
        change: match outcome.passes {
            Verdict::Yes => None,
            Verdict::No => Some(change(outcome)),
            Verdict::Unknown => {
                let path = &outcome.expression.path;
                Some(format!("{path} is unknown: {}", around.why(path)))
            }
        },
    }
}

/// What a workload has, what the rule wants instead.
fn change(outcome: &ExprOutcome<'_>) -> String {
    let path = &outcome.expression.path;
    let is = match outcome.actual.as_deref() {
        Some(found) => format!("{path} is {:?}", shortened(found)),
        None => format!("{path} is absent"),
    };
    format!("{is}, the rule wants {}", outcome.expression.test.wants())
}

/// Where the companion may run: `pod` is the companion as admission leaves it.
pub(crate) fn place(
    pod: &Value,
    rule: &Rule,
    key: &CompanionKey,
    workload: &Workload,
    nodes: &[Node],
    around: &ExplanationContext<'_>,
) -> Placement {
    let host = companion::host(rule, workload, around.host_names);
    let owner = |node: &Node| node.labels.get(keys::NODE_TENANT).cloned();
    let own =
        |node: &Node| around.tenant.is_none_or(|tenant| owner(node).as_deref() == Some(tenant.as_str()));
    let of_host = |node: &&Node| {
        around.host_labels.host(&node.labels) == host && key.dpu().is_none_or(|dpu| dpu == node.name)
    };
    let candidates: Vec<&Node> = match host {
        Some(_) => nodes.iter().filter(of_host).collect(),
        None => nodes.iter().filter(|node| own(node)).collect(),
    };
    let places: Vec<NodePlacement> = candidates
        .iter()
        .map(|node| NodePlacement { node: node.name.clone(), obstacles: obstacles(pod, node) })
        .collect();
    if places.iter().any(|place| place.obstacles.is_empty()) {
        return Placement { nodes: places, problem: None };
    }
    let tenant = around.tenant.map_or_else(|| "nobody".to_owned(), ToString::to_string);
    let problem = match host {
        Some(host) if candidates.is_empty() => {
            let why = unlabelable(host)
                .unwrap_or_else(|| format!("no Node has the label {}", around.host_labels.naming(host)));
            format!("no DPU for host {}: {why}", around.host_names.described(host))
        }
        Some(host) if !candidates.iter().any(|node| own(node)) => {
            let whose: Vec<String> = candidates
                .iter()
                .map(|node| match owner(node) {
                    Some(owner) => format!("{} belongs to tenant {owner}", node.name),
                    None => format!("{} belongs to nobody", node.name),
                })
                .collect();
            format!("no DPU of host {host} is tenant {tenant}'s: {}", whose.join(", "))
        }
        None if candidates.is_empty() => format!("tenant {tenant} has no DPU"),
        _ => match (selector::contradiction(pod), host) {
            (Some(both), _) => format!("no Node at all can match: {both}"),
            (None, Some(host)) => format!("no DPU of host {host} will do"),
            (None, None) => format!("no DPU of tenant {tenant} will do"),
        },
    };
    Placement { nodes: places, problem: Some(problem) }
}

#[cfg(test)]
mod tests;
