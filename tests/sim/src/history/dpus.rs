//! Hosts that are given to another tenant, and DPUs that leave their cluster and register again under their names.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outrigger_core::keys;
use serde_json::{Value, json};

use super::{History, LOOK};
use crate::world::{ADMIN, MOVING, TENANTS, World, dpu, text};

impl History {
    /// A host is given to another tenant, or to nobody. Sometimes both have it for a moment, and sometimes its DPU leaves meanwhile.
    pub(super) fn move_host(&self) {
        let [(one, _), (other, _)] = TENANTS;
        let (from, to) = if self.below(2) == 0 { (one, other) } else { (other, one) };
        let set = |tenant: &str, has: bool| {
            let mut hosts = self.world.hosts(tenant);
            hosts.retain(|host| host != MOVING);
            hosts.extend(has.then(|| MOVING.to_owned()));
            let mut spec = json!({"hosts": hosts});
            if self.world.scope.names {
                // An entry is about one of the tenant's hosts.
                let mut names = self.world.host_names(tenant);
                if let Some(names) = names.as_array_mut() {
                    names.retain(|entry| has || entry["host"] != MOVING);
                }
                spec["hostNames"] = names;
            }
            let spec = json!({"spec": spec});
            let _ = self.world.infra.merge(ADMIN, "tenants", (None, tenant, None), spec);
        };
        let mut steps = vec![(from, false), (to, self.below(4) > 0)];
        if self.below(2) == 0 {
            steps.reverse();
        }
        steps.into_iter().for_each(|(tenant, has)| set(tenant, has));
        if self.below(2) == 0 {
            let (infra, node) = (self.world.infra.clone(), dpu(MOVING));
            let pause = self.random().random.below(Duration::from_secs(10));
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                let _ = infra.delete(ADMIN, "nodes", None, text(&node, "/metadata/name"));
            });
        }
    }

    /// The Node of a DPU is deleted. The DPU registers again within a minute or later: without the labels and taints that its Node had.
    pub(super) fn remove_dpu(&self) {
        let Some(host) = self.pick(&Vec::from_iter(hosts())) else { return };
        let mut node = dpu(host);
        if self.world.has_second_dpus() {
            node = self.pick(&self.world.dpus(host)).unwrap_or(node);
        }
        let deleted = self.world.infra.delete(ADMIN, "nodes", None, text(&node, "/metadata/name")).is_ok();
        if !deleted || self.below(2) == 0 {
            let pause = self.random().random.below(Duration::from_secs(60));
            tokio::spawn(register(self.world.clone(), node, pause));
        }
    }

    /// Some of the DPUs that have left register again.
    pub(super) fn create_missing_dpus(&self) {
        for host in hosts() {
            for node in self.world.dpus(host) {
                if self.below(2) == 0 {
                    tokio::spawn(register(self.world.clone(), node, Duration::ZERO));
                }
            }
        }
    }

    /// The second DPU of a host is put into another one, or back. Where a rule with one companion in each host has one on it, it stays: that
    /// would stay there, and serve from another host.
    pub(super) fn put_dpu_elsewhere(&self) {
        let all = Vec::from_iter(hosts());
        let (Some(from), Some(to)) = (self.pick(&all), self.pick(&all)) else { return };
        let Some(dpu) = self.world.dpus(from).pop() else { return };
        let name = text(&dpu, "/metadata/name");
        let is_bound_to_host = |pod: &Arc<Value>| {
            let annotations = &pod["metadata"]["annotations"];
            pod["spec"]["nodeName"] == name
                && annotations[keys::HOST].is_string()
                && !annotations[keys::DPU].is_string()
        };
        if self.world.infra.list("pods").iter().any(is_bound_to_host) {
            return;
        }
        self.judge.disturbed(false);
        let labels = dpu["metadata"]["labels"].as_object().into_iter().flatten();
        let labels: Value = labels.map(|(key, _)| (key.clone(), json!(to))).collect();
        let at = (None, name, None);
        let _ = self.world.infra.merge(ADMIN, "nodes", at, json!({"metadata": {"labels": labels}}));
    }

    /// An administrator cordons the Node of a DPU, or uncordons it.
    pub(super) fn cordon_dpu(&self) {
        let Some(host) = self.pick(&Vec::from_iter(hosts())) else { return };
        if let Some(node) = self.pick(&self.world.dpus(host)) {
            self.world.cordon(&self.world.infra, text(&node, "/metadata/name"), self.below(3) > 0);
        }
    }

    /// Another DPU of a host is primary, or both are, or none is. One that has registered again isn't, until somebody says so.
    pub(super) fn move_primary(&self) {
        let Some(host) = self.pick(&Vec::from_iter(hosts())) else { return };
        let which = self.below(8);
        self.world.set_primary(host, |number| match which {
            0 => false,
            1 => true,
            _ => which % 2 == number as u64,
        });
    }

    /// Other Nodes of a tenant's cluster are in its hosts, by other entries of the Tenant. A host without one is the Node of its own name.
    pub(super) fn change_names(&self, tenant: &str) {
        let mut nodes = self.world.nodes(tenant);
        let mut entries = Vec::new();
        for host in self.world.hosts(tenant) {
            let Some(node) = self.pick(&nodes).filter(|_| self.below(4) > 0) else { continue };
            nodes.retain(|other| *other != node);
            entries.push(json!({"node": node, "host": host}));
        }
        let spec = json!({"spec": {"hostNames": entries}});
        let _ = self.world.infra.merge(ADMIN, "tenants", (None, tenant, None), spec);
    }
}

/// The hosts of all tenants.
pub(super) fn hosts() -> BTreeSet<&'static str> {
    TENANTS.iter().flat_map(|(_, hosts)| hosts.iter().copied()).collect()
}

/// A DPU registers, unless it has done so. Pods of its former Node don't run on it.
async fn register(world: Arc<World>, node: Value, pause: Duration) {
    tokio::time::sleep(pause).await;
    let name = text(&node, "/metadata/name");
    if world.infra.get("nodes", None, name).is_some() {
        return;
    }
    while world.infra.list("pods").iter().any(|pod| pod["spec"]["nodeName"] == name) {
        tokio::time::sleep(LOOK).await;
    }
    let _ = world.infra.create(ADMIN, "nodes", node.clone());
    world.dpu_ready(&node);
}
