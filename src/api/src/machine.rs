//! `Machine` and `MachineNodePool` (`imperator.tenzen-y.io/v1alpha1`): groups of nodes whose capacity is allocated in
//! slots. The resources have the fields of Imperator's, for clusters in which Imperator's own definitions are not
//! installed.

// The derive generates each resource in a private module.
#![allow(unreachable_pub)]
// Printer columns share types.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema, ResourceExt};
use outrigger_core::field::{FieldError, FieldErrors};
use outrigger_core::keys;
use outrigger_core::machine as domain;
use outrigger_core::quantity::Quantity;
use outrigger_core::text::quoted;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::null::or_default;

// Quantities and modes are strings, although the schema is stricter: an object that is older than the schema must not prevent
// the list from being read.
/// MachineSpec defines a group of nodes and the machine types of their slots.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "imperator.tenzen-y.io",
    version = "v1alpha1",
    kind = "Machine",
    plural = "machines",
    category = "imperator",
    status = "MachineStatus",
    doc = "Machine defines a group of nodes and the machine types whose slots the nodes provide to guests. The label imperator.tenzen-y.io/machine-group names the group.",
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
    /// nodePool is the list of the nodes of the group. A node belongs to one group only.
    #[schemars(length(max = 4096))]
    pub node_pool: Vec<PoolNode>,

    /// machineTypes is the list of slot types.
    #[schemars(length(max = 256))]
    pub machine_types: Vec<MachineType>,
}

/// PoolNode is a node of a pool.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PoolNode {
    /// name is the name of the Node.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// mode is ready if guests may run on the node, and maintenance if they may not.
    #[schemars(extend("enum" = ["ready", "maintenance"]))]
    pub mode: String,

    /// taint is true if the node is tainted so that only guests run on it. Defaults to false.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(default)]
    pub taint: bool,

    /// machineType names the machine type whose slots the node provides. It has exactly one entry.
    #[schemars(length(max = 16))]
    pub machine_type: Vec<TypeName>,
}

/// TypeName refers to a machine type by its name.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct TypeName {
    /// name is the name of a machine type of the same group.
    #[schemars(length(max = 63))]
    pub name: String,
}

/// MachineType defines a type of slots.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct MachineType {
    /// name is the name of the type, unique in the group. It is also the name part of a node label.
    #[schemars(length(max = 63))]
    pub name: String,

    /// spec is the size of a slot.
    pub spec: MachineTypeSpec,

    /// available is the maximum number of slots.
    #[schemars(with = "i64", range(min = 0, max = 100_000))]
    pub available: u32,
}

/// MachineTypeSpec is the size of a slot.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct MachineTypeSpec {
    /// cpu is the number of processors, as a quantity.
    #[schemars(schema_with = "quantity")]
    #[serde(deserialize_with = "text")]
    pub cpu: String,

    /// memory is the memory in bytes, as a quantity.
    #[schemars(schema_with = "quantity")]
    #[serde(deserialize_with = "text")]
    pub memory: String,

    /// gpu describes the GPUs. Absent if a slot has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
}

/// Gpu describes the GPUs of a slot, and selects the nodes that have them by family, product or machine.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// type is the name of the extended resource, in the domain `nvidia.com`, such as `nvidia.com/gpu`. Mutually exclusive with
    /// deviceClass.
    #[serde(
        default,
        deserialize_with = "or_default",
        rename = "type",
        skip_serializing_if = "String::is_empty"
    )]
    #[schemars(length(max = 317))]
    pub type_: String,

    /// deviceClass is the name of a DeviceClass whose devices are the GPUs. Kubernetes claims them for the guest
    /// (DRAExtendedResource, enabled by default since Kubernetes 1.36). The class selects the devices, so family,
    /// product and machine are optional.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub device_class: String,

    /// num is the number of GPUs, as a quantity.
    #[schemars(schema_with = "quantity")]
    #[serde(deserialize_with = "text")]
    pub num: String,

    /// family is the required value of the node label `nvidia.com/gpu.family`.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub family: String,

    /// product is the required value of the node label `nvidia.com/gpu.product`.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub product: String,

    /// machine is the required value of the node label `nvidia.com/gpu.machine`.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub machine: String,
}

/// MachineStatus is the observed state of a Machine.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// observedGeneration is the `metadata.generation` of the spec that this status reports on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// conditions are the conditions of the group. Ready: reservations and node pool correspond to the spec.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// availableMachines is the usage of the slots of each type.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub available_machines: Vec<AvailableMachine>,
}

/// AvailableMachine is the usage of the slots of a type.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct AvailableMachine {
    /// name is the name of the type.
    pub name: String,

    /// usage counts the slots of the type.
    #[serde(default)]
    pub usage: Usage,
}

/// Usage counts slots by their use.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq)]
#[serde(default)]
pub struct Usage {
    /// maximum is the maximum number of slots, which is `available` of the type.
    #[schemars(with = "i64")]
    pub maximum: u32,

    /// reserved is the number of reservations that hold a slot on a node.
    #[schemars(with = "i64")]
    pub reserved: u32,

    /// used is the number of guests that are bound to a node.
    #[schemars(with = "i64")]
    pub used: u32,

    /// waiting is the number of guests that wait for a slot.
    #[schemars(with = "i64")]
    pub waiting: u32,

    /// gated is the number of those of them that have scheduling gates. They hold nothing: a guest takes its slot when its
    /// last gate is removed. Absent if there are none.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(with = "Option<i64>")]
    pub gated: u32,

    /// slots is the number of slots that nodes provide, free or in use. Admission accepts no more guests than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub slots: Option<u32>,
}

/// MachineNodePoolSpec lists the nodes of a machine group.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "imperator.tenzen-y.io",
    version = "v1alpha1",
    kind = "MachineNodePool",
    plural = "machinenodepools",
    category = "imperator",
    status = "MachineNodePoolStatus",
    doc = "MachineNodePool shows the nodes of a machine group and their state. It is generated from a Machine, which is the object to edit.",
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
    /// machineGroupName is the name of the machine group.
    #[schemars(length(max = 63))]
    pub machine_group_name: String,

    /// nodePool is the list of the nodes of the group, copied from its Machine.
    #[schemars(length(max = 4096))]
    pub node_pool: Vec<PoolNode>,

    /// machineTypeStock is the list of the machine types of the group, used or not.
    #[schemars(length(max = 256))]
    pub machine_type_stock: Vec<TypeName>,
}

/// MachineNodePoolStatus is the observed state of the nodes of a group.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MachineNodePoolStatus {
    /// observedGeneration is the `metadata.generation` of the spec that this status reports on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// conditions are the conditions of the pool. Ready: every node is marked as the spec requires.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// nodePool is the state of each node.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub node_pool: Vec<NodeCondition>,
}

/// NodeCondition is the state of a node of a group.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct NodeCondition {
    /// name is the name of the Node.
    pub name: String,

    /// condition is the state of the node. Healthy: guests may run on it. Maintenance: its mode is maintenance.
    /// Unhealthy: it isn't ready or doesn't exist.
    #[schemars(extend("enum" = ["Healthy", "Maintenance", "Unhealthy"]))]
    pub condition: String,
}

// serde passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Reads a quantity, which may also be a number.
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

/// Returns the schema of `resource.Quantity`.
fn quantity(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
        "x-kubernetes-int-or-string": true,
    })
}

impl Machine {
    /// Converts the object to the type that controllers and admission use.
    pub fn compile(&self) -> Result<domain::Machine, Vec<FieldError>> {
        let mut errors = Vec::new();
        let pool = self.spec.node_pool.iter().enumerate();
        let pool =
            pool.filter_map(|(i, node)| node.compile(&format!("spec.nodePool[{i}]"), &mut errors)).collect();
        let types = self.spec.machine_types.iter().enumerate();
        let types =
            types.filter_map(|(i, t)| t.compile(&format!("spec.machineTypes[{i}]"), &mut errors)).collect();
        if errors.is_empty() {
            Ok(domain::Machine {
                name: self.name_any(),
                group: self.labels().get(keys::MACHINE_GROUP).cloned(),
                pool,
                types,
            })
        } else {
            Err(errors)
        }
    }

    /// Returns the usage of the slots of a type, if the status reports it.
    pub fn usage(&self, type_: &str) -> Option<domain::Usage> {
        let machines = &self.status.as_ref()?.available_machines;
        machines.iter().find(|machine| machine.name == type_).map(|machine| machine.usage.into())
    }
}

impl PoolNode {
    /// Converts the node to the type that controllers and admission use; returns `None` after adding a validation
    /// error.
    pub fn compile(&self, path: &str, errors: &mut Vec<FieldError>) -> Option<domain::PoolNode> {
        let Some(mode) = domain::Mode::of(&self.mode) else {
            errors.add(
                format_args!("{path}.mode"),
                format_args!("is {:?}; use ready or maintenance", quoted(&self.mode)),
            );
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
    fn compile(&self, path: &str, errors: &mut Vec<FieldError>) -> Option<domain::MachineType> {
        // Containers request whole milli-units; a finer size would never equal the requests of an admitted Pod.
        let mut read = |key: &str, text: &str| {
            let size: Result<Quantity, _> = text.parse();
            size.map(Quantity::ceil_milli).map_err(|e| errors.add(format_args!("{path}.spec.{key}"), e)).ok()
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
    /// Returns the node label that the GPUs require: the first of family, product and machine that is set.
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
    fn from(Usage { maximum, reserved, used, waiting, gated, slots }: Usage) -> Self {
        Self { maximum, reserved, used, waiting, gated, slots }
    }
}

impl From<domain::Usage> for Usage {
    fn from(domain::Usage { maximum, reserved, used, waiting, gated, slots }: domain::Usage) -> Self {
        Self { maximum, reserved, used, waiting, gated, slots }
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
    fn a_machine_is_converted_to_the_domain() {
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
    fn gpus_of_a_device_class_are_requested_as_its_extended_resource() {
        let domain = machine(json!({"deviceClass": "gpu.example.com", "num": 1})).compile().unwrap();
        let gpu = domain.types[0].gpu.as_ref().unwrap();
        assert_eq!(gpu.resource, "deviceclass.resource.kubernetes.io/gpu.example.com");
        assert_eq!(gpu.label, None);
    }

    #[test]
    fn invalid_fields_are_reported_with_their_paths() {
        let mut wrong = machine(json!({"type": "t", "num": "x"}));
        wrong.spec.node_pool[0].mode = "off".to_owned();
        wrong.spec.machine_types[0].spec.cpu = "many".to_owned();
        let paths: Vec<_> = wrong.compile().unwrap_err().into_iter().map(|e| e.path).collect();
        assert_eq!(
            paths,
            ["spec.nodePool[0].mode", "spec.machineTypes[0].spec.cpu", "spec.machineTypes[0].spec.gpu.num"]
        );
    }
}
