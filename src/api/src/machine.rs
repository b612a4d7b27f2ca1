//! `Machine` and `MachineNodePool` (`imperator.tenzen-y.io/v1alpha1`): groups of nodes that are given out by the slot.
//! Imperator's resources, field by field, for clusters in which Imperator's own are not installed.

// The derive puts the resources into private modules of their own.
#![allow(unreachable_pub)]
// Printer columns share types.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema, ResourceExt};
use outrigger_core::field::FieldError;
use outrigger_core::keys;
use outrigger_core::machine as domain;
use outrigger_core::quantity::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::null::or_default;

// Quantities and modes are texts here, whatever they hold: an object from before the schema must not keep all others from
// being read.
/// A group of nodes, and the machine types whose slots they give out.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "imperator.tenzen-y.io",
    version = "v1alpha1",
    kind = "Machine",
    plural = "machines",
    category = "imperator",
    status = "MachineStatus",
    doc = "A group of nodes, named by the label imperator.tenzen-y.io/machine-group, and the machine types whose slots they give out to guests.",
    printcolumn(
        json_path = r".metadata.labels.imperator\.tenzen-y\.io/machine-group",
        name = "Group",
        type_ = "string"
    ),
    printcolumn(
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        name = "Ready",
        type_ = "string"
    ),
    printcolumn(
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#,
        name = "Message",
        type_ = "string",
        priority = 1
    ),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date")
)]
#[serde(rename_all = "camelCase")]
pub struct MachineSpec {
    /// The nodes of the group. A node may be in one group only.
    #[schemars(length(max = 4096))]
    pub node_pool: Vec<PoolNode>,

    /// The types of slots.
    #[schemars(length(max = 256))]
    pub machine_types: Vec<MachineType>,
}

/// A node of a pool.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PoolNode {
    /// Name of the Node.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// ready: guests may run on it. maintenance: none may.
    #[schemars(extend("enum" = ["ready", "maintenance"]))]
    pub mode: String,

    /// Whether taints keep everybody else off the node. Absent: false.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(default)]
    pub taint: bool,

    /// The type whose slots the node gives out: exactly one.
    #[schemars(length(max = 16))]
    pub machine_type: Vec<TypeName>,
}

/// A machine type by its name.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct TypeName {
    /// Name of a machine type of the same group.
    #[schemars(length(max = 63))]
    pub name: String,
}

/// A type of slots.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct MachineType {
    /// Its name, unique in the group. It is the name part of a node label as well.
    #[schemars(length(max = 63))]
    pub name: String,

    /// Size of a slot.
    pub spec: MachineTypeSpec,

    /// How many slots there may be.
    #[schemars(with = "i64", range(min = 0, max = 100_000))]
    pub available: u32,
}

/// Size of a slot.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct MachineTypeSpec {
    /// Processors, as a quantity.
    #[schemars(schema_with = "quantity")]
    #[serde(deserialize_with = "text")]
    pub cpu: String,

    /// Memory in bytes, as a quantity.
    #[schemars(schema_with = "quantity")]
    #[serde(deserialize_with = "text")]
    pub memory: String,

    /// GPUs. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
}

/// GPUs of a slot, and on which nodes they are. One of family, product and machine says the latter.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// Name of the extended resource, such as `nvidia.com/gpu`. Not with deviceClass.
    #[serde(
        default,
        deserialize_with = "or_default",
        rename = "type",
        skip_serializing_if = "String::is_empty"
    )]
    #[schemars(length(max = 317))]
    pub type_: String,

    /// Name of a DeviceClass whose devices are the GPUs, instead of an extended resource: Kubernetes claims them for the
    /// guest (DRAExtendedResource, on by default from Kubernetes 1.36 on). The class picks the devices, so none of family,
    /// product and machine has to be set.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub device_class: String,

    /// How many, as a quantity.
    #[schemars(schema_with = "quantity")]
    #[serde(deserialize_with = "text")]
    pub num: String,

    /// Value of the node label `nvidia.com/gpu.family`.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub family: String,

    /// Value of the node label `nvidia.com/gpu.product`.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub product: String,

    /// Value of the node label `nvidia.com/gpu.machine`.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub machine: String,
}

/// How the slots of a group are used.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// Ready: reservations and node pool are as the spec says.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The slots of each type.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub available_machines: Vec<AvailableMachine>,
}

/// How the slots of a type are used.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct AvailableMachine {
    /// Name of the type.
    pub name: String,

    /// Its slots.
    #[serde(default)]
    pub usage: Usage,
}

/// Slots by what they are used for.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq)]
#[serde(default)]
pub struct Usage {
    /// Slots that there may be: `available` of the type.
    #[schemars(with = "i64")]
    pub maximum: u32,

    /// Reservations that hold a place on a node.
    #[schemars(with = "i64")]
    pub reserved: u32,

    /// Guests that are on a node.
    #[schemars(with = "i64")]
    pub used: u32,

    /// Guests that wait for one.
    #[schemars(with = "i64")]
    pub waiting: u32,

    /// Slots that nodes back, whoever holds them now. Admission lets in no more guests than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub slots: Option<u32>,
}

/// The nodes of a group and how they are.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "imperator.tenzen-y.io",
    version = "v1alpha1",
    kind = "MachineNodePool",
    plural = "machinenodepools",
    category = "imperator",
    status = "MachineNodePoolStatus",
    doc = "The nodes of a machine group and how they are. Made from a Machine; edit that.",
    printcolumn(json_path = ".spec.machineGroupName", name = "Group", type_ = "string"),
    printcolumn(
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        name = "Ready",
        type_ = "string"
    ),
    printcolumn(
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#,
        name = "Message",
        type_ = "string",
        priority = 1
    ),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date")
)]
#[serde(rename_all = "camelCase")]
pub struct MachineNodePoolSpec {
    /// The machine group.
    #[schemars(length(max = 63))]
    pub machine_group_name: String,

    /// The nodes of the group, as its Machine has them.
    #[schemars(length(max = 4096))]
    pub node_pool: Vec<PoolNode>,

    /// The types of the group, in use or not.
    #[schemars(length(max = 256))]
    pub machine_type_stock: Vec<TypeName>,
}

/// How the nodes of a group are.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MachineNodePoolStatus {
    /// Ready: every node is marked as the spec says.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The nodes one by one.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub node_pool: Vec<NodeCondition>,
}

/// How a node of a group is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct NodeCondition {
    /// Name of the Node.
    pub name: String,

    /// Healthy: guests may run on it. Maintenance: its mode says that none may. Unhealthy: it isn't ready, or not there.
    #[schemars(extend("enum" = ["Healthy", "Maintenance", "Unhealthy"]))]
    pub condition: String,
}

/// A quantity may be a number as well.
fn text<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Text(String),
        Number(serde_json::Number),
    }
    Ok(match Either::deserialize(d)? {
        Either::Text(text) => text,
        Either::Number(number) => number.to_string(),
    })
}

/// The schema of `resource.Quantity`.
fn quantity(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
        "x-kubernetes-int-or-string": true,
    })
}

impl Machine {
    /// The object as controllers and admission need it.
    ///
    /// # Errors
    /// Everything that can't be read as what the field is for, with paths that begin at the custom resource.
    pub fn compile(&self) -> Result<domain::Machine, Vec<FieldError>> {
        let mut faults = Vec::new();
        let pool = self.spec.node_pool.iter().enumerate();
        let pool =
            pool.filter_map(|(i, node)| node.compile(&format!("spec.nodePool[{i}]"), &mut faults)).collect();
        let types = self.spec.machine_types.iter().enumerate();
        let types =
            types.filter_map(|(i, t)| t.compile(&format!("spec.machineTypes[{i}]"), &mut faults)).collect();
        if faults.is_empty() {
            Ok(domain::Machine {
                name: self.name_any(),
                group: self.labels().get(keys::MACHINE_GROUP).cloned(),
                pool,
                types,
            })
        } else {
            Err(faults)
        }
    }

    /// How the slots of a type are used, where somebody has said so.
    pub fn usage(&self, type_: &str) -> Option<domain::Usage> {
        let machines = &self.status.as_ref()?.available_machines;
        machines.iter().find(|machine| machine.name == type_).map(|machine| machine.usage.into())
    }
}

impl PoolNode {
    /// The node as controllers and admission need it; `None` after a fault.
    pub fn compile(&self, path: &str, faults: &mut Vec<FieldError>) -> Option<domain::PoolNode> {
        let Some(mode) = domain::Mode::of(&self.mode) else {
            faults.push(FieldError::new(
                format_args!("{path}.mode"),
                format_args!(
                    "is {:?}; use ready or maintenance",
                    self.mode.chars().take(80).collect::<String>()
                ),
            ));
            return None;
        };
        Some(domain::PoolNode {
            name: self.name.clone(),
            mode,
            taint: self.taint,
            types: self.machine_type.iter().map(|t| t.name.clone()).collect(),
        })
    }
}

impl MachineType {
    fn compile(&self, path: &str, faults: &mut Vec<FieldError>) -> Option<domain::MachineType> {
        // More exact than a container can ask for it would never be what an admitted Pod has.
        let mut read = |key: &str, text: &str| {
            let size: Result<Quantity, _> = text.parse();
            size.map(Quantity::ceil_milli)
                .map_err(|e| faults.push(FieldError::new(format_args!("{path}.spec.{key}"), e)))
                .ok()
        };
        let cpu = read("cpu", &self.spec.cpu);
        let memory = read("memory", &self.spec.memory);
        let gpu = match &self.spec.gpu {
            None => None,
            Some(gpu) => Some(domain::Gpu {
                resource: if gpu.device_class.is_empty() {
                    gpu.type_.clone()
                } else {
                    domain::of_device_class(&gpu.device_class)
                },
                num: read("gpu.num", &gpu.num)?,
                label: gpu.label(),
            }),
        };
        Some(domain::MachineType {
            name: self.name.clone(),
            cpu: cpu?,
            memory: memory?,
            gpu,
            available: self.available,
        })
    }
}

impl Gpu {
    /// Which node label has to have which value: the first of family, product and machine that is set.
    pub fn label(&self) -> Option<(&'static str, String)> {
        let labels = [
            (keys::GPU_FAMILY, &self.family),
            (keys::GPU_PRODUCT, &self.product),
            (keys::GPU_MACHINE, &self.machine),
        ];
        labels.into_iter().find(|(_, value)| !value.is_empty()).map(|(key, value)| (key, value.clone()))
    }
}

impl From<Usage> for domain::Usage {
    fn from(Usage { maximum, reserved, used, waiting, slots }: Usage) -> Self {
        Self { maximum, reserved, used, waiting, slots }
    }
}

impl From<domain::Usage> for Usage {
    fn from(domain::Usage { maximum, reserved, used, waiting, slots }: domain::Usage) -> Self {
        Self { maximum, reserved, used, waiting, slots }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn machine(gpu: serde_json::Value) -> Machine {
        serde_json::from_value(json!({
            "apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "m", "labels": {"imperator.tenzen-y.io/machine-group": "g"}},
            "spec": {"nodePool": [{"name": "n", "mode": "ready", "taint": null, "machineType": [{"name": "t"}]}],
                "machineTypes": [{"name": "t", "spec": {"cpu": 2, "memory": "1024Mi", "gpu": gpu}, "available": 1}]},
            "status": {"availableMachines": [{"name": "t", "usage": {"maximum": 1, "reserved": 1}}]}
        }))
        .unwrap()
    }

    #[test]
    fn a_machine_is_read_as_it_is_written() {
        let read = machine(json!({"type": "nvidia.com/gpu", "num": "500m", "family": "", "product": "p"}));
        let domain = read.compile().unwrap();
        assert_eq!(domain.group.as_deref(), Some("g"));
        assert!(!domain.pool[0].taint);
        assert_eq!(
            json!(domain.types[0].resources()),
            json!({"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "500m"})
        );
        assert_eq!(domain.types[0].gpu.as_ref().unwrap().label, Some((keys::GPU_PRODUCT, "p".to_owned())));
        assert_eq!(read.usage("t").unwrap().slots(), 1);
        assert_eq!(read.usage("other"), None);
        assert_eq!(machine(json!(null)).compile().unwrap().types[0].gpu, None);
        let mut exact = machine(json!({"type": "nvidia.com/gpu", "num": "0.0001"}));
        exact.spec.machine_types[0].spec.cpu = "0.33333".to_owned();
        assert_eq!(
            json!(exact.compile().unwrap().types[0].resources()),
            json!({"cpu": "334m", "memory": "1Gi", "nvidia.com/gpu": "1m"})
        );
    }

    #[test]
    fn gpus_of_a_device_class_are_asked_for_by_its_resource() {
        let domain = machine(json!({"deviceClass": "gpu.example.com", "num": 1})).compile().unwrap();
        let gpu = domain.types[0].gpu.as_ref().unwrap();
        assert_eq!(gpu.resource, "deviceclass.resource.kubernetes.io/gpu.example.com");
        assert_eq!(gpu.label, None);
    }

    #[test]
    fn what_cannot_be_read_is_told_with_its_path() {
        let mut wrong = machine(json!({"type": "t", "num": "x"}));
        wrong.spec.node_pool[0].mode = "off".to_owned();
        wrong.spec.machine_types[0].spec.cpu = "many".to_owned();
        let paths: Vec<_> = wrong.compile().unwrap_err().into_iter().map(|f| f.path).collect();
        assert_eq!(
            paths,
            ["spec.nodePool[0].mode", "spec.machineTypes[0].spec.cpu", "spec.machineTypes[0].spec.gpu.num"]
        );
    }
}
