//! Readiness gates and claims of a tenant's Pods ([`outrigger_core::gate`]), which the agent adds in the tenant's cluster.

use json_patch::Patch;
use outrigger_api::pod::Pod;
use outrigger_core::fault;
use outrigger_core::gate::{self, Hold};
use outrigger_core::ids::WorkloadId;
use outrigger_core::keys;
use outrigger_core::mutate::is_mirror;
use outrigger_core::rule::Ordering;
use outrigger_core::texts::Texts;
use outrigger_core::workload::Workload;
use serde::Deserialize;

use crate::caches::{Claims, GateRules};
use crate::decision::{CONTRADICTION, Decision};
use crate::handler::{Admission, CacheStale, Context, Refusal};
use crate::provenance::{self, Origin};
use crate::review::Request;

/// What is asked for all Pods of a namespace by its labels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asks {
    /// All get what rules of the platform may need.
    pub(crate) all: bool,
    /// No Pod is created that should wait before it starts and can't.
    pub(crate) required: bool,
}

/// Decides about a new Pod: it gets the gate, and the claim, if that is asked for all Pods of its namespace, or a rule with such an
/// ordering matches it, or could match it later.
pub(crate) fn order(cx: Context<'_>, request: &Request, asks: Asks) -> Result<Admission, Refusal> {
    if request.operation != "CREATE" || !request.sub_resource.is_empty() || is_mirror(&request.object) {
        return Ok(Decision::allow().into());
    }
    let gates = cx.caches.gates();
    let gates =
        gates.ok_or_else(|| CacheStale("the rules of this cluster have not been listed yet".to_owned()))?;
    if asks.required && gates.namespaces_unknown {
        let why = "it is not known yet whether the Pods of this namespace have companions";
        return Err(CacheStale(why.to_owned()).into());
    }
    if !gates.covers(&request.namespace) {
        return Ok(Decision::allow().into());
    }
    let Reasons { gate, claim } = Reasons::of(&gates, request, asks);
    let claim = match (claim, gates.claims) {
        (Some((_, reason)), Claims::Missing(why)) if asks.required => {
            return Ok(cannot_wait(why).decided_by(|| reason).into());
        }
        (_, Claims::Missing(_)) => None,
        (claim, Claims::Added) => claim,
    };
    let (mut patch, mut audit) = (Patch(Vec::new()), Vec::new());
    let mut add = |more: Patch, key, reason| {
        if !more.0.is_empty() {
            audit.push((key, reason));
            patch.0.extend(more.0);
        }
    };
    if let Some(reason) = gate {
        add(gate::patch(&request.object), provenance::GATE, reason);
    }
    if let Some((hold, reason)) = claim {
        match gate::claim_patch(&request.object, hold) {
            Ok(more) => add(more, provenance::CLAIM, reason),
            Err(error) => {
                let denied = Decision::deny_fields(CONTRADICTION, &[error]).decided_by(|| reason);
                return Ok(denied.into());
            }
        }
    }
    Ok(Decision::Allow { patch, warnings: Vec::new(), audit }.into())
}

/// Refuses a Pod of a namespace that requires what this cluster lacks.
fn cannot_wait(why: &str) -> Decision {
    let (label, value) = (keys::COMPANIONS_FIRST_NAMESPACE, keys::REQUIRED);
    Decision::deny(
        403,
        format!(
            "metadata.namespace: its label {label} is {value:?}, so this Pod has to wait for its companions before it starts, and \
             {why}; enable the agent's setting companionsFirst, or remove the label"
        ),
    )
}

/// Why a Pod gets the gate and the claim, for audit; `None` if it doesn't.
#[derive(Debug)]
struct Reasons {
    gate: Option<String>,
    /// How long it waits by the claim, too.
    claim: Option<(Hold, String)>,
}

impl Reasons {
    fn of(gates: &GateRules, request: &Request, asks: Asks) -> Self {
        let namespace = || Origin::object("Namespace", &request.namespace).to_string();
        let workload = if gates.rules.is_empty() { None } else { workload(request) };
        let rule = |is: fn(Ordering) -> bool| {
            let workload = workload.as_ref()?;
            let unknown = gate::unknown(workload);
            let mut rules = gates.rules.iter().filter(|rule| is(rule.ordering()));
            let rule = rules.find(|rule| {
                let could = rule.could_match(workload, &unknown);
                could && (rule.matches(workload) || !fault("unknown-fields-fail-at-the-gate"))
            })?;
            let origin = Origin::object("WorkloadRule", rule.name().as_str());
            Some(origin.of_generation(rule.generation()).to_string())
        };
        let first = || if asks.all && asks.required { Some(namespace()) } else { rule(Ordering::holds) };
        let binding = if gates.binding { rule(Ordering::binds) } else { None };
        Self {
            gate: if asks.all { Some(namespace()) } else { rule(Ordering::gates) },
            claim: match binding {
                Some(reason) => Some((Hold::Binding, reason)),
                None => first().map(|reason| (Hold::Start, reason)),
            },
        }
    }
}

/// The workload that the Pod becomes, apart from [`gate::unknown`] fields. `None` for a Pod that the API server refuses anyway.
fn workload(request: &Request) -> Option<Workload> {
    let Pod { metadata, spec, .. } = Pod::deserialize(&request.object).ok()?;
    let id = WorkloadId::new(&request.uid).ok()?;
    Some(Workload {
        node_name: spec.and_then(|spec| spec.node_name).filter(|name| !name.is_empty()),
        labels: metadata.labels.as_ref().map(Texts::from).unwrap_or_default(),
        annotations: metadata.annotations.as_ref().map(Texts::from).unwrap_or_default(),
        ..Workload::new(id, &request.namespace, metadata.name.as_deref().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests;
