//! The report of `outrigger claims`. docs/claims.md describes its structure, which is stable.

use outrigger_core::map::HashMap;
use std::collections::{BTreeMap, BTreeSet};

use outrigger_core::json::{self, list, text};
use outrigger_core::keys;
use serde::Serialize;
use serde_json::Value;

use super::device::{Configuration, Device, is_pod};
use crate::explain::allocation::{Devices, User};
use crate::files::{InputError, Object};
use crate::state::{State, namespace_of};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) notes: Vec<String>,
    pub(super) claims: Vec<Claim>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Claim {
    pub(crate) tenant: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) state: Phase,
    /// Why it is pending, as far as that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// The Node that the devices are on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    pub(crate) devices: Vec<Device>,
    /// Names of the Pods that it is reserved for, or that would use it.
    pub(crate) pods: Vec<String>,
    /// Names of Pods that it is reserved for and that don't exist any longer. A Pod of that name is another one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) former_pods: Vec<String>,
    /// All whom it is reserved for, Pods included, as the API has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) consumers: Vec<Value>,
    /// When its devices were allocated, where the scheduler has written that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allocated_at: Option<String>,
    /// The configuration that drivers get with its devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) config: Vec<Configuration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rule: Option<String>,
    /// The workload as its label value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) workload: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Phase {
    /// It has no devices.
    Pending,
    /// It has devices, and is reserved for nobody.
    Allocated,
    /// Its devices are kept for Pods that don't run yet, or for a group of Pods.
    Reserved,
    /// A Pod runs with its devices.
    InUse,
    Deleting,
}

impl Phase {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Allocated => "allocated",
            Self::Reserved => "reserved",
            Self::InUse => "in use",
            Self::Deleting => "being deleted",
        }
    }
}

/// The namespaces that are meant, with their tenants.
pub(super) fn namespaces(
    state: &State,
    tenant: Option<&str>,
    namespace: Option<&str>,
) -> Result<BTreeMap<String, String>, InputError> {
    let mut all = BTreeMap::new();
    let mut known = BTreeSet::new();
    for object in state.of("", "Namespace").chain(state.of(keys::GROUP, "Tenant")) {
        let name = if object.kind == "Tenant" {
            known.insert(object.name.clone());
            namespace_of(object)
        } else {
            object.name.clone()
        };
        if let Some(owner) = state.tenant_of(&name) {
            known.insert(owner.to_owned());
            all.insert(name, owner.to_owned());
        }
    }
    let list = |names: Vec<&String>| match names.as_slice() {
        [] => "nor any other".to_owned(),
        names => format!("there are {}", names.iter().map(|n| n.as_str()).collect::<Vec<_>>().join(", ")),
    };
    if let Some(id) = tenant.filter(|id| !known.contains(*id)) {
        let message = format!("there is no tenant {id}; {}", list(known.iter().take(20).collect()));
        return Err(InputError::new("--tenant", message));
    }
    if let Some(name) = namespace.filter(|name| !all.contains_key(*name)) {
        let message = format!("{name} is no tenant's namespace; {}", list(all.keys().take(20).collect()));
        return Err(InputError::new("--namespace", message));
    }
    all.retain(|name, owner| {
        tenant.is_none_or(|id| id == owner) && namespace.is_none_or(|wanted| wanted == name)
    });
    Ok(all)
}

impl Report {
    pub(super) fn new(
        state: &State,
        tenant: Option<&str>,
        namespace: Option<&str>,
        notes: Vec<String>,
    ) -> Result<Self, InputError> {
        let meant = namespaces(state, tenant, namespace)?;
        let classes = classes(state);
        let mut pods: HashMap<&str, Vec<&Object>> = HashMap::default();
        for pod in state.of("", "Pod") {
            pods.entry(&pod.namespace).or_default().push(pod);
        }
        let mut claims: Vec<Claim> = state
            .of(keys::DEVICE_GROUP, "ResourceClaim")
            .filter_map(|object| {
                let tenant = meant.get(&object.namespace)?;
                let around = pods.get(object.namespace.as_str()).map_or(&[][..], Vec::as_slice);
                Some(claim(object, tenant, Some(around), &classes))
            })
            .collect();
        claims.sort_by(|a, b| (&a.tenant, &a.namespace, &a.name).cmp(&(&b.tenant, &b.namespace, &b.name)));
        Ok(Self { notes, claims })
    }
}

/// The claim of a namespace with this name; `None` where there is none. Whose the namespace is doesn't matter. `sees_pods`: the Pods of the
/// namespace could be read.
pub(crate) fn one(state: &State, namespace: &str, name: &str, sees_pods: bool) -> Option<Claim> {
    let object = state
        .of(keys::DEVICE_GROUP, "ResourceClaim")
        .find(|claim| claim.namespace_or_default() == namespace && claim.name == name)?;
    let pods: Vec<&Object> =
        state.of("", "Pod").filter(|pod| pod.namespace_or_default() == namespace).collect();
    let tenant = state.tenant_of(namespace).unwrap_or_default();
    Some(claim(object, tenant, sees_pods.then_some(&pods), &classes(state)))
}

/// The DeviceClasses; without any it isn't known which there are.
fn classes(state: &State) -> Devices {
    let all = || state.of(keys::DEVICE_GROUP, "DeviceClass").map(|class| &class.value);
    let none = None::<std::iter::Empty<&Value>>;
    Devices::read(none.clone(), all().next().map(|_| all()), none, std::iter::empty())
}

/// One claim. `pods`: those of its namespace; `None` where they may not be read.
fn claim(object: &Object, tenant: &str, pods: Option<&[&Object]>, devices: &Devices) -> Claim {
    let value = &object.value;
    let is_known = pods.is_some();
    let pods = pods.unwrap_or_default();
    let owner = owner(value);
    let using: Vec<&&Object> = pods.iter().filter(|pod| uses(pod, object, owner)).collect();
    let consumers = list(value, "/status/reservedFor");
    let mut reserved = Vec::new();
    let mut former = Vec::new();
    for consumer in consumers.iter().filter(|consumer| is_pod(consumer)) {
        let name = text(consumer, "/name");
        // Where Pods aren't known, those that it is reserved for are taken to exist.
        match pods.iter().find(|pod| pod.name == name).map(|pod| text(&pod.value, "/metadata/uid")) {
            Some(other) if !other.is_empty() && other != text(consumer, "/uid") => {
                former.push(name.to_owned());
            }
            _ => reserved.push(name),
        }
    }
    let names: BTreeSet<&str> =
        reserved.iter().copied().chain(using.iter().map(|pod| pod.name.as_str())).chain(owner).collect();
    // A claim that several Pods share belongs to none of them.
    let made_for = pods.iter().find(|pod| owner == Some(&pod.name));
    let label = |key: &str| {
        let of = |object: &Value| json::label(object, key).map(str::to_owned);
        of(value).or_else(|| made_for.and_then(|pod| of(&pod.value)))
    };
    let runs = |pod: &Object| text(&pod.value, "/status/phase") == "Running";
    // The Pods of another consumer, such as a PodGroup, name the claim.
    let of_others = consumers.iter().any(|consumer| !is_pod(consumer));
    let is_used = pods.iter().any(|pod| reserved.contains(&pod.name.as_str()) && runs(pod))
        || of_others && using.iter().any(|pod| runs(pod));
    let state = phase(value, !consumers.is_empty(), is_used);
    let user = match using.first() {
        Some(pod) => User::Pod(&pod.value),
        None if is_known => User::None,
        None => User::Unknown,
    };
    let reason = || devices.waits(value.get("spec").unwrap_or(&Value::Null), None, user).into_iter().next();
    let results = list(value, "/status/allocation/devices/results");
    let statuses = list(value, "/status/devices");
    Claim {
        tenant: tenant.to_owned(),
        namespace: object.namespace.clone(),
        name: object.name.clone(),
        state,
        reason: if state == Phase::Pending { reason() } else { None },
        node: node(value, &using),
        devices: results.iter().map(|result| Device::of(result, statuses)).collect(),
        rule: label(keys::RULE),
        workload: label(keys::WORKLOAD),
        pods: names.into_iter().map(str::to_owned).collect(),
        former_pods: former,
        consumers: consumers.to_vec(),
        allocated_at: Some(text(value, "/status/allocation/allocationTimestamp"))
            .filter(|at| !at.is_empty())
            .map(str::to_owned),
        config: list(value, "/status/allocation/devices/config").iter().map(Configuration::of).collect(),
    }
}

fn phase(claim: &Value, is_reserved: bool, is_used: bool) -> Phase {
    let allocated = claim.pointer("/status/allocation").is_some_and(Value::is_object);
    if !text(claim, "/metadata/deletionTimestamp").is_empty() {
        Phase::Deleting
    } else if !allocated {
        Phase::Pending
    } else if !is_reserved {
        Phase::Allocated
    } else if is_used {
        Phase::InUse
    } else {
        Phase::Reserved
    }
}

/// The Pod that Kubernetes made the claim for.
fn owner(claim: &Value) -> Option<&str> {
    let mut owners = list(claim, "/metadata/ownerReferences").iter();
    let of_pod = owners.find(|owner| text(owner, "/kind") == "Pod" && owner["controller"] == true);
    of_pod.map(|owner| text(owner, "/name"))
}

/// Whether a Pod uses a claim: it names it, or the claim was made for it or for its group.
fn uses(pod: &Object, claim: &Object, owner: Option<&str>) -> bool {
    let named =
        ["/spec/resourceClaims", "/status/resourceClaimStatuses"].map(|entries| list(&pod.value, entries));
    owner == Some(&pod.name)
        || named.into_iter().flatten().any(|entry| text(entry, "/resourceClaimName") == claim.name)
}

/// Where the devices are: the Node that the allocation is for, else that of a Pod that has them.
fn node<'a>(claim: &'a Value, using: &[&&'a Object]) -> Option<String> {
    claim.pointer("/status/allocation").filter(|allocation| allocation.is_object())?;
    let terms = list(claim, "/status/allocation/nodeSelector/nodeSelectorTerms");
    let of_term = |term: &'a Value| {
        let mut fields = list(term, "/matchFields").iter();
        let name = fields
            .find(|field| text(field, "/key") == "metadata.name" && text(field, "/operator") == "In")?;
        if let [one] = list(name, "/values") { one.as_str() } else { None }
    };
    let of_pod = || using.iter().map(|pod| text(&pod.value, "/spec/nodeName")).find(|node| !node.is_empty());
    let named = if let [term] = terms { of_term(term) } else { None };
    named.or_else(of_pod).map(str::to_owned)
}
