//! The keys as the reference tells them.

use super::*;

/// Where on an object a key stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// In `metadata.labels`.
    Label,
    /// In `metadata.annotations`.
    Annotation,
    /// In `spec.taints` of a Node.
    Taint,
    /// In `metadata.finalizers`.
    Finalizer,
    /// In `spec.schedulingGates` of a Pod.
    Gate,
    /// In `resources` of a container.
    Resource,
}

impl Form {
    /// All of them, in the order of the reference.
    pub const ALL: [Self; 6] =
        [Self::Label, Self::Annotation, Self::Taint, Self::Finalizer, Self::Gate, Self::Resource];

    /// Its name, as a heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Label => "Labels",
            Self::Annotation => "Annotations",
            Self::Taint => "Taints",
            Self::Finalizer => "Finalizers",
            Self::Gate => "Scheduling gates",
            Self::Resource => "Extended resources",
        }
    }
}

/// One use of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Where on the object it stands.
    pub form: Form,
    /// The key, or what it begins with.
    pub key: &'static str,
    /// On which objects.
    pub on: &'static str,
    /// Who writes it.
    pub by: &'static str,
    /// What it means, with its values.
    pub meaning: &'static str,
}

const fn key(
    form: Form,
    key: &'static str,
    on: &'static str,
    by: &'static str,
    meaning: &'static str,
) -> Key {
    Key { form, key, on, by, meaning }
}

/// Constants of this module that are no keys: domains, API groups, values, and names of objects.
pub const NO_KEYS: &[&str] = &[
    DOMAIN,
    VIRTUAL_NODE,
    OFFLOADING_GROUP,
    MACHINE_GROUP_DOMAIN,
    GUEST,
    RESERVATION,
    INJECT_ENABLED,
    CORE_NAMESPACE,
    RESERVATION_PRIORITY,
    PRIORITY,
    SYSTEM_NAMESPACE,
    ADMIN_NAMESPACE,
    GROUP,
    WORKLOAD_GROUP,
    DEVICE_GROUP,
    MANAGER,
    WEBHOOK,
    WEBHOOK_CONFIGURATION,
    WEBHOOK_SELF_SIGNED,
    MANAGER_SELF_SIGNED,
    CA_CONFIG_MAP,
    AGENT,
];

use Form::{Annotation, Finalizer, Gate, Label, Resource, Taint};

/// Every key with each of its uses.
#[rustfmt::skip]
pub const TABLE: &[Key] = &[
    key(Label, TENANT, "Namespaces, companions, claims", "manager; administrators on a namespace that will be adopted", "The owner: the tenant's id"),
    key(Label, NODE_TENANT, "Nodes of DPUs", "manager", "The owner: the tenant's id. No kubelet may set it on its own Node"),
    key(Label, RULE, "companions, claims", "manager", "Name of the rule that made it"),
    key(Label, WORKLOAD, "companions, claims", "manager", "The workload that it serves: its id, or a hash if the id is no valid label value"),
    key(Label, DPU_HOST, "Nodes of DPUs", "the platform (NVIDIA's DOCA Platform Framework)", "The host that the DPU sits in: the name of the host's Node in the tenant's cluster. `--host-label` names another key"),
    key(Label, POD_SECURITY_ENFORCE, "Namespaces of tenants", "manager", "The Tenant's `podSecurity`, which the API server's plugin PodSecurity enforces"),
    key(Label, ADMIN_ACCESS, "Namespaces", "not by Outrigger; read by Kubernetes", "`true`: claims may request devices that are allocated to others. No tenant's namespace may have it"),
    key(Label, OFFLOADED, "Namespaces", "manager, or Liqo", "`true`: a NamespaceOffloading lets Pods onto virtual nodes"),
    key(Label, NODE_TYPE, "Nodes", "Liqo", "`virtual-node` on virtual nodes"),
    key(Label, REMOTE_CLUSTER, "virtual nodes", "Liqo", "Id of the cluster that the node stands for"),
    key(Label, WEBHOOK_SKIP, "NamespaceOffloadings", "administrators", "`true`: exempt from the validating webhook"),
    key(Label, MACHINE_GROUP, "Machines, MachineNodePools, guests, reservations", "their creators; on reservations and pools the manager", "The machine group"),
    key(Label, MACHINE_TYPE, "guests, reservations", "the guest's creator; manager", "The machine type"),
    key(Label, POD_ROLE, "guests, reservations", "the guest's creator; manager", "`guest`: occupies a slot. `reservation`: keeps one free"),
    key(Label, INJECTING_CONTAINER, "guests", "the guest's creator", "The container that gets the slot's resources; else the first"),
    key(Label, NODE_POOL, "Nodes of a pool", "manager", "`ready`, `not-ready` or `maintenance`"),
    key(Label, MACHINE_TYPES, "Nodes of a pool", "manager", "For the machine type that the node offers. Its value: the machine group"),
    key(Label, INJECT_RESOURCE, "Namespaces", "administrators", "`enabled`: guests in it get slots"),
    key(Label, GPU_FAMILY, "Nodes", "NVIDIA's GPU feature discovery", "The family of its GPUs"),
    key(Label, GPU_PRODUCT, "Nodes", "NVIDIA's GPU feature discovery", "The product name of its GPUs"),
    key(Label, GPU_MACHINE, "Nodes", "NVIDIA's GPU feature discovery", "The model of the machine"),
    key(Annotation, WORKLOAD, "companions", "manager", "The workload as JSON, for the webhook, which removes it unless the rule injects under this key"),
    key(Annotation, ADMIN_RULE, "companions of admin rules", "manager", "Name of the rule, in full"),
    key(Annotation, RULE_UID, "companions", "manager", "Uid of the rule that made it"),
    key(Annotation, RULE_GENERATION, "companions", "manager", "`metadata.generation` of the rule at that time: the webhook waits for at least this generation"),
    key(Annotation, TEMPLATE_HASH, "companions", "manager", "Hash of template and placement. A companion with another one is replaced"),
    key(Annotation, HOST, "companions with `SameNode`", "manager", "Node of the tenant's cluster that the workload runs on"),
    key(Annotation, INJECTED, "companions", "webhook, manager", "JSON list of the annotations that the rule has injected"),
    key(Annotation, ORIGIN, "WorkloadRules in the infrastructure cluster", "manager", "Uid of the rule in the tenant's cluster that the agent made it from"),
    key(Annotation, ABANDON, "WorkloadRules in a tenant's cluster", "tenants", "`true` on a rule that is being deleted: the agent removes its finalizer without the infrastructure cluster"),
    key(Annotation, POD_CLAIM_NAME, "ResourceClaims", "Kubernetes", "The entry of the Pod's `spec.resourceClaims` that the claim was made for"),
    key(Annotation, MIRROR_POD, "Pods", "kubelets", "Makes the Pod the mirror of a static one, which no scheduler has placed. Refused in tenants' namespaces"),
    key(Annotation, MACHINE_GROUP, "Nodes of a pool", "manager", "The machine group"),
    key(Taint, TENANT, "Nodes of DPUs", "manager", "`=<tenant>:NoSchedule`: only that tenant's Pods"),
    key(Taint, HANDOVER, "Nodes of DPUs", "manager", "`=<next tenant>:NoSchedule`: the DPU is being handed over, nothing new starts on it"),
    key(Taint, NOT_ALLOWED, "virtual nodes", "Liqo", "`=true:NoExecute`: only Pods of offloaded namespaces"),
    key(Taint, NODE_POOL, "Nodes of a pool with `taint: true`", "manager", "As the label, with `NoSchedule`"),
    key(Taint, MACHINE_TYPES, "Nodes of a pool with `taint: true`", "manager", "As the label, with `NoSchedule`"),
    key(Taint, NOT_READY[0], "Nodes", "Kubernetes", "Makes a node of a pool `not-ready`"),
    key(Taint, NOT_READY[1], "Nodes", "Kubernetes", "Makes a node of a pool `not-ready`"),
    key(Taint, NOT_READY[2], "Nodes", "Kubernetes", "Makes a node of a pool `not-ready`"),
    key(Taint, NOT_READY[3], "Nodes", "Kubernetes", "Makes a node of a pool `not-ready`"),
    key(Finalizer, TENANT_FINALIZER, "Tenants", "manager", "Their Pods are deleted and their DPUs released first"),
    key(Finalizer, RULE_FINALIZER, "WorkloadRules in a tenant's cluster", "agent", "The rule is deleted from the infrastructure cluster first"),
    key(Finalizer, ADMIN_RULE_FINALIZER, "AdminWorkloadRules", "manager", "Their companions are deleted first, if these are in another namespace"),
    key(Finalizer, OFFLOADING_FINALIZER, "NamespaceOffloadings", "manager", "The namespace loses its label first"),
    key(Finalizer, POOL_FINALIZER, "MachineNodePools", "manager", "Labels, annotation and taints of the pool are removed from its Nodes first"),
    key(Gate, ADMISSION_GATE, "companions", "manager", "The webhook removes it. A companion without admission by the webhook is never scheduled"),
    key(Resource, DEVICE_CLASS_RESOURCE, "containers", "the Pod's creator", "With a DeviceClass after the slash: a device of that class"),
];

/// The keys of machine types; `machine::type_key` makes them.
const MACHINE_TYPES: &str = "imperator.tenzen-y.io/<machine type>";

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of the constants in the file beside this one.
    fn constants() -> Vec<String> {
        let source = include_str!("../keys.rs");
        let (source, _) = source.split_once("#[cfg(test)]").unwrap();
        let of_lists = source.lines().filter(|line| line.starts_with("    \"node.kubernetes.io/"));
        source
            .lines()
            .filter(|line| line.starts_with("pub const ") && line.contains(": &str = "))
            .chain(of_lists)
            .map(|line| line.split('"').nth(1).unwrap().to_owned())
            .collect()
    }

    #[test]
    fn the_table_has_every_key() {
        let constants = constants();
        assert!(constants.len() > 50, "{}", constants.len());
        for constant in &constants {
            let told = TABLE.iter().any(|key| key.key == constant);
            assert!(told || NO_KEYS.contains(&constant.as_str()), "{constant} is in neither list");
        }
    }

    #[test]
    fn each_use_is_told_once() {
        let mut seen = std::collections::BTreeSet::new();
        for Key { form, key, on, by, meaning } in TABLE {
            assert!(seen.insert((form, key, on)), "{form:?} {key} is there twice");
            assert!(!on.is_empty() && !by.is_empty(), "{key}");
            assert!(
                meaning.len() > 10 && !meaning.ends_with('.') && !meaning.contains('|'),
                "{key}: {meaning}"
            );
        }
    }
}
