//! Nodes that are DPUs.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use outrigger_core::host::HostLabels;
use outrigger_core::keys;
use outrigger_core::progress::DpuInHost;
use outrigger_core::tenant::nodes::{Marks, Taint};

/// A Node that is in some host, or that carries Outrigger's marks.
#[derive(Debug, Clone, PartialEq)]
pub struct Dpu {
    /// The host that it is in.
    pub host: Option<String>,
    /// Its labels and taints of Outrigger.
    pub marks: Marks,
    /// Its Node is ready and takes new Pods.
    pub ready: bool,
    /// All taints, as the API has them.
    pub taints: Vec<serde_json::Value>,
    /// What decides whether a Pod may run there.
    pub node: outrigger_core::node::Node,
    /// The version of the Node.
    pub resource_version: String,
}

impl Dpu {
    /// Reads a Node. `host_labels`: the labels that name the host of a DPU. `None` where it is no DPU.
    pub fn of(node: &Node, host_labels: &HostLabels) -> Option<Self> {
        let host = host_labels.host(node.labels()).map(str::to_owned);
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        let mut marks = Marks { owner: node.labels().get(keys::NODE_TENANT).cloned(), ..Marks::default() };
        for taint in taints {
            let value = taint.value.clone().unwrap_or_default();
            match (taint.key.as_str(), taint.effect.as_str()) {
                (keys::TENANT, "NoSchedule") => {
                    marks.tainted_for.insert(value);
                }
                (keys::HANDOVER, "NoSchedule") => marks.handover = Some(value),
                (keys::TENANT | keys::HANDOVER, _) => marks.untidy = true,
                _ => {}
            }
        }
        if host.is_none() && marks == Marks::default() {
            return None;
        }
        let status = node.status.as_ref().and_then(|status| status.conditions.as_deref());
        let ready = status.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
        let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default();
        Some(Self {
            host,
            marks,
            ready: ready && !cordoned,
            node: domain_node(node),
            taints: taints.iter().filter_map(|taint| serde_json::to_value(taint).ok()).collect(),
            resource_version: node.resource_version().unwrap_or_default(),
        })
    }

    /// As a tenant sees it.
    pub fn for_tenant(&self, tenant: &str) -> DpuInHost {
        DpuInHost {
            owned: self.marks.owner.as_deref() == Some(tenant),
            handing_over: self.marks.handover.is_some(),
            ready: self.ready,
        }
    }
}

/// The fields of a Node that decide placement.
fn domain_node(node: &Node) -> outrigger_core::node::Node {
    let spec = node.spec.as_ref();
    let taint = |taint: &k8s_openapi::api::core::v1::Taint| Taint {
        key: taint.key.clone(),
        value: taint.value.clone().unwrap_or_default(),
        effect: taint.effect.clone(),
    };
    outrigger_core::node::Node {
        name: node.name_any(),
        labels: node.labels().clone(),
        taints: spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten().map(taint).collect(),
        unschedulable: spec.is_some_and(|spec| spec.unschedulable == Some(true)),
    }
}
