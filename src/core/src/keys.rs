//! Every key, label, annotation, taint and finalizer that Outrigger reads or writes, its own and foreign ones.
//!
//! The keys themselves stand in the file `table.rs`, each with its meaning, of which the reference in `docs/` is made. Here
//! are domains, API groups, values, and names of objects.

mod table;

pub use table::*;

/// The domain of Outrigger's own keys. Only its own components may set keys in it or in its subdomains.
pub const DOMAIN: &str = "outrigger.dev";

/// Value of [`NODE_TYPE`] on virtual nodes.
pub const VIRTUAL_NODE: &str = "virtual-node";

/// API group of NamespaceOffloading.
pub const OFFLOADING_GROUP: &str = "offloading.liqo.io";

/// Domain of the labels, annotations and taints of Machines, and API group of Machine and MachineNodePool. Imperator's.
pub const MACHINE_GROUP_DOMAIN: &str = "imperator.tenzen-y.io";

/// Domain of the extended resources of NVIDIA's GPUs, which nodes with the labels [`GPU_FAMILY`], [`GPU_PRODUCT`] and
/// [`GPU_MACHINE`] have.
pub const GPU_DOMAIN: &str = "nvidia.com";

/// Value of [`POD_ROLE`] on Pods that take a slot.
pub const GUEST: &str = "guest";

/// Value of [`POD_ROLE`] on Pods that hold a slot open.
pub const RESERVATION: &str = "reservation";

/// Value of [`INJECT_RESOURCE`] that counts.
pub const INJECT_ENABLED: &str = "enabled";

/// Namespace of reservations. The default of a setting, and Imperator's.
pub const CORE_NAMESPACE: &str = "imperator-system";

/// PriorityClass of reservations: below every other, so that guests take their places. Shipped in `deploy/base/machines`.
pub const RESERVATION_PRIORITY: &str = "outrigger-reservation";

/// Taints that Kubernetes puts on Nodes which take no Pods. Any of them makes a node of a pool not ready.
pub const NOT_READY: [&str; 4] = [NODE_NOT_READY, UNSCHEDULABLE, NETWORK_UNAVAILABLE, UNREACHABLE];

/// Namespace of webhook and manager themselves.
pub const SYSTEM_NAMESPACE: &str = "outrigger-system";

/// Namespace of the plugin on a tenant's hosts, which needs more of its host than other parts.
pub const HOST_NAMESPACE: &str = "outrigger-hosts";

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

/// Lease in which each replica of the manager says that it runs, by an annotation of its own.
pub const MANAGER_REPLICAS: &str = "outrigger-manager-replicas";

/// Name of the webhook's Service and service account, and field manager of its writes.
pub const WEBHOOK: &str = "outrigger-webhook";

/// Name of the two configurations by which the API server asks the webhook.
pub const WEBHOOK_CONFIGURATION: &str = "outrigger";

/// How the names of their entries end, and those of no others.
pub const WEBHOOK_ENTRIES: &str = ".outrigger.dev";

/// Secret in which the webhook's replicas keep the certificates that they sign themselves.
pub const WEBHOOK_SELF_SIGNED: &str = "outrigger-webhook-self-signed";

/// Secret in which the manager's replicas keep the certificates that they sign themselves.
pub const MANAGER_SELF_SIGNED: &str = "outrigger-manager-self-signed";

/// ConfigMap that says what agents have to trust where the manager signs its certificates itself.
pub const CA_CONFIG_MAP: &str = "outrigger-ca";

/// Field manager of the agent's writes in the tenant's cluster.
pub const AGENT: &str = "outrigger-agent";

/// Name of the configuration by which the tenant's API server asks the agent for readiness gates.
pub const GATE_CONFIGURATION: &str = "outrigger-gate";

/// Driver of the devices that Pods claim which don't start before their companions (`companionsFirst`), and name of their DeviceClass.
pub const COMPANIONS_DRIVER: &str = "companions.outrigger.dev";

/// Name of the plugin on hosts, which serves [`COMPANIONS_DRIVER`], and of its service account.
pub const HOST_PLUGIN: &str = "outrigger-host";

/// Audience of the tokens by which the agent's callers on hosts prove who they are.
pub const AGENT_AUDIENCE: &str = "outrigger-agent";

/// Name of the claim in `spec.resourceClaims` of such a Pod, and of the ResourceClaimTemplate that it names.
pub const COMPANIONS_CLAIM: &str = "outrigger-companions";

/// Name of the ResourceClaimTemplate that the claim [`COMPANIONS_CLAIM`] of a Pod names which isn't bound before its companions are Ready.
pub const COMPANIONS_BINDING_CLAIM: &str = "outrigger-companions-binding";

/// Name of the DeviceClass of the devices for such Pods: those of [`COMPANIONS_DRIVER`] with the attribute [`BINDING_ATTRIBUTE`].
pub const COMPANIONS_BINDING_CLASS: &str = "binding.companions.outrigger.dev";

/// Attribute of the devices for such Pods, `true`.
pub const BINDING_ATTRIBUTE: &str = "binding";

/// Value of [`COMPANIONS_WAIT`] on the claims of such Pods.
pub const WAIT_BINDING: &str = "binding";

/// Value of [`COMPANIONS_FIRST_NAMESPACE`] that counts.
pub const REQUIRED: &str = "required";

/// ConfigMap that says what hosts of a tenant's cluster have to trust where the agent signs its certificate itself.
pub const AGENT_CA_CONFIG_MAP: &str = "outrigger-agent-ca";

/// Secret in which the agent keeps the certificates of its webhook that it signs itself.
pub const AGENT_SELF_SIGNED: &str = "outrigger-agent-self-signed";

/// Annotations that network plugins write while they set up a Pod's network: no Pod has them before it starts.
const WRITTEN_AT_START: [&str; 5] =
    [NETWORK_STATUS, NETWORKS_STATUS, CALICO_CONTAINER, CALICO_IP, CALICO_IPS];

/// Annotations that network plugins write on a Pod earlier.
const WRITTEN_BEFORE_START: [&str; 5] =
    [OVN_NETWORKS, KUBE_OVN_IP, KUBE_OVN_MAC, KUBE_OVN_CIDR, KUBE_OVN_GATEWAY];

/// Whether no Pod has an annotation before it starts.
pub fn is_written_at_start(annotation: &str) -> bool {
    WRITTEN_AT_START.contains(&annotation)
}

/// Whether the network plugin of a cluster writes an annotation on its Pods.
pub fn is_of_network(annotation: &str) -> bool {
    is_written_at_start(annotation) || WRITTEN_BEFORE_START.contains(&annotation)
}

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
    fn annotations_of_network_plugins() {
        for (key, network, at_start) in [
            ("k8s.v1.cni.cncf.io/network-status", true, true),
            ("cni.projectcalico.org/podIPs", true, true),
            ("k8s.ovn.org/pod-networks", true, false),
            ("k8s.v1.cni.cncf.io/networks", false, false),
        ] {
            assert_eq!((is_of_network(key), is_written_at_start(key)), (network, at_start), "{key}");
        }
    }

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
