//! Imperator's Machines (`imperator.tenzen-y.io/v1alpha1`) against the nodes that they are to stand on.
//!
//! A Machine promises `available` guests of each type. The check reckons as the scheduler places guests, whole ones on one
//! node each: a node holds as many guests of a type as its scarcest resource allows. Types share the nodes of their
//! group, so every type alone has to fit, and all of them together by the share of the nodes that each takes.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_core::json::list;
use outrigger_core::keys;
use outrigger_core::quantity::Quantity;
use outrigger_core::text::quoted;
use serde_json::Value;

use super::findings::{
    Finding, MACHINE_CAPACITY, MACHINE_GPU, MACHINE_GPU_LABEL, MACHINE_INVALID, MACHINE_NODE, NO_CLASS,
    Subject,
};

/// Keys of a type's `gpu` that name a label of nodes: `family` is the label `TYPE.family`.
const GPU_LABELS: [&str; 3] = ["family", "product", "machine"];

/// The cluster's resources with which Machines are compared.
#[derive(Debug, Default)]
pub(crate) struct ClusterResources<'a> {
    /// The Nodes, raw, by name.
    pub(crate) nodes: BTreeMap<&'a str, &'a Value>,
    /// Names of the DeviceClasses, and the extended resources that they stand behind.
    pub(crate) classes: BTreeMap<&'a str, Option<&'a str>>,
}

/// One machine type: how many guests, and what one takes, in billionths of a unit.
struct Type<'a> {
    name: &'a str,
    path: String,
    available: i128,
    takes: BTreeMap<&'a str, i128>,
    gpu: Option<&'a Value>,
}

/// Everything that a Machine promises and its nodes can't hold.
pub(crate) fn machine(machine: &Value, around: &ClusterResources<'_>) -> Vec<Finding> {
    let name = machine.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let subject = Subject::cluster("Machine", name);
    let mut findings = Vec::new();
    let types = types(machine, &subject, &mut findings);
    let by_class: BTreeSet<&str> = around.classes.values().copied().flatten().collect();
    let mut supplied = BTreeSet::new();
    for kind in &types {
        if let Some(gpu) = kind.gpu.and_then(|gpu| text(gpu, "type")) {
            // Devices of a class are in no node's allocatable.
            if by_class.contains(gpu) || gpu.starts_with(keys::DEVICE_CLASS_RESOURCE) {
                supplied.insert(gpu);
            }
            gpu_class(kind, gpu, &subject, around, &mut findings);
        }
    }
    for (i, pool) in list(machine, "/spec/nodePool").iter().enumerate() {
        let path = format!("spec.nodePool[{i}]");
        let node = text(pool, "name").unwrap_or_default();
        let Some(node) = around.nodes.get(node) else {
            let message = format!("is {node:?}, and there is no such Node");
            findings.push(Finding::new(&MACHINE_NODE, &subject, format_args!("{path}.name"), message));
            continue;
        };
        let offered = offered(pool);
        for kind in types.iter().filter(|kind| offered.contains(kind.name)) {
            gpu_labels(kind, node, &path, &subject, &mut findings);
        }
    }
    capacity(machine, &types, &supplied, around, &subject, &mut findings);
    findings
}

fn types<'a>(machine: &'a Value, subject: &Subject, findings: &mut Vec<Finding>) -> Vec<Type<'a>> {
    let mut types = Vec::new();
    for (i, kind) in list(machine, "/spec/machineTypes").iter().enumerate() {
        let path = format!("spec.machineTypes[{i}]");
        let spec = kind.get("spec").unwrap_or(&Value::Null);
        let mut takes = BTreeMap::new();
        for resource in ["cpu", "memory"] {
            let Some(value) = spec.get(resource).filter(|value| !value.is_null()) else { continue };
            amount(resource, value, &format!("{path}.spec.{resource}"), subject, &mut takes, findings);
        }
        let gpu = spec.get("gpu").filter(|gpu| gpu.is_object());
        if let Some((gpu, resource)) = gpu.and_then(|gpu| Some((gpu, text(gpu, "type")?))) {
            let value = gpu.get("num").unwrap_or(&Value::Null);
            amount(resource, value, &format!("{path}.spec.gpu.num"), subject, &mut takes, findings);
        }
        let available = kind.get("available").and_then(Value::as_i64).map_or(0, i128::from);
        let name = text(kind, "name").unwrap_or_default();
        types.push(Type { name, path, available, takes, gpu });
    }
    types
}

fn amount<'a>(
    resource: &'a str,
    value: &Value,
    path: &str,
    subject: &Subject,
    takes: &mut BTreeMap<&'a str, i128>,
    findings: &mut Vec<Finding>,
) {
    match Quantity::of(value).map(|quantity| quantity.nanos()).filter(|amount| *amount >= 0) {
        Some(amount) => {
            takes.insert(resource, amount);
        }
        None => {
            let text = value.to_string();
            let shown = quoted(&text);
            let message = format!("is {shown}; use a quantity of 0 or more, such as 500m or 4Gi");
            findings.push(Finding::new(&MACHINE_INVALID, subject, path, message));
        }
    }
}

/// Names of the types that a node is for.
fn offered(pool: &Value) -> BTreeSet<&str> {
    list(pool, "/machineType").iter().filter_map(|kind| text(kind, "name")).collect()
}

fn gpu_labels(kind: &Type<'_>, node: &Value, path: &str, subject: &Subject, findings: &mut Vec<Finding>) {
    let Some((gpu, resource)) = kind.gpu.and_then(|gpu| Some((gpu, text(gpu, "type")?))) else { return };
    let labels = node.pointer("/metadata/labels");
    for key in GPU_LABELS {
        let Some(wanted) = text(gpu, key) else { continue };
        let label = format!("{resource}.{key}");
        let found = labels.and_then(|labels| labels.get(&label)).and_then(Value::as_str);
        if found != Some(wanted) {
            let node = node.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            let is = found.map_or_else(|| "has no label".to_owned(), |found| format!("has {found:?} in"));
            let message = format!("Node {node} {is} {label}, type {:?} promises {wanted:?}", kind.name);
            findings.push(Finding::new(&MACHINE_GPU_LABEL, subject, path, message));
        }
    }
}

/// Whether a node's device plugin or a DeviceClass offers the GPU.
fn gpu_class(
    kind: &Type<'_>,
    gpu: &str,
    subject: &Subject,
    around: &ClusterResources<'_>,
    findings: &mut Vec<Finding>,
) {
    let path = format!("{}.spec.gpu.type", kind.path);
    if let Some(class) = gpu.strip_prefix(keys::DEVICE_CLASS_RESOURCE) {
        if !around.classes.contains_key(class) {
            let message = format!("is {gpu:?}, and there is no DeviceClass {class:?}");
            findings.push(Finding::new(&NO_CLASS, subject, path, message));
        }
        return;
    }
    let of_class = around.classes.values().any(|resource| *resource == Some(gpu));
    let of_node = around.nodes.values().any(|node| allocatable(node, gpu) > 0);
    if !of_class && !of_node {
        let message = format!(
            "is {gpu:?}: no Node has it allocatable, and no DeviceClass has it as extendedResourceName"
        );
        findings.push(Finding::new(&MACHINE_GPU, subject, path, message));
    }
}

/// Compares guests with nodes. `supplied`: resources of DeviceClasses, which nodes don't list.
fn capacity(
    machine: &Value,
    types: &[Type<'_>],
    supplied: &BTreeSet<&str>,
    around: &ClusterResources<'_>,
    subject: &Subject,
    findings: &mut Vec<Finding>,
) {
    let pools = list(machine, "/spec/nodePool");
    // What of all nodes' room the types take together, in millionths, by the set of nodes that they may use.
    let mut shares: BTreeMap<BTreeSet<&str>, (i128, usize, Vec<&str>)> = BTreeMap::new();
    for kind in types.iter().filter(|kind| kind.available > 0) {
        let nodes: BTreeSet<&str> = pools
            .iter()
            .filter(|pool| offered(pool).contains(kind.name))
            .filter_map(|pool| text(pool, "name"))
            .filter(|name| around.nodes.contains_key(name))
            .collect();
        let holds = |name: &&str| around.nodes.get(*name).map_or(0, |node| guests(kind, node, supplied));
        let room = nodes.iter().map(holds).fold(0_i128, i128::saturating_add);
        let path = format!("{}.available", kind.path);
        if kind.available > room {
            let message = format!(
                "is {}; the {} of its group that {:?} may use {} {room}",
                kind.available,
                counted(nodes.len()),
                kind.name,
                if nodes.len() == 1 { "holds" } else { "hold" },
            );
            findings.push(Finding::new(&MACHINE_CAPACITY, subject, path, message));
            continue;
        }
        let (share, _, names) = shares.entry(nodes.clone()).or_insert((0, nodes.len(), Vec::new()));
        *share = share.saturating_add(kind.available.saturating_mul(1_000_000) / room.max(1));
        names.push(kind.name);
    }
    for (share, nodes, names) in shares.into_values() {
        if share > 1_000_000 && names.len() > 1 {
            let message = format!(
                "types {} each fit the {} that they share, and together they need {} % of them",
                names.join(", "),
                counted(nodes),
                share / 10_000
            );
            findings.push(Finding::new(&MACHINE_CAPACITY, subject, "spec.machineTypes", message));
        }
    }
}

fn counted(nodes: usize) -> String {
    if nodes == 1 { "1 Node".to_owned() } else { format!("{nodes} Nodes") }
}

/// How many guests of a type an empty node holds: whole ones, by the scarcest resource. A type that takes nothing is
/// unbounded.
fn guests(kind: &Type<'_>, node: &Value, supplied: &BTreeSet<&str>) -> i128 {
    let takes = kind.takes.iter().filter(|(resource, takes)| **takes > 0 && !supplied.contains(*resource));
    takes.map(|(resource, takes)| allocatable(node, resource) / takes).min().unwrap_or(i128::MAX)
}

/// A node's allocatable amount of a resource, in billionths.
fn allocatable(node: &Value, resource: &str) -> i128 {
    let all = node.pointer("/status/allocatable").or_else(|| node.pointer("/status/capacity"));
    all.and_then(|all| all.get(resource)).and_then(Quantity::of).map_or(0, |quantity| quantity.nanos()).max(0)
}

fn text<'a>(of: &'a Value, key: &str) -> Option<&'a str> {
    of.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}
