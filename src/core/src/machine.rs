//! Machines (`imperator.tenzen-y.io`): groups of nodes that are given out by the slot.
//!
//! A Machine names a group, the nodes in its pool, and its machine types, each with a size and a number of slots. Free slots
//! are held by reservation Pods; a guest Pod takes the place of one.

pub mod usage;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::json::list;
use crate::keys;
use crate::quantity::Quantity;
use crate::selector;
use crate::syntax::Form;

/// A Machine as the controllers and admission need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// `metadata.name`.
    pub name: String,
    /// Its group: the label [`keys::MACHINE_GROUP`], which may be empty, or missing where nobody checked.
    pub group: Option<String>,
    /// Its nodes.
    pub pool: Vec<PoolNode>,
    /// Its types.
    pub types: Vec<MachineType>,
}

/// A node of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolNode {
    /// The Node's name.
    pub name: String,
    /// Whether it is in use.
    pub mode: Mode,
    /// Whether others than guests and reservations are kept off it by taints.
    pub taint: bool,
    /// Names of the types it serves: exactly one, where somebody checked.
    pub types: Vec<String>,
}

/// What a node of the pool is meant to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Take guests.
    Ready,
    /// Take none.
    Maintenance,
}

impl Mode {
    /// As the API spells it; `None` for what is no mode.
    pub fn of(text: &str) -> Option<Self> {
        match text {
            "ready" => Some(Self::Ready),
            "maintenance" => Some(Self::Maintenance),
            _ => None,
        }
    }

    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Maintenance => "maintenance",
        }
    }
}

/// A machine type: the size of a slot, and how many there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineType {
    /// Its name: also the name part of a node label, see [`type_key`].
    pub name: String,
    /// Processors of a slot.
    pub cpu: Quantity,
    /// Memory of a slot.
    pub memory: Quantity,
    /// GPUs of a slot.
    pub gpu: Option<Gpu>,
    /// Maximum number of slots.
    pub available: u32,
}

/// The GPUs of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Name of the resource that a container asks for. Of a DeviceClass it is the one that Kubernetes gives to each
    /// (KEP-5004), see [`of_device_class`].
    pub resource: String,
    /// How many.
    pub num: Quantity,
    /// Which node label has to have which value; `None` where the class alone decides.
    pub label: Option<(&'static str, String)>,
}

/// The extended resource by which containers ask for devices of a class (KEP-5004).
pub fn of_device_class(class: &str) -> String {
    format!("{}{class}", keys::DEVICE_CLASS_RESOURCE)
}

/// Whether the labels by which GPUs are selected ([`keys::GPU_FAMILY`] and its like) are about the devices of an extended resource:
/// those of NVIDIA, whole or in parts. Nodes with other GPUs don't have them.
pub fn is_labeled_gpu(resource: &str) -> bool {
    resource.split_once('/').is_some_and(|(domain, _)| domain == keys::GPU_DOMAIN)
}

/// Node label and taint key of a machine type.
pub fn type_key(name: &str) -> String {
    format!("{}/{name}", keys::MACHINE_GROUP_DOMAIN)
}

/// Name of the StatefulSet and the Service of a type's reservations.
pub fn reservation_name(group: &str, type_: &str) -> String {
    format!("{group}-{type_}")
}

/// Longest name of a StatefulSet: the API puts it into a label of its Pods, followed by a hash of up to eleven characters.
pub const MAX_RESERVATION_NAME: usize = 52;

/// What is wrong with group and type as parts of [`reservation_name`], in words; `None` when nothing is. A Service's name has
/// to begin with a letter.
pub fn name_fault(group: &str, type_: &str) -> Option<String> {
    let name = reservation_name(group, type_);
    let fits = Form::ServiceName.accepts(&name) && name.len() <= MAX_RESERVATION_NAME;
    (!fits).then(|| {
        format!(
            "machine type {type_:?} of group {group:?}: its StatefulSet and Service would be named {name:?}; use lower-case \
             letters, digits and dashes, a letter first, and at most {MAX_RESERVATION_NAME} characters in all"
        )
    })
}

/// Name of the MachineNodePool of a group.
pub fn pool_name(group: &str) -> String {
    format!("{group}-node-pool")
}

/// Labels of a reservation Pod, its StatefulSet and its Service.
pub fn reservation_labels(group: &str, type_: &str) -> BTreeMap<String, String> {
    [(keys::MACHINE_GROUP, group), (keys::MACHINE_TYPE, type_), (keys::POD_ROLE, keys::RESERVATION)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// Which slot a Pod asks for, by its labels: group and type, where it is a guest.
pub fn guest(labels: &serde_json::Map<String, Value>) -> Option<(&str, &str)> {
    let label = |key: &str| labels.get(key).and_then(Value::as_str);
    if label(keys::POD_ROLE) != Some(keys::GUEST) {
        return None;
    }
    Some((label(keys::MACHINE_GROUP)?, label(keys::MACHINE_TYPE)?))
}

/// Whether a Pod has scheduling gates. A guest that has some takes its slot when the last one is removed.
pub fn is_gated(pod: &Value) -> bool {
    !list(pod, "/spec/schedulingGates").is_empty()
}

impl Machine {
    /// The type of that name.
    pub fn type_named(&self, name: &str) -> Option<&MachineType> {
        self.types.iter().find(|t| t.name == name)
    }
}

impl MachineType {
    /// Requests and limits of the container that runs in a slot: resource name to quantity, as the API server stores it.
    pub fn resources(&self) -> BTreeMap<String, String> {
        let mut resources = BTreeMap::from([
            ("cpu".to_owned(), self.cpu.to_string()),
            ("memory".to_owned(), self.memory.to_string()),
        ]);
        if let Some(gpu) = &self.gpu {
            resources.insert(gpu.resource.clone(), gpu.num.to_string());
        }
        resources
    }

    /// What the node of a slot has to match, as expressions of one node selector term.
    pub fn expressions(&self, group: &str) -> Vec<Value> {
        let mut expressions = vec![
            selector::requirement(&type_key(&self.name), group),
            selector::requirement(keys::NODE_POOL, Mode::Ready.as_str()),
        ];
        if let Some((key, value)) = self.gpu.as_ref().and_then(|gpu| gpu.label.as_ref()) {
            expressions.push(selector::requirement(key, value));
        }
        expressions
    }

    /// What lets a Pod onto the tainted nodes of the pool.
    pub fn tolerations(&self, group: &str) -> [Value; 2] {
        [(&*type_key(&self.name), group), (keys::NODE_POOL, Mode::Ready.as_str())]
            .map(|(key, value)| selector::toleration(key, value))
    }
}

/// How the slots of a type are used, as `status.availableMachines[].usage` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Slots that there may be.
    pub maximum: u32,
    /// Reservations on a node.
    pub reserved: u32,
    /// Guests that are on a node.
    pub used: u32,
    /// Guests that wait for one.
    pub waiting: u32,
    /// Those of them that have scheduling gates. They hold nothing until the last gate is removed.
    pub gated: u32,
    /// Slots that nodes back. Unlike `reserved` it doesn't move while a guest takes the place of a reservation. `None`:
    /// nobody counts them, which Imperator's own controllers don't.
    pub slots: Option<u32>,
}

impl Usage {
    /// How many guests there may be at once. A guest that waits and the reservation that makes room for it are one slot.
    pub fn slots(&self) -> u32 {
        let backed = self.reserved.saturating_add(self.used);
        self.slots.unwrap_or(backed).min(self.maximum)
    }
}

/// How many reservations there should be: those that neither a guest nor the lack of a place takes away.
pub fn replicas(usage: &Usage, unscheduled: u32) -> u32 {
    let waiting = usage.waiting.saturating_sub(usage.gated);
    usage.maximum.saturating_sub(usage.used).saturating_sub(waiting).saturating_sub(unscheduled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn large() -> MachineType {
        MachineType {
            name: "large".to_owned(),
            cpu: "2000m".parse().unwrap(),
            memory: "24Gi".parse().unwrap(),
            gpu: Some(Gpu {
                resource: "nvidia.com/gpu".to_owned(),
                num: Quantity::whole(2),
                label: Some((keys::GPU_FAMILY, "ampere".to_owned())),
            }),
            available: 2,
        }
    }

    #[test]
    fn what_a_slot_is() {
        let large = large();
        assert_eq!(json!(large.resources()), json!({"cpu": "2", "memory": "24Gi", "nvidia.com/gpu": "2"}));
        assert_eq!(
            large.expressions("g"),
            [
                json!({"key": "imperator.tenzen-y.io/large", "operator": "In", "values": ["g"]}),
                json!({"key": "imperator.tenzen-y.io/node-pool", "operator": "In", "values": ["ready"]}),
                json!({"key": "nvidia.com/gpu.family", "operator": "In", "values": ["ampere"]}),
            ]
        );
        assert_eq!(large.tolerations("g")[0]["value"], "g");
        assert_eq!(of_device_class("gpu.example.com"), "deviceclass.resource.kubernetes.io/gpu.example.com");
    }

    #[test]
    fn which_gpus_the_labels_are_about() {
        for (resource, labeled) in [
            ("nvidia.com/gpu", true),
            ("nvidia.com/mig-1g.5gb", true),
            ("amd.com/gpu", false),
            ("gpu.nvidia.com/gpu", false),
            ("nvidia.com", false),
            ("", false),
        ] {
            assert_eq!(is_labeled_gpu(resource), labeled, "{resource}");
        }
    }

    #[test]
    fn a_type_is_found_by_its_name() {
        let machine = Machine { name: "m".into(), group: None, pool: Vec::new(), types: vec![large()] };
        assert_eq!(machine.type_named("large"), Some(&machine.types[0]));
        assert_eq!(machine.type_named("small"), None);
    }

    #[test]
    fn what_objects_of_a_group_are_called_and_labeled() {
        assert_eq!(pool_name("g"), "g-node-pool");
        assert_eq!(
            json!(reservation_labels("g", "t")),
            json!({keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "t", keys::POD_ROLE: keys::RESERVATION})
        );
    }

    #[test]
    fn which_names_objects_can_have() {
        let long = "x".repeat(51);
        for (group, type_, good) in [
            ("g", "t", true),
            ("general-machine", "compute-xlarge", true),
            ("G", "t", false),
            ("g.h", "t", false),
            ("7", "t", false),
            ("g", "t-", false),
            ("g", long.as_str(), false),
            ("g", &long[1..], true),
        ] {
            assert_eq!(name_fault(group, type_).is_none(), good, "{group} {type_}");
        }
    }

    #[test]
    fn who_is_a_guest() {
        let labels = json!({keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "t", keys::POD_ROLE: "guest"});
        assert_eq!(guest(labels.as_object().unwrap()), Some(("g", "t")));
        for key in [keys::MACHINE_GROUP, keys::MACHINE_TYPE, keys::POD_ROLE] {
            let mut labels = labels.clone();
            labels[key] = json!(7);
            assert_eq!(guest(labels.as_object().unwrap()), None);
        }
    }

    #[test]
    fn slots_stay_within_what_nodes_back_and_the_maximum() {
        let usage =
            |reserved, used, waiting, slots| Usage { maximum: 4, reserved, used, waiting, gated: 0, slots };
        assert_eq!(usage(3, 1, 0, None).slots(), 4);
        assert_eq!(usage(0, 0, 0, None).slots(), 0);
        assert_eq!(usage(4, 2, 0, None).slots(), 4);
        assert_eq!(usage(2, 0, 1, None).slots(), 2, "one of the two goes for the guest that waits");
        assert_eq!(usage(0, 1, 0, Some(3)).slots(), 3);
        assert_eq!(usage(0, 1, 0, Some(9)).slots(), 4);
        assert_eq!(replicas(&usage(0, 1, 1, None), 1), 1);
        assert_eq!(replicas(&usage(0, 3, 3, None), 1), 0);
        assert_eq!(replicas(&Usage { gated: 2, ..usage(0, 1, 3, None) }, 0), 2, "gated guests hold nothing");
    }

    #[test]
    fn modes_have_the_names_of_the_api() {
        for mode in [Mode::Ready, Mode::Maintenance] {
            assert_eq!(Mode::of(mode.as_str()), Some(mode));
        }
        assert_eq!(Mode::of("not-ready"), None);
    }
}
