//! The report of `outrigger claims`. docs/claims.md describes its structure, which is stable.

use outrigger_core::map::HashMap;
use std::collections::{BTreeMap, BTreeSet};

use outrigger_core::json::{list, text};
use outrigger_core::{device, keys};
use serde::Serialize;
use serde_json::Value;

use crate::files::{InputError, Object};
use crate::state::{State, namespace_of, unscheduled};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) notes: Vec<String>,
    pub(super) claims: Vec<Claim>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Claim {
    pub(super) tenant: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) state: Phase,
    /// Why it is pending, as far as that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// The Node that the devices are on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
    pub(super) devices: Vec<Device>,
    /// Names of the Pods that it is reserved for, or that would use it.
    pub(super) pods: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rule: Option<String>,
    /// The workload as its label value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) workload: Option<String>,
}

/// A device that a claim was given.
#[derive(Debug, Serialize)]
pub(super) struct Device {
    pub(super) request: String,
    pub(super) driver: String,
    pub(super) pool: String,
    pub(super) device: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Phase {
    /// It has no devices.
    Pending,
    /// It has devices, and no Pod uses them.
    Allocated,
    /// Its devices are kept for Pods that don't run yet.
    Reserved,
    /// A Pod runs with its devices.
    InUse,
    Deleting,
}

impl Phase {
    pub(super) fn as_str(self) -> &'static str {
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
        let labels = state.namespace_labels(&name).unwrap_or_default();
        if let Some(owner) = labels.get(keys::TENANT) {
            known.insert((*owner).to_owned());
            all.insert(name, (*owner).to_owned());
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
        let classes: BTreeSet<&str> =
            state.of(keys::DEVICE_GROUP, "DeviceClass").map(|class| class.name.as_str()).collect();
        let mut pods: HashMap<&str, Vec<&Object>> = HashMap::default();
        for pod in state.of("", "Pod") {
            pods.entry(&pod.namespace).or_default().push(pod);
        }
        let mut claims: Vec<Claim> = state
            .of(keys::DEVICE_GROUP, "ResourceClaim")
            .filter_map(|object| {
                let tenant = meant.get(&object.namespace)?;
                let around = pods.get(object.namespace.as_str()).map_or(&[][..], Vec::as_slice);
                Some(claim(object, tenant, around, &classes))
            })
            .collect();
        claims.sort_by(|a, b| (&a.tenant, &a.namespace, &a.name).cmp(&(&b.tenant, &b.namespace, &b.name)));
        Ok(Self { notes, claims })
    }
}

/// One claim. `pods`: those of its namespace. `classes`: the names of all DeviceClasses, empty where they aren't known.
fn claim(object: &Object, tenant: &str, pods: &[&Object], classes: &BTreeSet<&str>) -> Claim {
    let value = &object.value;
    let owner = owner(value);
    let using: Vec<&&Object> = pods.iter().filter(|pod| uses(pod, object, owner)).collect();
    let reserved: Vec<&str> = list(value, "/status/reservedFor")
        .iter()
        .filter(|user| text(user, "/resource") == "pods")
        .map(|user| text(user, "/name"))
        .collect();
    let names: BTreeSet<&str> =
        reserved.iter().copied().chain(using.iter().map(|pod| pod.name.as_str())).chain(owner).collect();
    // A claim that several Pods share belongs to none of them.
    let made_for = pods.iter().find(|pod| owner == Some(&pod.name));
    let label = |key: &str| {
        let of = |object: &Value| {
            object
                .pointer("/metadata/labels")
                .and_then(|l| l.get(key))
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        of(value).or_else(|| made_for.and_then(|pod| of(&pod.value)))
    };
    let running = |name: &&str| {
        pods.iter().any(|pod| pod.name == **name && text(&pod.value, "/status/phase") == "Running")
    };
    let allocated = value.pointer("/status/allocation").is_some_and(Value::is_object);
    let state = if !text(value, "/metadata/deletionTimestamp").is_empty() {
        Phase::Deleting
    } else if !allocated {
        Phase::Pending
    } else if reserved.is_empty() {
        Phase::Allocated
    } else if reserved.iter().any(running) {
        Phase::InUse
    } else {
        Phase::Reserved
    };
    let devices = list(value, "/status/allocation/devices/results");
    let device = |result: &Value| Device {
        request: text(result, "/request").to_owned(),
        driver: text(result, "/driver").to_owned(),
        pool: text(result, "/pool").to_owned(),
        device: text(result, "/device").to_owned(),
    };
    Claim {
        tenant: tenant.to_owned(),
        namespace: object.namespace.clone(),
        name: object.name.clone(),
        state,
        reason: (state == Phase::Pending).then(|| why(value, &using, classes)).flatten(),
        node: node(value, &using),
        devices: devices.iter().map(device).collect(),
        rule: label(keys::RULE),
        workload: label(keys::WORKLOAD),
        pods: names.into_iter().map(str::to_owned).collect(),
    }
}

/// The Pod that Kubernetes made the claim for.
fn owner(claim: &Value) -> Option<&str> {
    let owners = list(claim, "/metadata/ownerReferences");
    let of_pod =
        owners.iter().find(|o| text(o, "/kind") == "Pod" && o.get("controller") == Some(&Value::Bool(true)));
    of_pod.map(|owner| text(owner, "/name"))
}

/// Whether a Pod uses a claim: it names it, or the claim was made for it.
fn uses(pod: &Object, claim: &Object, owner: Option<&str>) -> bool {
    let named = list(&pod.value, "/spec/resourceClaims");
    owner == Some(&pod.name) || named.iter().any(|entry| text(entry, "/resourceClaimName") == claim.name)
}

/// Where the devices are: the Node that the allocation is for, else that of a Pod that has them.
fn node(claim: &Value, using: &[&&Object]) -> Option<String> {
    claim.pointer("/status/allocation").filter(|allocation| allocation.is_object())?;
    let terms = list(claim, "/status/allocation/nodeSelector/nodeSelectorTerms");
    let of_term = |term: &Value| {
        let fields = list(term, "/matchFields");
        let name = fields
            .iter()
            .find(|field| text(field, "/key") == "metadata.name" && text(field, "/operator") == "In");
        let names = name.map(|field| list(field, "/values"))?;
        match names {
            [one] => one.as_str().map(str::to_owned),
            _ => None,
        }
    };
    let of_pod = || using.iter().map(|pod| text(&pod.value, "/spec/nodeName")).find(|node| !node.is_empty());
    match terms {
        [term] => of_term(term).or_else(|| of_pod().map(str::to_owned)),
        _ => of_pod().map(str::to_owned),
    }
}

/// Why a claim has no devices, as far as the objects show.
fn why(claim: &Value, using: &[&&Object], classes: &BTreeSet<&str>) -> Option<String> {
    let spec = claim.get("spec").unwrap_or(&Value::Null);
    let subject = crate::check::findings::Subject::cluster("ResourceClaim", "");
    if !classes.is_empty()
        && let Some(missing) =
            crate::check::devices::classes(&subject, spec, "spec", classes).into_iter().next()
    {
        return Some(format!("{}: {}", missing.path, missing.message));
    }
    if let Some(never) = device::warnings(spec).into_iter().next() {
        return Some(format!("spec.{never}"));
    }
    let Some(pod) = using.first() else {
        return Some("no Pod uses it: devices are chosen when the first one is scheduled".to_owned());
    };
    let name = &pod.name;
    if !text(&pod.value, "/spec/nodeName").is_empty() {
        return Some(format!("Pod {name} was bound without the scheduler, which alone chooses devices"));
    }
    let gates: Vec<&str> =
        list(&pod.value, "/spec/schedulingGates").iter().map(|gate| text(gate, "/name")).collect();
    if !gates.is_empty() {
        return Some(format!("Pod {name} waits for its scheduling gates: {}", gates.join(", ")));
    }
    let words = unscheduled(&pod.value);
    Some(if words.is_empty() {
        format!("Pod {name} isn't scheduled yet")
    } else {
        format!("Pod {name} isn't scheduled: {words}")
    })
}
