//! The keys with their meanings, as the reference tells them.

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
    /// In `status.conditions`.
    Condition,
}

impl Form {
    /// All of them, in the order of the reference.
    pub const ALL: [Self; 7] = [
        Self::Label,
        Self::Annotation,
        Self::Taint,
        Self::Finalizer,
        Self::Gate,
        Self::Resource,
        Self::Condition,
    ];

    /// Its name, as a heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Label => "Labels",
            Self::Annotation => "Annotations",
            Self::Taint => "Taints",
            Self::Finalizer => "Finalizers",
            Self::Gate => "Scheduling gates",
            Self::Resource => "Extended resources",
            Self::Condition => "Conditions of Pods and Nodes",
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

/// Defines a constant for each key, whose documentation is the meaning of its uses, and [`TABLE`] of all uses.
macro_rules! keys {
    ($($(#[$doc:meta])* pub const $name:ident = $key:literal
        $(, $form:ident on $on:literal by $by:literal: $meaning:literal)+;)*) => {
        $($(#[doc = concat!(stringify!($form), " on ", $on, ". ", $meaning, ".")])+
        $(#[$doc])*
        pub const $name: &str = $key;)*

        /// Every key with each of its uses.
        pub const TABLE: &[Key] = &[$($(
            Key { form: Form::$form, key: $name, on: $on, by: $by, meaning: $meaning },
        )+)*];
    };
}

keys! {
    pub const TENANT = "outrigger.dev/tenant",
        Label on "Namespaces, companions, claims" by "manager; administrators on a namespace that will be adopted": "The owner: the tenant's id",
        Label on "ResourceSlices of a tenant's cluster" by "agent": "The tenant whose agent published it",
        Taint on "Nodes of DPUs" by "manager": "`=<tenant>:NoSchedule`: only that tenant's Pods";
    /// The prefix is one that a kubelet may not set on its own Node (the NodeRestriction admission plugin), so a taken-over
    /// DPU can't move itself to another tenant.
    pub const NODE_TENANT = "outrigger.dev.node-restriction.kubernetes.io/tenant",
        Label on "Nodes of DPUs" by "manager": "The owner: the tenant's id. No kubelet may set it on its own Node";
    /// Kubelets can't set it, as [`NODE_TENANT`], so that no DPU makes itself the primary one.
    pub const PRIMARY = "outrigger.dev.node-restriction.kubernetes.io/primary",
        Label on "Nodes of DPUs" by "administrators": "`true`: companions of rules with `SameNodePrimary` run on this DPU, and not on another one of its host";
    pub const RULE = "outrigger.dev/rule",
        Label on "companions, claims" by "manager": "Name of the rule that made it";
    /// The label's value is [`crate::ids::WorkloadId::label_value`].
    pub const WORKLOAD = "outrigger.dev/workload",
        Label on "companions, claims" by "manager": "The workload that it serves: its id, or a hash if the id is no valid label value",
        Annotation on "companions" by "manager": "The workload as JSON, for the webhook, which removes it unless the rule injects under this key";
    /// `DPUNodeNameLabel` of DPF's API.
    pub const DPU_NODE_NAME = "provisioning.dpu.nvidia.com/dpunode-name",
        Label on "Nodes of DPUs" by "the platform (NVIDIA's DOCA Platform Framework)": "The host that the DPU sits in: the name of the host's Node in the tenant's cluster, unless `spec.hostNames` of the Tenant maps another name to it. `--host-label` names other keys";
    /// Deprecated in DPF, which removes it with 26.7.
    pub const DPU_HOST = "provisioning.dpu.nvidia.com/host",
        Label on "Nodes of DPUs" by "the platform (earlier releases of NVIDIA's DOCA Platform Framework)": "The same, where the Node has no label `provisioning.dpu.nvidia.com/dpunode-name`";
    /// KEP-2579.
    pub const POD_SECURITY_ENFORCE = "pod-security.kubernetes.io/enforce",
        Label on "Namespaces of tenants" by "manager": "The Tenant's `podSecurity`, which the API server's plugin PodSecurity enforces";
    /// KEP-5018.
    pub const ADMIN_ACCESS = "resource.kubernetes.io/admin-access",
        Label on "Namespaces" by "not by Outrigger; read by Kubernetes": "`true`: claims may request devices that are allocated to others. No tenant's namespace may have it";
    pub const OFFLOADED = "liqo.io/scheduling-enabled",
        Label on "Namespaces" by "manager, or Liqo": "`true`: a NamespaceOffloading lets Pods onto virtual nodes";
    /// See [`VIRTUAL_NODE`].
    pub const NODE_TYPE = "liqo.io/type",
        Label on "Nodes" by "Liqo": "`virtual-node` on virtual nodes";
    pub const REMOTE_CLUSTER = "liqo.io/remote-cluster-id",
        Label on "virtual nodes" by "Liqo": "Id of the cluster that the node stands for";
    pub const WEBHOOK_SKIP = "liqo.io/webhook-skip",
        Label on "NamespaceOffloadings" by "administrators": "`true`: exempt from the validating webhook";
    pub const MACHINE_GROUP = "imperator.tenzen-y.io/machine-group",
        Label on "Machines, MachineNodePools, guests, reservations" by "their creators; on reservations and pools the manager": "The machine group",
        Annotation on "Nodes of a pool" by "manager": "The machine group";
    pub const MACHINE_TYPE = "imperator.tenzen-y.io/machine-type",
        Label on "guests, reservations" by "the guest's creator; manager": "The machine type";
    /// See [`GUEST`] and [`RESERVATION`].
    pub const POD_ROLE = "imperator.tenzen-y.io/pod-role",
        Label on "guests, reservations" by "the guest's creator; manager": "`guest`: occupies a slot. `reservation`: keeps one free";
    pub const INJECTING_CONTAINER = "imperator.tenzen-y.io/injecting-container",
        Label on "guests" by "the guest's creator": "The container that gets the slot's resources";
    /// Imperator's design document calls [`INJECTING_CONTAINER`] so in one place.
    pub const INJECT_RESOURCE_CONTAINER = "imperator.tenzen-y.io/inject-resource",
        Label on "guests" by "the guest's creator": "The same as `imperator.tenzen-y.io/injecting-container`";
    /// Another webhook may add containers and cause a second call, in which the first container is another one. The domain is not
    /// Outrigger's own, whose keys only the manager may set in a tenant's namespace.
    pub const INJECTED_CONTAINER = "imperator.tenzen-y.io/injected-container",
        Annotation on "guests" by "webhook": "The container that has got the slot's resources. It keeps them when admission is called again";
    pub const DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container",
        Annotation on "guests" by "the guest's creator, or an injector": "The Pod's default container, which gets the slot's resources where no label names one";
    pub const NODE_POOL = "imperator.tenzen-y.io/node-pool",
        Label on "Nodes of a pool" by "manager": "`ready`, `not-ready` or `maintenance`",
        Taint on "Nodes of a pool with `taint: true`" by "manager": "As the label, with `NoSchedule`";
    /// [`crate::machine::type_key`] makes it.
    pub const MACHINE_TYPES = "imperator.tenzen-y.io/<machine type>",
        Label on "Nodes of a pool" by "manager": "For the machine type that the node offers. Its value: the machine group",
        Taint on "Nodes of a pool with `taint: true`" by "manager": "As the label, with `NoSchedule`";
    /// Imperator's key: the domain really has no "-y". See [`INJECT_ENABLED`].
    pub const INJECT_RESOURCE = "imperator.tenzen.io/inject-resource",
        Label on "Namespaces" by "administrators": "`enabled`: guests in it get slots";
    /// The tenant's cluster doesn't know admin rules, so it can't tell which Pods they match.
    pub const COMPANIONS_GATE_NAMESPACE = "outrigger.dev/companions-gate",
        Label on "Namespaces in a tenant's cluster" by "tenants": "`true`: all of its Pods get the readiness gate, for rules of the platform and for rules that come later";
    /// Without it the tenant's cluster creates Pods also while the agent can't be asked.
    pub const COMPANIONS_FIRST_NAMESPACE = "outrigger.dev/companions-first",
        Label on "Namespaces in a tenant's cluster" by "tenants": "`required`: no Pod is created in it while the agent can't say whether the Pod may start before its companions";
    /// The agent watches only claims with this label. They get it from their template.
    pub const COMPANIONS_WAIT = "outrigger.dev/companions-wait",
        Label on "ResourceClaims in a tenant's cluster" by "agent, by the ResourceClaimTemplate": "`binding`: the claim of a Pod that isn't bound before its companions are Ready";
    pub const GPU_FAMILY = "nvidia.com/gpu.family",
        Label on "Nodes" by "NVIDIA's GPU feature discovery": "The family of its GPUs";
    pub const GPU_PRODUCT = "nvidia.com/gpu.product",
        Label on "Nodes" by "NVIDIA's GPU feature discovery": "The product name of its GPUs";
    pub const GPU_MACHINE = "nvidia.com/gpu.machine",
        Label on "Nodes" by "NVIDIA's GPU feature discovery": "The model of the machine";
    /// A label may be too short for the name.
    pub const ADMIN_RULE = "outrigger.dev/admin-rule",
        Annotation on "companions of admin rules" by "manager": "Name of the rule, in full";
    pub const RULE_UID = "outrigger.dev/rule-uid",
        Annotation on "companions" by "manager": "Uid of the rule that made it";
    pub const RULE_GENERATION = "outrigger.dev/rule-generation",
        Annotation on "companions" by "manager": "`metadata.generation` of the rule at that time: the webhook waits for at least this generation";
    /// A replica that holds an earlier claim knows less than the one that made the companion.
    pub const STREAM_CLAIM = "outrigger.dev/stream-claim",
        Annotation on "companions" by "manager": "Uid of the Tenant and number of the claim on its stream with which it was made: a manager that knows only earlier claims doesn't touch it";
    pub const REPLICA = "replicas.outrigger.dev/<replica>",
        Annotation on "the Lease `outrigger-manager-replicas`" by "manager": "When the replica has renewed this last: the leader takes over the claims of one that doesn't for a minute";
    /// It is written once, and removed when the workload is there again ([`crate::companion::Lingering`]).
    pub const WORKLOAD_ENDED = "outrigger.dev/workload-ended",
        Annotation on "companions of rules with `lingerSeconds`" by "manager": "When the workload ended, by the clock of the manager. The companion is deleted `lingerSeconds` later";
    /// It is read by [`crate::companion::Held`].
    pub const ROLLOUT_HELD = "outrigger.dev/rollout-held",
        Annotation on "companions of AdminWorkloadRules" by "manager": "Since when its replacement waits for the workload's owner and PodDisruptionBudgets, or for companions without room, and the rule's generation. It waits for `--admin-rollout-deadline`";
    /// The manager sets it when it makes a companion in the place of none, and again in the place of one that has it and that never
    /// had a Node. One that a rollout has deleted and one that was missing when the manager began aren't known to be of that kind.
    pub const FIRST_COMPANION = "outrigger.dev/first-companion",
        Annotation on "companions of workloads that have had none that ran" by "manager": "`true`: while the scheduler finds no Node for it, it doesn't count for `maxUnavailable`";
    pub const TEMPLATE_HASH = "outrigger.dev/template-hash",
        Annotation on "companions" by "manager": "Hash of template and placement as they were written. A companion with another one is replaced, unless it has `outrigger.dev/content-hash`, or is changed in place";
    /// Releases before 0.2 don't know it and compare templates as they are written.
    pub const CONTENT_HASH = "outrigger.dev/content-hash",
        Annotation on "companions of rules whose templates have what the API server doesn't store" by "manager": "Hash of what template and placement mean. A companion with another one is replaced";
    /// [`crate::companion::parts`] makes it. Releases before 0.2 don't know it and replace the companion.
    pub const TEMPLATE_PARTS = "outrigger.dev/template-parts",
        Annotation on "companions that are Pods" by "manager": "Hashes of the parts of its template: what can't be changed in place, amounts of cpu and memory, images, tolerations, `activeDeadlineSeconds`. They tell whether a companion of another template can be changed in place";
    /// It is written with a change of images ([`crate::companion::Fields`]).
    pub const RESTARTS = "outrigger.dev/restarts",
        Annotation on "companions whose images, tolerations or `activeDeadlineSeconds` were changed in place" by "manager": "The containers that ran an earlier image by then, each as `IDENTIFIER=IMAGE`. As long as one of them runs, the companion counts as down for `maxUnavailable`";
    pub const HOST = "outrigger.dev/host",
        Annotation on "companions with `SameNode`, `SameNodePrimary` or `SameNodeAll`" by "manager": "The host that the workload runs on: the name of its Node in the tenant's cluster, or what the Tenant's `spec.hostNames` maps that to";
    /// With the rule and the workload it identifies the companion.
    pub const DPU = "outrigger.dev/dpu",
        Annotation on "companions with `SameNodeAll`" by "manager": "The DPU that it runs on: the name of its Node. There is one companion for each DPU of the host";
    /// It lets the annotations be taken away again.
    pub const INJECTED = "outrigger.dev/injected",
        Annotation on "companions" by "webhook, manager": "JSON list of the annotations that the rule has injected";
    pub const ORIGIN = "outrigger.dev/origin",
        Annotation on "WorkloadRules in the infrastructure cluster" by "manager": "Uid of the rule in the tenant's cluster that the agent made it from";
    pub const ABANDON = "outrigger.dev/abandon",
        Annotation on "WorkloadRules in a tenant's cluster" by "tenants": "`true` on a rule that is being deleted: the agent removes its finalizer without the infrastructure cluster";
    pub const NETWORK_STATUS = "k8s.v1.cni.cncf.io/network-status",
        Annotation on "Pods" by "Multus and other network plugins, when the Pod starts": "The Pod's networks";
    pub const NETWORKS_STATUS = "k8s.v1.cni.cncf.io/networks-status",
        Annotation on "Pods" by "Multus and other network plugins, when the Pod starts": "The same under its former name";
    pub const CALICO_CONTAINER = "cni.projectcalico.org/containerID",
        Annotation on "Pods" by "Calico, when the Pod starts": "The Pod's sandbox";
    pub const CALICO_IP = "cni.projectcalico.org/podIP",
        Annotation on "Pods" by "Calico, when the Pod starts": "The Pod's address";
    pub const CALICO_IPS = "cni.projectcalico.org/podIPs",
        Annotation on "Pods" by "Calico, when the Pod starts": "The Pod's addresses";
    pub const OVN_NETWORKS = "k8s.ovn.org/pod-networks",
        Annotation on "Pods" by "OVN-Kubernetes, when the Pod has a Node": "The Pod's addresses in each network";
    pub const KUBE_OVN_IP = "ovn.kubernetes.io/ip_address",
        Annotation on "Pods" by "Kube-OVN, before the Pod starts, or the Pod's creator": "The Pod's address";
    pub const KUBE_OVN_MAC = "ovn.kubernetes.io/mac_address",
        Annotation on "Pods" by "Kube-OVN, before the Pod starts, or the Pod's creator": "The Pod's hardware address";
    pub const KUBE_OVN_CIDR = "ovn.kubernetes.io/cidr",
        Annotation on "Pods" by "Kube-OVN, before the Pod starts": "The subnet's addresses";
    pub const KUBE_OVN_GATEWAY = "ovn.kubernetes.io/gateway",
        Annotation on "Pods" by "Kube-OVN, before the Pod starts": "The subnet's gateway";
    /// KEP-3063.
    pub const POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name",
        Annotation on "ResourceClaims" by "Kubernetes": "The entry of the Pod's `spec.resourceClaims` that the claim was made for";
    pub const MIRROR_POD = "kubernetes.io/config.mirror",
        Annotation on "Pods" by "kubelets": "Makes the Pod the mirror of a static one, which no scheduler has placed. Refused in tenants' namespaces";
    /// Nothing of a tenant may start until what the former tenant ran there is gone, so no Pod of a tenant may tolerate it.
    pub const HANDOVER = "outrigger.dev/handover",
        Taint on "Nodes of DPUs" by "manager": "`=<next tenant>:NoSchedule`: the DPU is being handed over, nothing new starts on it";
    /// Its effect never evicts: a failure of the platform must not end what runs in the tenant's cluster.
    pub const DPU_NOT_READY = "outrigger.dev/dpu-not-ready",
        Taint on "Nodes in a tenant's cluster" by "agent, with `--node-taints`": "`:NoSchedule`: the host's DPU takes no companions, so no new Pods that need one should start there";
    pub const NOT_ALLOWED = "virtual-node.liqo.io/not-allowed",
        Taint on "virtual nodes" by "Liqo": "`=true:NoExecute`: only Pods of offloaded namespaces";
    pub const NODE_NOT_READY = "node.kubernetes.io/not-ready",
        Taint on "Nodes" by "Kubernetes": "Makes a node of a pool `not-ready`";
    /// On a cordoned Node.
    pub const UNSCHEDULABLE = "node.kubernetes.io/unschedulable",
        Taint on "Nodes" by "Kubernetes": "Makes a node of a pool `not-ready`";
    pub const NETWORK_UNAVAILABLE = "node.kubernetes.io/network-unavailable",
        Taint on "Nodes" by "Kubernetes": "Makes a node of a pool `not-ready`";
    pub const UNREACHABLE = "node.kubernetes.io/unreachable",
        Taint on "Nodes" by "Kubernetes": "Makes a node of a pool `not-ready`";
    pub const TENANT_FINALIZER = "outrigger.dev/release",
        Finalizer on "Tenants" by "manager": "Their Pods are deleted and their DPUs released first";
    pub const RULE_FINALIZER = "outrigger.dev/infrastructure",
        Finalizer on "WorkloadRules in a tenant's cluster" by "agent": "The rule is deleted from the infrastructure cluster first";
    /// No owner reference reaches into another namespace.
    pub const ADMIN_RULE_FINALIZER = "outrigger.dev/companions",
        Finalizer on "AdminWorkloadRules" by "manager": "Their companions are deleted first, if these are in another namespace";
    pub const OFFLOADING_FINALIZER = "outrigger.dev/offloading",
        Finalizer on "NamespaceOffloadings" by "manager": "The namespace loses its label first";
    pub const POOL_FINALIZER = "imperator-machinenodepool-finalizer",
        Finalizer on "MachineNodePools" by "manager": "Labels, annotation and taints of the pool are removed from its Nodes first";
    pub const ADMISSION_GATE = "outrigger.dev/admission",
        Gate on "companions" by "manager": "The webhook removes it. A companion without admission by the webhook is never scheduled";
    /// KEP-5004.
    pub const DEVICE_CLASS_RESOURCE = "deviceclass.resource.kubernetes.io/",
        Resource on "containers" by "the Pod's creator": "With a DeviceClass after the slash: a device of that class";
    pub const COMPANIONS_CONDITION = "outrigger.dev/Companions",
        Condition on "Pods in a tenant's cluster" by "agent": "Whether the Pod's companions are ready, and if not, why. Only on Pods of which a rule asks for an ordering, or whose companions were wrong for some time";
    /// It differs from [`COMPANIONS_CONDITION`] by its case only.
    pub const COMPANIONS_GATE = "outrigger.dev/companions",
        Condition on "Pods in a tenant's cluster with this readiness gate" by "agent": "`True`: all companions are ready for which the Pod waits";
    pub const CLAIM_READY = "outrigger.dev/CompanionsReady",
        Condition on "devices in the status of ResourceClaims in a tenant's cluster" by "agent": "`True`: all companions are Ready for which the Pod waits before it is bound. The scheduler binds it then";
    pub const CLAIM_UNAVAILABLE = "outrigger.dev/CompanionsUnavailable",
        Condition on "devices in the status of ResourceClaims in a tenant's cluster" by "agent": "`True`: the DPU of the chosen Node takes no companions. The scheduler chooses again";
    pub const DPU_READY = "outrigger.dev/DPUReady",
        Condition on "Nodes in a tenant's cluster" by "agent, with `--node-conditions`": "Whether the host has a DPU that takes companions, and if not, why. Only on hosts of the Tenant";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_key() {
        assert!(TABLE.len() > 45, "{}", TABLE.len());
        let (others, _) = include_str!("../keys.rs").split_once("#[cfg(test)]").unwrap();
        for line in others.lines().filter(|line| line.starts_with("pub const ")) {
            assert!(!line.contains('/'), "a key belongs into the table: {line}");
        }
    }

    #[test]
    fn each_use_is_reported_once() {
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

    #[test]
    fn the_reference_has_a_section_for_each_place() {
        let reference = include_str!("../../../../docs/reference/keys.md");
        let titles: Vec<&str> = reference.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(titles, Form::ALL.map(Form::title));
    }
}
