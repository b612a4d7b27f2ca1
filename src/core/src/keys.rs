//! Every key, label, annotation, taint and finalizer that Outrigger reads or writes, its own and foreign ones.
//!
//! Who adds one adds it to [`TABLE`], which the reference in `docs/` is made of and which says what each means, or to
//! [`NO_KEYS`].

mod table;

pub use table::{Form, Key, NO_KEYS, TABLE};

/// The domain of Outrigger's own keys. Only its own components may set keys in it or in its subdomains.
pub const DOMAIN: &str = "outrigger.dev";

/// Label on Namespaces and companions, and key of the taint on DPU Nodes: the owner. Value: the tenant's id.
pub const TENANT: &str = "outrigger.dev/tenant";

/// Label on DPU Nodes: the owner. The prefix is one that a kubelet may not set on its own Node (the NodeRestriction
/// admission plugin), so a taken-over DPU can't move itself to another tenant.
pub const NODE_TENANT: &str = "outrigger.dev.node-restriction.kubernetes.io/tenant";

/// Label on companions: name of the rule that made it.
pub const RULE: &str = "outrigger.dev/rule";

/// Label on companions: the workload it serves ([`crate::ids::WorkloadId::label_value`]). The same key as an annotation
/// carries the workload as JSON from the manager to the webhook, which takes it out unless a rule injects under it.
pub const WORKLOAD: &str = "outrigger.dev/workload";

/// Annotation on companions of admin rules: the rule's name, which a label may be too short for.
pub const ADMIN_RULE: &str = "outrigger.dev/admin-rule";

/// Finalizer on AdminWorkloadRules whose companions live in another namespace, where no owner reference can reach.
pub const ADMIN_RULE_FINALIZER: &str = "outrigger.dev/companions";

/// Annotation on companions: uid of the rule that made it.
pub const RULE_UID: &str = "outrigger.dev/rule-uid";

/// Annotation on companions: `metadata.generation` of the rule when the companion was made.
pub const RULE_GENERATION: &str = "outrigger.dev/rule-generation";

/// Annotation on companions: hash of what of the rule decides the Pod itself, template and placement.
pub const TEMPLATE_HASH: &str = "outrigger.dev/template-hash";

/// Annotation on companions made with `SameNode`: the tenant Node that the workload runs on.
pub const HOST: &str = "outrigger.dev/host";

/// Annotation on companions: JSON list of the annotations that the rule injected, so that they can be taken away again.
pub const INJECTED: &str = "outrigger.dev/injected";

/// Annotation on WorkloadRules in the infrastructure cluster: uid of the rule in the tenant's cluster.
pub const ORIGIN: &str = "outrigger.dev/origin";

/// Finalizer on WorkloadRules in a tenant's cluster: the rule is taken out of the infrastructure cluster first.
pub const RULE_FINALIZER: &str = "outrigger.dev/infrastructure";

/// Annotation on WorkloadRules in a tenant's cluster: they are deleted without the infrastructure cluster.
pub const ABANDON: &str = "outrigger.dev/abandon";

/// Scheduling gate that the manager puts on a companion and the webhook takes off. A cluster whose webhook is not
/// registered therefore never runs a companion that was not placed and isolated.
pub const ADMISSION_GATE: &str = "outrigger.dev/admission";

/// Label on DPU Nodes that names the host the DPU sits in. The default of a setting.
pub const DPU_HOST: &str = "provisioning.dpu.nvidia.com/host";

/// Taint on a DPU Node that changes hands: nothing new of a tenant may start on it until what the former tenant ran
/// there is gone. No Pod of a tenant may tolerate it. Its value is the tenant that comes, or empty.
pub const HANDOVER: &str = "outrigger.dev/handover";

/// Finalizer on Tenants: their Pods and DPUs are given back before they go.
pub const TENANT_FINALIZER: &str = "outrigger.dev/release";

/// Label on Namespaces: the Pod Security Standards level that the API server's own plugin enforces (KEP-2579).
pub const POD_SECURITY_ENFORCE: &str = "pod-security.kubernetes.io/enforce";

/// Label on Namespaces whose ResourceClaims may ask for devices that others have; value: `true` (KEP-5018).
pub const ADMIN_ACCESS: &str = "resource.kubernetes.io/admin-access";

/// Annotation on ResourceClaims that Kubernetes makes from a Pod's template: name of the Pod's entry for it (KEP-3063).
pub const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";

/// Prefix of the extended resources by which containers ask for a device of a DeviceClass, whose name follows (KEP-5004).
pub const DEVICE_CLASS_RESOURCE: &str = "deviceclass.resource.kubernetes.io/";

/// Annotation that makes a Pod the mirror of a kubelet's static Pod, which no scheduler and no admission placed.
pub const MIRROR_POD: &str = "kubernetes.io/config.mirror";

/// Label on Namespaces whose NamespaceOffloading lets Pods onto virtual nodes. Liqo's key; value: `true`.
pub const OFFLOADED: &str = "liqo.io/scheduling-enabled";

/// Label on Nodes that tells virtual nodes from others. Liqo's key; see [`VIRTUAL_NODE`].
pub const NODE_TYPE: &str = "liqo.io/type";

/// Value of [`NODE_TYPE`] on virtual nodes.
pub const VIRTUAL_NODE: &str = "virtual-node";

/// Label on virtual nodes: id of the cluster that they stand for. Liqo's key.
pub const REMOTE_CLUSTER: &str = "liqo.io/remote-cluster-id";

/// Key of the taint `=true:NoExecute` that Liqo puts on virtual nodes.
pub const NOT_ALLOWED: &str = "virtual-node.liqo.io/not-allowed";

/// Label on NamespaceOffloadings that the validating webhook lets through unseen when it is `true`. Liqo's key.
pub const WEBHOOK_SKIP: &str = "liqo.io/webhook-skip";

/// Finalizer on NamespaceOffloadings: the namespace loses its [`OFFLOADED`] label first.
pub const OFFLOADING_FINALIZER: &str = "outrigger.dev/offloading";

/// API group of NamespaceOffloading.
pub const OFFLOADING_GROUP: &str = "offloading.liqo.io";

/// Domain of the labels, annotations and taints of Machines, and API group of Machine and MachineNodePool. Imperator's.
pub const MACHINE_GROUP_DOMAIN: &str = "imperator.tenzen-y.io";

/// Label on Machines, MachineNodePools, guests and reservations, annotation on Nodes: the machine group. Imperator's key.
pub const MACHINE_GROUP: &str = "imperator.tenzen-y.io/machine-group";

/// Label on guests and reservations: the machine type. Imperator's key.
pub const MACHINE_TYPE: &str = "imperator.tenzen-y.io/machine-type";

/// Label on Pods: [`GUEST`] or [`RESERVATION`]. Imperator's key.
pub const POD_ROLE: &str = "imperator.tenzen-y.io/pod-role";

/// Value of [`POD_ROLE`] on Pods that take a slot.
pub const GUEST: &str = "guest";

/// Value of [`POD_ROLE`] on Pods that hold a slot open.
pub const RESERVATION: &str = "reservation";

/// Label on guests: the container that gets the slot's resources. Without it the first does. Imperator's key.
pub const INJECTING_CONTAINER: &str = "imperator.tenzen-y.io/injecting-container";

/// Label and taint on the Nodes of a pool: `ready`, `not-ready` or `maintenance`. Imperator's key.
pub const NODE_POOL: &str = "imperator.tenzen-y.io/node-pool";

/// Label on Namespaces whose guests are injected when it is `enabled`. Imperator's key: the domain really has no "-y".
pub const INJECT_RESOURCE: &str = "imperator.tenzen.io/inject-resource";

/// Value of [`INJECT_RESOURCE`] that counts.
pub const INJECT_ENABLED: &str = "enabled";

/// Finalizer on MachineNodePools: their Nodes lose what they got for it first. Imperator's.
pub const POOL_FINALIZER: &str = "imperator-machinenodepool-finalizer";

/// Namespace of reservations. The default of a setting, and Imperator's.
pub const CORE_NAMESPACE: &str = "imperator-system";

/// PriorityClass of reservations: below every other, so that guests take their places. Shipped in `deploy/base/machines`.
pub const RESERVATION_PRIORITY: &str = "outrigger-reservation";

/// PriorityClass of webhook, manager and agent. Shipped in `deploy/base/namespace`; the chart may give it another name.
pub const PRIORITY: &str = "outrigger";

/// Taint that Kubernetes puts on a cordoned Node.
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Taints that Kubernetes puts on Nodes which take no Pods. Any of them makes a node of a pool not ready.
pub const NOT_READY: [&str; 4] = [
    "node.kubernetes.io/not-ready",
    UNSCHEDULABLE,
    "node.kubernetes.io/network-unavailable",
    "node.kubernetes.io/unreachable",
];

/// Node label that GPU feature discovery sets: the family of its GPUs.
pub const GPU_FAMILY: &str = "nvidia.com/gpu.family";

/// Node label that GPU feature discovery sets: the product name of its GPUs.
pub const GPU_PRODUCT: &str = "nvidia.com/gpu.product";

/// Node label that GPU feature discovery sets: the model of the machine.
pub const GPU_MACHINE: &str = "nvidia.com/gpu.machine";

/// Namespace of webhook and manager themselves.
pub const SYSTEM_NAMESPACE: &str = "outrigger-system";

/// Namespaces of the cluster's own components and of Outrigger's: admission never holds up their Pods, whatever labels the
/// namespaces have, and no tenant may have one.
pub const SYSTEM_NAMESPACES: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", SYSTEM_NAMESPACE];

/// Namespace of admin rules, and of their companions. The default of two settings.
pub const ADMIN_NAMESPACE: &str = "universe";

/// API group of Tenant.
pub const GROUP: &str = "outrigger.dev";

/// API group of WorkloadRule and AdminWorkloadRule.
pub const WORKLOAD_GROUP: &str = "workload.universe.nvidia.com";

/// API group of ResourceClaims, DeviceClasses and ResourceSlices.
pub const DEVICE_GROUP: &str = "resource.k8s.io";

/// Field manager of the manager's writes.
pub const MANAGER: &str = "outrigger-manager";

/// Name of the webhook's Service and service account, and field manager of its writes.
pub const WEBHOOK: &str = "outrigger-webhook";

/// Name of the two configurations by which the API server asks the webhook.
pub const WEBHOOK_CONFIGURATION: &str = "outrigger";

/// Secret in which the webhook's replicas keep the certificates that they sign themselves.
pub const WEBHOOK_SELF_SIGNED: &str = "outrigger-webhook-self-signed";

/// Secret in which the manager's replicas keep the certificates that they sign themselves.
pub const MANAGER_SELF_SIGNED: &str = "outrigger-manager-self-signed";

/// ConfigMap that says what agents have to trust where the manager signs its certificates itself.
pub const CA_CONFIG_MAP: &str = "outrigger-ca";

/// Field manager of the agent's writes in the tenant's cluster.
pub const AGENT: &str = "outrigger-agent";

/// Whether a label or annotation key belongs to Outrigger: its domain, or a subdomain of it (also the one that sits
/// under `node-restriction.kubernetes.io`).
pub fn is_own(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else { return false };
    prefix == DOMAIN
        || prefix.strip_suffix(DOMAIN).is_some_and(|rest| rest.ends_with('.'))
        || NODE_TENANT.split_once('/').is_some_and(|(restricted, _)| prefix == restricted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_keys() {
        for key in [TENANT, NODE_TENANT, RULE, ADMISSION_GATE, "x.outrigger.dev/y"] {
            assert!(is_own(key), "{key}");
        }
        for key in [DPU_HOST, "app", "notoutrigger.dev/x", "outrigger.dev", "outrigger.dev.example.com/x"] {
            assert!(!is_own(key), "{key}");
        }
    }
}
