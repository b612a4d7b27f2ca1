//! The request by which the manager creates a companion, made from files.

use std::sync::Arc;

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt;
use outrigger_admission::review::Request;
use outrigger_agent::annotations::{Allowed, Selection};
use outrigger_api::WorkloadRule;
use outrigger_core::companion::{self, Action, Home, Observed, plan};
use outrigger_core::ids::TenantId;
use outrigger_core::index::{CompanionKey, Desired};
use outrigger_core::json::label;
use outrigger_core::keys;
use outrigger_core::node::Node;
use outrigger_core::validate::message;
use outrigger_core::workload::Workload;
use outrigger_manager::companions::observe::{observe, observe_admin, observe_admin_claim, observe_claim};
use outrigger_runtime::pod::Pod;
use serde_json::{Value, json};

use crate::admission::Admission;
use crate::attributes::{ReadAttributes, UnknownAttributes};
use crate::files::InputError;
use crate::sent::NamedKeys;
use crate::state::State;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl PodName {
    /// Reads `NAMESPACE/NAME`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err("use NAMESPACE/NAME".to_owned()),
        }
    }
}

/// A companion that exists: its tenant, where it names that itself, its key, and what is observed of it.
pub(crate) type Found = (Option<TenantId>, CompanionKey, Observed);

/// The companion that a Pod is. `admin`: the namespace of the companions of admin rules; in another one anybody could have written the same.
pub(crate) fn of_pod(pod: &Pod, admin: &str) -> Option<Found> {
    let of_admin = || observe_admin(pod).filter(|_| pod.metadata.namespace.as_deref() == Some(admin));
    found(observe(pod), of_admin)
}

/// The companion that a ResourceClaim is.
pub(crate) fn of_claim(claim: &ResourceClaim, admin: &str) -> Option<Found> {
    let of_admin =
        || observe_admin_claim(claim).filter(|_| claim.metadata.namespace.as_deref() == Some(admin));
    found(observe_claim(claim), of_admin)
}

fn found(
    own: Option<(CompanionKey, Observed)>,
    admin: impl FnOnce() -> Option<(TenantId, CompanionKey, Observed)>,
) -> Option<Found> {
    let own = own.map(|(key, observed)| (None, key, observed));
    own.or_else(|| admin().map(|(tenant, key, observed)| (Some(tenant), key, observed)))
}

/// The creation of an object by a user.
pub(crate) fn creation(user: &str, namespace: &str, object: &Value) -> Result<Request, InputError> {
    let (group, version) = object
        .get("apiVersion")
        .and_then(Value::as_str)
        .map_or(("", "v1"), |version| version.split_once('/').unwrap_or(("", version)));
    let kind = json!({"group": group, "version": version, "kind": object.get("kind")});
    let request = json!({"uid": "offline", "kind": kind, "operation": "CREATE", "namespace": namespace,
        "userInfo": {"username": user}, "object": object});
    serde_json::from_value(request).map_err(|error| InputError::new("request", error))
}

/// Whether a stored Pod is a companion: only the manager may set the label.
pub(crate) fn is_of_rule(pod: &Value) -> bool {
    label(pod, keys::RULE).is_some()
}

/// A stored Pod as if it were created: without what only a running one has. What Outrigger itself wrote under its keys is no user's
/// doing, and left out if the manager isn't the creator.
pub(crate) fn as_new(pod: &Value, by_manager: bool) -> Value {
    let mut pod = pod.clone();
    let remove = |object: &mut Value, names: &[&str]| {
        if let Some(map) = object.as_object_mut() {
            map.retain(|key, _| !names.contains(&key.as_str()));
        }
    };
    remove(&mut pod, &["status"]);
    remove(
        &mut pod["metadata"],
        &[
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
            "managedFields",
        ],
    );
    remove(&mut pod["spec"], &["nodeName", "ephemeralContainers"]);
    if !by_manager {
        for part in ["labels", "annotations"] {
            if let Some(map) = pod["metadata"].get_mut(part).and_then(Value::as_object_mut) {
                map.retain(|key, _| !keys::is_own(key));
            }
        }
    }
    pod
}

/// The name of the first DPU in a host.
fn first_dpu(admission: &Admission, host: Option<&str>) -> Option<String> {
    let labels = &admission.settings().host_labels;
    let nodes = admission.state().of("", "Node").map(|node| Node::of(&node.value));
    nodes.filter(|node| host.is_some() && labels.host(&node.labels) == host).map(|node| node.name).min()
}

/// The workload that a Pod of the state is, as the agent sends it. `Err` in the result: why it is none.
fn workload_of(
    state: &State,
    PodName { namespace, name }: &PodName,
    sent: &Selection,
    attributes: &ReadAttributes,
) -> Result<Result<Workload, String>, InputError> {
    let is_named = |pod: &Pod| pod.namespace().as_ref() == Some(namespace) && pod.name_any() == *name;
    let Some(pod) = state.pods()?.into_iter().find(is_named) else {
        return Err(InputError::new("--workload", format_args!("there is no Pod {namespace}/{name}")));
    };
    let Some(mut workload) = outrigger_agent::pod::workload(pod) else {
        return Ok(Err("the Pod has ended, so it is no workload".to_owned()));
    };
    sent.apply(&mut workload);
    attributes.describe(&mut workload);
    Ok(Ok(workload))
}

/// The creation of the companion of a rule of the state for a Pod of the state, by the manager. It gets the annotations that the agent
/// of the tenant sends, which may send these and whose cluster has the rules of the tenant. Where each DPU of the workload's host has a
/// companion, it is that of the first. Beside it stands what it lacks here. `Err` in the result: why there is none.
pub(crate) fn companion(
    admission: &Admission,
    rule: &str,
    workload: &PodName,
    allowed: &Allowed,
    attributes: &ReadAttributes,
) -> Result<Result<(Request, Vec<String>), String>, InputError> {
    let state = admission.state();
    let rules: Vec<WorkloadRule> = state.all(keys::WORKLOAD_GROUP, "WorkloadRule")?;
    let mut found = Vec::new();
    let named = rules.clone();
    for object in rules.into_iter().filter(|object| object.name_any() == rule) {
        let namespace = object.namespace().unwrap_or_default();
        // A rule in a tenant's own cluster makes no companion there.
        if let Some(tenant) = state.tenant_of(&namespace).and_then(|id| TenantId::new(id).ok()) {
            found.push((object, namespace, tenant));
        }
    }
    let [(object, namespace, tenant)] = found.as_slice() else {
        let message = format!("{} rules named {rule} are in tenants' namespaces, not one", found.len());
        return Err(InputError::new("--rule", message));
    };
    let mut keys = NamedKeys::default();
    let beside = |other: &&WorkloadRule| other.namespace().as_ref() == Some(namespace);
    named.iter().filter(beside).for_each(|other| keys.name(other, true));
    let workload = workload_of(state, workload, &keys.selection(allowed), attributes)?;
    let rule = match object.compile() {
        Ok(rule) => Arc::new(rule),
        Err(errors) => return Ok(Err(format!("the rule is not valid: {}", message(&errors)))),
    };
    let workload = match workload {
        Ok(workload) => Arc::new(workload),
        Err(why) => return Ok(Err(why)),
    };
    let unknown = UnknownAttributes::new(state, attributes);
    if unknown.decide(&rule, &workload) {
        return Ok(Err(unknown.undecided()));
    }
    if !rule.matches(&workload) {
        return Ok(Err("the rule doesn't match the workload; outrigger explain says why".to_owned()));
    }
    let key = CompanionKey::of(rule.name(), &workload.id);
    let host_names = admission.host_names(tenant);
    let key = if rule.policy().is_on_all() {
        match first_dpu(admission, companion::host(&rule, &workload, &host_names)) {
            Some(dpu) => key.on(&dpu),
            None => return Ok(Err("no DPU of the workload's host is among the Nodes".to_owned())),
        }
    } else {
        key
    };
    let home = Home { tenant, namespace, owned: true, host_names: &host_names };
    match plan(&key, &Desired::of_match(&rule, &workload), None, &home) {
        Action::Create(pod) => {
            let request = creation(admission.manager(), namespace, &pod)?;
            Ok(Ok((request, unknown.left_out(&rule, &workload))))
        }
        Action::Refuse(_, message) => Ok(Err(message)),
        _ => Ok(Err(format!("{} waits for the workload's node", rule.policy().as_str()))),
    }
}
