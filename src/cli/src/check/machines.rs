//! Imperator's Machines (`imperator.tenzen-y.io/v1alpha1`) against the nodes that they are to stand on.
//!
//! A Machine promises `available` guests of each type. The check reckons as the scheduler places guests, whole ones on one
//! node each: a node holds as many guests of a type as its scarcest resource allows. Types share the nodes of their
//! group, so every type alone has to fit, and all of them together by the share of the nodes that each takes.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use outrigger_api::Machine;
use outrigger_api::machine::{Gpu, PoolNode};
use outrigger_core::quantity::Quantity;
use outrigger_core::text::quoted;
use outrigger_core::{json, keys};
use serde_json::Value;

use super::counted;
use super::findings::{
    Check, Finding, MACHINE_CAPACITY, MACHINE_GPU, MACHINE_GPU_LABEL, MACHINE_INVALID, MACHINE_NODE,
    NO_CLASS, Subject,
};

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
    /// Its GPUs.
    gpu: Option<&'a Gpu>,
}

/// Everything that a Machine promises and its nodes can't hold.
pub(crate) fn machine(machine: &Machine, around: &ClusterResources<'_>) -> Vec<Finding> {
    let subject = Subject::cluster("Machine", &machine.name_any());
    let mut comparison = Comparison { machine, around, subject, findings: Vec::new() };
    let types = comparison.types();
    let by_class: BTreeSet<&str> = around.classes.values().copied().flatten().collect();
    let mut supplied = BTreeSet::new();
    for kind in &types {
        if let Some(gpu) = kind.gpu.map(|gpu| gpu.type_.as_str()).filter(|gpu| !gpu.is_empty()) {
            // Devices of a class are in no node's allocatable.
            if by_class.contains(gpu) || gpu.starts_with(keys::DEVICE_CLASS_RESOURCE) {
                supplied.insert(gpu);
            }
            comparison.gpu_class(kind, gpu);
        }
    }
    for (i, pool) in machine.spec.node_pool.iter().enumerate() {
        let path = format!("spec.nodePool[{i}]");
        let Some(node) = around.nodes.get(pool.name.as_str()) else {
            let message = format!("is {:?}, and there is no such Node", pool.name);
            comparison.add(&MACHINE_NODE, format!("{path}.name"), message);
            continue;
        };
        for kind in types.iter().filter(|kind| offers(pool, kind)) {
            comparison.gpu_labels(kind, node, &path);
        }
    }
    comparison.capacity(&types, &supplied);
    comparison.findings
}

/// A Machine that is compared with the cluster.
struct Comparison<'a> {
    machine: &'a Machine,
    around: &'a ClusterResources<'a>,
    subject: Subject,
    findings: Vec<Finding>,
}

impl<'a> Comparison<'a> {
    fn add(&mut self, check: &'static Check, path: String, message: String) {
        self.findings.push(Finding::new(check, &self.subject, path, message));
    }

    fn types(&mut self) -> Vec<Type<'a>> {
        let mut types = Vec::new();
        for (i, kind) in self.machine.spec.machine_types.iter().enumerate() {
            let path = format!("spec.machineTypes[{i}]");
            let gpu = kind.spec.gpu.as_ref();
            let counted = gpu.filter(|gpu| !gpu.type_.is_empty());
            let own = [("cpu", "cpu", &kind.spec.cpu), ("memory", "memory", &kind.spec.memory)];
            let mut takes = BTreeMap::new();
            for (resource, field, text) in
                own.into_iter().chain(counted.map(|gpu| (gpu.type_.as_str(), "gpu.num", &gpu.num)))
            {
                match text.parse::<Quantity>() {
                    Ok(amount) if !amount.is_negative() => {
                        takes.insert(resource, amount.nanos());
                    }
                    _ => {
                        let message = format!(
                            "is {:?}; use a quantity of 0 or more, such as 500m or 4Gi",
                            quoted(text)
                        );
                        self.add(&MACHINE_INVALID, format!("{path}.spec.{field}"), message);
                    }
                }
            }
            types.push(Type { name: &kind.name, path, available: kind.available.into(), takes, gpu });
        }
        types
    }

    fn gpu_labels(&mut self, kind: &Type<'_>, node: &Value, path: &str) {
        let Some((label, wanted)) = kind.gpu.and_then(Gpu::label) else { return };
        let found = json::label(node, label);
        if found != Some(&*wanted) {
            let node = json::text(node, "/metadata/name");
            let is = found.map_or_else(|| "has no label".to_owned(), |found| format!("has {found:?} in"));
            let message = format!("Node {node} {is} {label}, type {:?} promises {wanted:?}", kind.name);
            self.add(&MACHINE_GPU_LABEL, path.to_owned(), message);
        }
    }

    /// Whether a node's device plugin or a DeviceClass offers the GPU.
    fn gpu_class(&mut self, kind: &Type<'_>, gpu: &str) {
        let (around, path) = (self.around, format!("{}.spec.gpu.type", kind.path));
        if let Some(class) = gpu.strip_prefix(keys::DEVICE_CLASS_RESOURCE) {
            if !around.classes.contains_key(class) {
                self.add(&NO_CLASS, path, format!("is {gpu:?}, and there is no DeviceClass {class:?}"));
            }
            return;
        }
        let of_class = around.classes.values().any(|resource| *resource == Some(gpu));
        let of_node = around.nodes.values().any(|node| allocatable(node, gpu) > 0);
        if !of_class && !of_node {
            let message = format!(
                "is {gpu:?}: no Node has it allocatable, and no DeviceClass has it as extendedResourceName"
            );
            self.add(&MACHINE_GPU, path, message);
        }
    }

    /// Compares guests with nodes. `supplied`: resources of DeviceClasses, which nodes don't list.
    fn capacity(&mut self, types: &[Type<'_>], supplied: &BTreeSet<&str>) {
        // What of all nodes' room the types take together, in millionths, by the set of nodes that they may use.
        let mut shares: BTreeMap<BTreeSet<&str>, (i128, Vec<&str>)> = BTreeMap::new();
        for kind in types.iter().filter(|kind| kind.available > 0) {
            let pools = self.machine.spec.node_pool.iter().filter(|pool| offers(pool, kind));
            let nodes: BTreeMap<&str, &Value> = pools
                .filter_map(|pool| self.around.nodes.get_key_value(pool.name.as_str()))
                .map(|(name, node)| (*name, *node))
                .collect();
            let holds = nodes.values().map(|node| guests(kind, node, supplied));
            let room = holds.fold(0_i128, i128::saturating_add);
            if kind.available > room {
                let message = format!(
                    "is {}; the {} of its group that {:?} may use {} {room}",
                    kind.available,
                    counted(nodes.len(), "Node"),
                    kind.name,
                    if nodes.len() == 1 { "holds" } else { "hold" },
                );
                self.add(&MACHINE_CAPACITY, format!("{}.available", kind.path), message);
                continue;
            }
            let (share, names) = shares.entry(nodes.into_keys().collect()).or_default();
            *share = share.saturating_add(kind.available.saturating_mul(1_000_000) / room.max(1));
            names.push(kind.name);
        }
        for (nodes, (share, names)) in shares {
            if share > 1_000_000 && names.len() > 1 {
                let message = format!(
                    "types {} each fit the {} that they share, and together they need {} % of them",
                    names.join(", "),
                    counted(nodes.len(), "Node"),
                    share / 10_000
                );
                self.add(&MACHINE_CAPACITY, "spec.machineTypes".to_owned(), message);
            }
        }
    }
}

/// Whether a node is for guests of a type.
fn offers(pool: &PoolNode, kind: &Type<'_>) -> bool {
    pool.machine_type.iter().any(|offered| offered.name == kind.name)
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
