//! What the slices of a Node should be: a pure function of the number of its devices and of the slices that exist.
//!
//! A Node has a device for each Pod that it can run, and as many others with binding conditions where the cluster has these: a Pod claims
//! one of either kind. Slices of both kinds are one pool, so that all of them are withdrawn together.
//!
//! The devices of a Node are one pool. The scheduler uses a pool only while it has all slices of its latest generation, so a change
//! of any of them raises the generation of all.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::{
    Device, DeviceAttribute, DeviceClaim, DeviceRequest, ExactDeviceRequest, ResourceClaimSpec,
    ResourceClaimTemplate, ResourceClaimTemplateSpec, ResourcePool, ResourceSlice, ResourceSliceSpec,
};
use kube::api::ObjectMeta;
use outrigger_core::gate::Hold;
use outrigger_core::ids::hex;
use outrigger_core::keys;
use sha2::{Digest, Sha256};

/// Maximum number of devices of a slice, by the API.
const SLICE: usize = 128;
/// Maximum number of devices of a Node. Kubelets run 110 Pods by default, and no supported one as many as this.
pub(super) const MAX_DEVICES: usize = 1024;
/// Maximum length of the name of a Node that is a part of the names of its slices, which have 253 at most.
const MAX_NAME: usize = 200;

/// What names of slices and devices with binding conditions have.
const BINDING: &str = "binding-";
/// The Node of [`probe`].
const PROBE: &str = "outrigger-companions-probe";

/// A slice that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub uid: String,
    pub version: String,
    generation: i64,
    /// What the pool says of the number of its slices.
    count: i64,
    devices: usize,
    /// Its devices and its position among those of their kind; `None` if its name or its content isn't what the agent would write.
    index: Option<(Hold, usize)>,
    /// It was deleted, and the watch hasn't shown that yet.
    pub deleted: bool,
}

/// A write of a slice.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Op {
    Create(Box<ResourceSlice>),
    /// Replaces the content of a slice.
    Update {
        uid: String,
        version: String,
        slice: Box<ResourceSlice>,
    },
    Delete {
        name: String,
        uid: String,
    },
}

/// What the names of a Node's slices begin with.
fn prefix(node: &str) -> String {
    if node.len() <= MAX_NAME {
        return format!("{node}-companions-");
    }
    let cut: String = node.chars().take(MAX_NAME).collect();
    let hash = hex(&Sha256::digest(node), 16);
    format!("{}-{hash}-companions-", cut.trim_end_matches(['.', '-']))
}

/// The name of the slice at a position.
fn name(node: &str, hold: Hold, index: usize) -> String {
    let kind = match hold {
        Hold::Start => "",
        Hold::Binding => BINDING,
    };
    format!("{}{kind}{index}", prefix(node))
}

/// A device for one Pod.
fn device(hold: Hold, n: usize) -> Device {
    match hold {
        Hold::Start => Device { name: format!("pod-{n}"), ..Device::default() },
        Hold::Binding => {
            let attribute = DeviceAttribute { bool: Some(true), ..DeviceAttribute::default() };
            Device {
                name: format!("{BINDING}{n}"),
                attributes: Some([(keys::BINDING_ATTRIBUTE.to_owned(), attribute)].into()),
                binding_conditions: Some(vec![keys::CLAIM_READY.to_owned()]),
                binding_failure_conditions: Some(vec![keys::CLAIM_UNAVAILABLE.to_owned()]),
                ..Device::default()
            }
        }
    }
}

/// A slice that the API server is asked to check and not to store, to learn whether it has binding conditions.
pub(super) fn probe() -> ResourceSlice {
    slice(PROBE, Hold::Binding, 0, 1, 1, 1)
}

/// Whether the answer to [`probe`] has binding conditions. A cluster without the feature drops the field.
pub(super) fn has_binding(answer: &ResourceSlice) -> bool {
    let mut devices = answer.spec.devices.iter().flatten();
    devices.any(|device| device.binding_conditions.as_ref().is_some_and(|all| !all.is_empty()))
}

/// The slice at a position of a Node's pool.
fn slice(node: &str, hold: Hold, index: usize, devices: usize, count: i64, generation: i64) -> ResourceSlice {
    let term = NodeSelectorTerm {
        match_fields: Some(vec![NodeSelectorRequirement {
            key: "metadata.name".to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![node.to_owned()]),
        }]),
        match_expressions: None,
    };
    let first = index * SLICE;
    ResourceSlice {
        metadata: ObjectMeta { name: Some(name(node, hold, index)), ..ObjectMeta::default() },
        spec: ResourceSliceSpec {
            driver: keys::COMPANIONS_DRIVER.to_owned(),
            pool: ResourcePool { name: node.to_owned(), generation, resource_slice_count: count },
            // By the Node's name and not by nodeName: kubelets delete slices with their own nodeName while their plugin isn't
            // registered.
            node_selector: Some(NodeSelector { node_selector_terms: vec![term] }),
            devices: Some((first..first + devices).map(|n| device(hold, n)).collect()),
            ..ResourceSliceSpec::default()
        },
    }
}

impl Seen {
    /// Reduces a slice that exists. Returns the name of its pool too.
    pub(super) fn of(found: &ResourceSlice) -> (String, Self) {
        let pool = &found.spec.pool;
        let name = found.metadata.name.as_deref().unwrap_or_default();
        let devices = found.spec.devices.as_ref().map_or(0, Vec::len);
        let index = name.strip_prefix(&prefix(&pool.name)).and_then(|rest| {
            let (hold, index) =
                rest.strip_prefix(BINDING).map_or((Hold::Start, rest), |i| (Hold::Binding, i));
            Some((hold, index.parse::<usize>().ok()?))
        });
        // Another slice of that name would have other devices.
        let index = index.filter(|(hold, index)| {
            let (count, generation) = (pool.resource_slice_count, pool.generation);
            *index < MAX_DEVICES / SLICE
                && found.spec == slice(&pool.name, *hold, *index, devices, count, generation).spec
        });
        let seen = Self {
            uid: found.metadata.uid.clone().unwrap_or_default(),
            version: found.metadata.resource_version.clone().unwrap_or_default(),
            generation: pool.generation,
            count: pool.resource_slice_count,
            devices,
            index,
            deleted: false,
        };
        (pool.name.clone(), seen)
    }
}

/// Returns the writes that give the pool of a Node so many devices, and with `binding` as many others with binding conditions, in
/// their order. What is superfluous is deleted last, so that a pool that changes isn't without devices for longer than it has to be.
pub(super) fn plan(node: &str, devices: usize, binding: bool, seen: &BTreeMap<String, Seen>) -> Vec<Op> {
    let devices = devices.min(MAX_DEVICES);
    let slices = devices.div_ceil(SLICE);
    let size = |index: usize| (devices - index * SLICE).min(SLICE);
    let kinds = if binding { &Hold::ALL[..] } else { &[Hold::Start] };
    let wanted: Vec<(Hold, usize, String)> = kinds
        .iter()
        .flat_map(|hold| (0..slices).map(|index| (*hold, index, name(node, *hold, index))))
        .collect();
    let count = i64::try_from(wanted.len()).unwrap_or(i64::MAX);
    let is_right = |seen: &Seen, hold: Hold, index: usize| {
        seen.index == Some((hold, index)) && seen.devices == size(index) && seen.count == count
    };
    let latest = seen.values().map(|seen| seen.generation).max();
    let outdated = wanted.iter().any(|(hold, index, name)| {
        let known = seen.get(name).filter(|known| Some(known.generation) == latest);
        known.is_some_and(|known| !is_right(known, *hold, *index))
    });
    let generation = match latest {
        None => 1,
        Some(latest) if outdated => latest.saturating_add(1),
        Some(latest) => latest.max(1),
    };
    let mut ops = Vec::new();
    for (hold, index, name) in &wanted {
        let new = || Box::new(slice(node, *hold, *index, size(*index), count, generation));
        match seen.get(name) {
            None => ops.push(Op::Create(new())),
            Some(known) if known.deleted => {}
            Some(known) if known.generation == generation && is_right(known, *hold, *index) => {}
            Some(Seen { uid, version, .. }) => {
                ops.push(Op::Update { uid: uid.clone(), version: version.clone(), slice: new() });
            }
        }
    }
    let superfluous = seen
        .iter()
        .filter(|(name, known)| !known.deleted && !wanted.iter().any(|(.., wanted)| wanted == *name));
    ops.extend(superfluous.map(|(name, known)| Op::Delete { name: name.clone(), uid: known.uid.clone() }));
    ops
}

/// The ResourceClaimTemplate of a namespace: one device of the driver.
pub(super) fn template(namespace: &str, hold: Hold) -> ResourceClaimTemplate {
    let (class, labels) = match hold {
        Hold::Start => (keys::COMPANIONS_DRIVER, None),
        Hold::Binding => {
            let label = (keys::COMPANIONS_WAIT.to_owned(), keys::WAIT_BINDING.to_owned());
            (keys::COMPANIONS_BINDING_CLASS, Some([label].into()))
        }
    };
    let request = DeviceRequest {
        name: "companions".to_owned(),
        exactly: Some(ExactDeviceRequest {
            device_class_name: class.to_owned(),
            // The API server's defaults, so that the stored object is equal.
            allocation_mode: Some("ExactCount".to_owned()),
            count: Some(1),
            ..ExactDeviceRequest::default()
        }),
        ..DeviceRequest::default()
    };
    let devices = DeviceClaim { requests: Some(vec![request]), ..DeviceClaim::default() };
    ResourceClaimTemplate {
        metadata: ObjectMeta {
            name: Some(hold.template().to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some([(MANAGED_BY.to_owned(), keys::AGENT.to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: ResourceClaimTemplateSpec {
            metadata: labels.map(|labels| ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }),
            spec: ResourceClaimSpec { devices: Some(devices) },
        },
    }
}

/// Kubernetes' label for what manages an object.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// What a template of that name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// What the agent writes.
    Right,
    /// What an agent of another version has written.
    Outdated,
    /// Somebody else's.
    Foreign,
}

impl Found {
    pub(super) fn of(found: &ResourceClaimTemplate, hold: Hold) -> Self {
        let labels = found.metadata.labels.as_ref();
        // The API server fills in empty metadata.
        let wanted = template("", hold).spec;
        let metadata = found.spec.metadata.clone().unwrap_or_default();
        if metadata == wanted.metadata.unwrap_or_default() && found.spec.spec == wanted.spec {
            Self::Right
        } else if labels.and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|by| by == keys::AGENT) {
            Self::Outdated
        } else {
            Self::Foreign
        }
    }
}

#[cfg(test)]
mod tests;
