//! The DPUs of the tenant's hosts, for its agent: by the names that the hosts have as Nodes of the tenant's cluster.

use std::collections::BTreeSet;

use jiff::Timestamp;
use outrigger_core::fault;
use outrigger_core::index::CompanionKey;
use outrigger_core::progress::HostDpu;
use outrigger_core::steps::step;

use crate::state::TenantData;
use crate::state::registry::Registry;

impl TenantData {
    /// The DPUs in a host may be other than before. Returns the companions that this may concern, beside what the tenant hears of them.
    pub(crate) fn assess_host(
        &mut self,
        host: &str,
        registry: &Registry,
        now: Timestamp,
    ) -> Vec<CompanionKey> {
        let Some(tenant) = self.tenant.clone() else { return Vec::new() };
        let touched = self.index.set_dpus(host, registry.own_dpus(&tenant, host));
        let dpu = Some(registry.host_dpu(&tenant, host, None)).filter(|dpu| *dpu != HostDpu::NotListed);
        if let Some(node) = self.host_names.node(host) {
            let node = if node != host && fault("dpus-are-sent-by-names-of-hosts") { host } else { node };
            self.outcomes.set_host(node, dpu, now);
        }
        let waiting = self.outcomes.waiting.get(host).cloned().unwrap_or_default();
        self.assess(&waiting.into_iter().collect::<Vec<_>>(), registry, now);
        touched
    }

    /// The Tenant may have other hosts than before. Most changes of a Tenant are of its status, and cost nothing here. Returns what
    /// [`Self::assess_host`] does, of all hosts.
    pub(crate) fn assess_hosts(&mut self, registry: &Registry, now: Timestamp) -> Vec<CompanionKey> {
        let Some(id) = self.tenant.clone() else { return Vec::new() };
        let Some(entry) = registry.get(&id) else { return Vec::new() };
        let metadata = &entry.object.metadata;
        let of = (metadata.uid.clone().unwrap_or_default(), metadata.generation.unwrap_or_default());
        let Ok(tenant) = &entry.tenant else { return Vec::new() };
        if self.outcomes.hosts_of.as_ref() == Some(&of) {
            return Vec::new();
        }
        self.outcomes.hosts_of = Some(of);
        let names = self.host_names.clone();
        let nodes: BTreeSet<&str> = tenant.hosts.iter().filter_map(|host| names.node(host)).collect();
        let known = self.outcomes.hosts.keys();
        let gone: Vec<String> = known.filter(|node| !nodes.contains(node.as_str())).cloned().collect();
        let mut touched = Vec::new();
        for node in &gone {
            step();
            match names.host(node) {
                Some(host) => touched.extend(self.assess_host(host, registry, now)),
                None => self.outcomes.set_host(node, None, now),
            }
        }
        // Hosts that the Tenant doesn't list may still have a DPU with its label.
        let labelled = registry.dpus_of(&id).into_iter().filter_map(|(_, dpu)| dpu.host.clone());
        let hosts: BTreeSet<String> = labelled.chain(tenant.hosts.iter().cloned()).collect();
        for host in &hosts {
            step();
            touched.extend(self.assess_host(host, registry, now));
        }
        touched
    }
}
