//! Owners of DPUs.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_api::Tenant;
use outrigger_core::host::HostLabels;
use outrigger_core::ids::TenantId;
use outrigger_core::syntax::unlabelable;
use outrigger_core::tenant::Tenant as Domain;

use super::findings::{
    DPU_DISPUTED, DPU_HOSTS_DIFFER, DPU_UNOWNED, Finding, HOST_NAME, HOST_WITHOUT_DPU, HOST_WITHOUT_NODE,
    Subject,
};
use outrigger_core::node::Node;

/// DPUs that no tenant or several tenants claim, and hosts without DPU. `host_labels`: the labels of DPUs that name their host.
pub(crate) fn dpus(
    nodes: &[Node],
    tenants: &BTreeMap<TenantId, Domain>,
    host_labels: &HostLabels,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut hosts: BTreeSet<&str> = BTreeSet::new();
    for node in nodes {
        let Some((key, host)) = host_labels.read(&node.labels) else { continue };
        hosts.insert(host);
        let subject = Subject::cluster("Node", &node.name);
        let path = format!("metadata.labels[{key}]");
        let mut others = host_labels.keys().filter_map(|other| Some((other, node.labels.get(other)?)));
        if let Some((other, named)) = others.find(|(_, named)| *named != host) {
            let message = format!("is {host:?}, which counts, and label {other} is {named:?}");
            findings.push(Finding::new(&DPU_HOSTS_DIFFER, &subject, &path, message));
        }
        let owners: Vec<&str> = tenants
            .iter()
            .filter(|(_, tenant)| tenant.hosts.contains(host))
            .map(|(id, _)| id.as_str())
            .collect();
        match owners.as_slice() {
            [] => {
                let message = format!("is {host:?}, which no Tenant has in spec.hosts");
                findings.push(Finding::new(&DPU_UNOWNED, &subject, path, message));
            }
            [_] => {}
            several => {
                let message = format!("is {host:?}, which Tenants {} have in spec.hosts", several.join(", "));
                findings.push(Finding::new(&DPU_DISPUTED, &subject, path, message));
            }
        }
    }
    for (id, tenant) in tenants {
        let subject = Subject::cluster("Tenant", id.as_str());
        let without = tenant.hosts.iter().filter(|host| !hosts.contains(host.as_str()));
        for host in without.filter(|host| unlabelable(host).is_none()) {
            let node = tenant.host_names.node(host).filter(|node| node != host);
            let node = node.map(|node| format!(" (node {node})")).unwrap_or_default();
            let message =
                format!("has {host:?}{node}, and no Node has the label {}", host_labels.naming(host));
            findings.push(Finding::new(&HOST_WITHOUT_DPU, &subject, "spec.hosts", message));
        }
    }
    findings
}

/// The hosts of a Tenant that have no DPU, whatever Nodes there are, and those that no workload can be on.
pub(crate) fn unusable_hosts(subject: &Subject, tenant: &Tenant) -> Vec<Finding> {
    let hosts = &tenant.spec.hosts;
    let at = |i: usize| format!("spec.hosts[{i}]");
    let unusable = hosts.iter().enumerate().filter_map(|(i, host)| Some((i, host, unlabelable(host)?)));
    let mut findings: Vec<Finding> = unusable
        .map(|(i, host, why)| Finding::new(&HOST_NAME, subject, at(i), format!("is {host:?}, and {why}")))
        .collect();
    let domain = tenant.compile().ok();
    for (host, other) in domain.iter().flat_map(Domain::without_node) {
        let message =
            format!("is {host:?}, and spec.hostNames says that the node of this name is in host {other:?}");
        let i = hosts.iter().position(|listed| listed == host).unwrap_or_default();
        findings.push(Finding::new(&HOST_WITHOUT_NODE, subject, at(i), message));
    }
    findings
}
