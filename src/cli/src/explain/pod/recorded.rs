//! What a Pod has of each step of the mutation, whenever that was: labels, annotations, tolerations, node affinity, resources
//! and claims by which one can tell it.

use std::collections::BTreeSet;

use outrigger_admission::provenance::{GATE, Origin};
use outrigger_core::ids::RuleName;
use outrigger_core::json::{list, metadata_map, text};
use outrigger_core::machine::{MachineType, guest};
use outrigger_core::mutate::machine::slot_holder;
use outrigger_core::text::truncate;
use outrigger_core::{keys, selector};
use serde::Serialize;
use serde_json::Value;

use super::super::audit::Decider;
use super::roles::{Role, RoleKind, Roles, expression, term};
use crate::admission::Admission;

/// Most characters of a value that is shown.
const MAX_VALUE: usize = 120;

/// What a Pod has of a step.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Recorded {
    pub(super) step: &'static str,
    #[serde(flatten)]
    pub(super) by: Decider,
    pub(super) marks: Vec<Mark>,
}

/// A field, or an entry of one, with its value in brief.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Mark {
    pub(super) path: String,
    pub(super) value: String,
}

/// What a Pod has of each step, in the order of the steps; nothing of a step that has left nothing.
pub(super) fn of(admission: &Admission, namespace: &str, pod: &Value, roles: &Roles) -> Vec<Recorded> {
    let by = |kind: RoleKind| roles.all.iter().find(|role| role.role == kind).map(|role| role.by.clone());
    let by_or_none = |kind| by(kind).unwrap_or_default();
    let found = [
        ("machine", by_or_none(RoleKind::Guest), machine(admission, pod, &roles.all)),
        ("offloading", by_or_none(RoleKind::Offloaded), offloading(admission, namespace, pod)),
        ("companion", by_or_none(RoleKind::Companion), companion(admission, pod, roles)),
        ("isolation", by(RoleKind::TenantPod).unwrap_or_else(|| tenant_named(pod)), isolation(pod)),
        ("claims", by_or_none(RoleKind::Companion), claims(admission, namespace, pod, roles.rule.as_ref())),
        (GATE, Decider::default(), gate(pod)),
    ];
    let found = found.into_iter().filter(|(_, _, marks)| !marks.is_empty());
    found.map(|(step, by, marks)| Recorded { step, by, marks }).collect()
}

fn mark(path: String, value: &str) -> Mark {
    Mark { path, value: truncate(value, MAX_VALUE).into_owned() }
}

/// Expressions of the required node affinity that are wanted.
fn affinity(pod: &Value, is_wanted: impl Fn(&Value) -> bool) -> Vec<Mark> {
    let mut marks = Vec::new();
    for (i, term) in selector::terms(pod).iter().enumerate() {
        for found in list(term, "/matchExpressions").iter().filter(|found| is_wanted(found)) {
            marks.push(mark(format!("{}[{i}]", terms_path()), &expression(found)));
        }
    }
    marks
}

/// The path of the node selector terms.
fn terms_path() -> String {
    selector::POINTER.trim_start_matches('/').replace('/', ".")
}

/// Tolerations that are wanted.
fn tolerations(pod: &Value, is_wanted: impl Fn(&Value) -> bool) -> impl Iterator<Item = Mark> {
    let all = list(pod, "/spec/tolerations").iter().enumerate();
    all.filter(move |(_, toleration)| is_wanted(toleration)).map(|(i, toleration)| {
        let text = |field: &str| text(toleration, field);
        let value = if text("/operator") == "Exists" {
            format!("{}:{}", text("/key"), text("/effect"))
        } else {
            format!("{}={}:{}", text("/key"), text("/value"), text("/effect"))
        };
        mark(format!("spec.tolerations[{i}]"), &value)
    })
}

/// The tenant that the node affinity names, where the namespace doesn't tell.
fn tenant_named(pod: &Value) -> Decider {
    let terms = selector::terms(pod).iter();
    let mut named =
        terms.flat_map(|term| list(term, "/matchExpressions")).filter(|found| is_of_tenant(found));
    let name = named.next().map(|found| text(found, "/values/0"));
    name.map_or_else(Decider::default, |name| Decider::of(&Origin::object("Tenant", name)))
}

fn is_of_tenant(expression: &Value) -> bool {
    text(expression, "/key") == keys::NODE_TENANT
}

fn isolation(pod: &Value) -> Vec<Mark> {
    let mut marks = affinity(pod, is_of_tenant);
    marks.extend(tolerations(pod, |toleration| text(toleration, "/key") == keys::TENANT));
    marks
}

/// The companion's facts, the host of its workload, and the DPU that the companion has to run on, where it names one. The manager writes
/// Outrigger's other keys, and not this step.
fn companion(admission: &Admission, pod: &Value, roles: &Roles) -> Vec<Mark> {
    if roles.rule.is_none() {
        return Vec::new();
    }
    let annotations = pod.pointer("/metadata/annotations").unwrap_or(&Value::Null);
    let listed = annotations.get(keys::INJECTED).and_then(Value::as_str);
    let injected: BTreeSet<String> =
        listed.and_then(|listed| serde_json::from_str(listed).ok()).unwrap_or_default();
    let all = annotations.as_object().into_iter().flatten();
    let own = all.filter(|(key, _)| *key == keys::INJECTED || injected.contains(*key));
    let fact = |(key, value): (&String, &Value)| {
        mark(format!("metadata.annotations[{key}]"), value.as_str().unwrap_or_default())
    };
    let mut marks: Vec<Mark> = own.map(fact).collect();
    let [host, dpu] = [keys::HOST, keys::DPU].map(|key| annotations.get(key).and_then(Value::as_str));
    let labels = &admission.settings().host_labels;
    marks.extend(affinity(pod, |found| {
        let (key, value) = (text(found, "/key"), Some(text(found, "/values/0")));
        value == host && labels.keys().any(|label| label == key) || value == dpu && key == "metadata.name"
    }));
    marks
}

/// The toleration and the nodes of the namespace's NamespaceOffloading.
fn offloading(admission: &Admission, namespace: &str, pod: &Value) -> Vec<Mark> {
    let Some(offloading) = admission.caches().offloading(namespace).filter(|found| found.offloads()) else {
        return Vec::new();
    };
    let mut marks = Vec::new();
    for (i, own) in selector::terms(pod).iter().enumerate() {
        let has = |imposed: &&Value| {
            ["/matchExpressions", "/matchFields"]
                .iter()
                .all(|at| list(imposed, at).iter().all(|wanted| list(own, at).contains(wanted)))
        };
        if let Some(imposed) = offloading.imposed().iter().find(has) {
            marks.push(mark(format!("{}[{i}]", terms_path()), &term(imposed)));
        }
    }
    marks.extend(tolerations(pod, |toleration| {
        let is = |field: &str, value: &str| text(toleration, field) == value;
        is("/key", keys::NOT_ALLOWED) && is("/operator", "Exists") && is("/effect", "NoExecute")
    }));
    marks
}

/// The size and the nodes of a guest's slot.
fn machine(admission: &Admission, pod: &Value, roles: &[Role]) -> Vec<Mark> {
    let is_guest = roles.iter().any(|role| role.role == RoleKind::Guest);
    let Some((group, type_)) = guest(metadata_map(pod, "labels")).filter(|_| is_guest) else {
        return Vec::new();
    };
    let is_theirs = |of: &Value| {
        let key = text(of, "/key");
        key == outrigger_core::machine::type_key(type_) || key == keys::NODE_POOL
    };
    let mut marks = affinity(pod, is_theirs);
    marks.extend(tolerations(pod, is_theirs));
    let cached = admission.caches().machine(group);
    let found = cached.as_ref().and_then(|cached| cached.machine.as_ref().ok()?.type_named(type_));
    marks.extend(found.and_then(|found| sized(pod, found)));
    marks
}

/// The container that has the slot.
fn sized(pod: &Value, type_: &MachineType) -> Option<Mark> {
    let i = slot_holder(pod, type_)?;
    let size: Vec<String> =
        type_.resources().iter().map(|(name, amount)| format!("{name} {amount}")).collect();
    Some(mark(format!("spec.containers[{i}].resources"), &size.join(", ")))
}

/// The claims of the rule.
fn claims(admission: &Admission, namespace: &str, pod: &Value, rule: Option<&RuleName>) -> Vec<Mark> {
    let Some(rule) = rule else { return Vec::new() };
    let cached = admission.caches().rule(namespace, rule);
    let Some(rule) = cached.and_then(|cached| cached.spec.rule) else { return Vec::new() };
    let own = list(pod, "/spec/resourceClaims").iter().enumerate().filter(|(_, claim)| {
        rule.devices().claims().iter().any(|device| device.name == text(claim, "/name"))
    });
    let marks = own.map(|(i, claim)| {
        let of = [text(claim, "/resourceClaimName"), text(claim, "/resourceClaimTemplateName")].concat();
        mark(format!("spec.resourceClaims[{i}]"), &format!("{}, of {of}", text(claim, "/name")))
    });
    marks.collect()
}

/// The readiness gate that the agent adds in a tenant's cluster.
fn gate(pod: &Value) -> Vec<Mark> {
    let gates = list(pod, "/spec/readinessGates").iter().enumerate();
    let own = gates.filter(|(_, gate)| text(gate, "/conditionType") == keys::COMPANIONS_GATE);
    own.map(|(i, _)| mark(format!("spec.readinessGates[{i}]"), keys::COMPANIONS_GATE)).collect()
}
