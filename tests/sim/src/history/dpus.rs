//! Hosts that are given to another tenant, and DPUs that leave their cluster and register again under their names.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

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
            let spec = json!({"spec": {"hosts": hosts}});
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
        let node = dpu(host);
        let deleted = self.world.infra.delete(ADMIN, "nodes", None, text(&node, "/metadata/name")).is_ok();
        if !deleted || self.below(2) == 0 {
            let pause = self.random().random.below(Duration::from_secs(60));
            tokio::spawn(register(self.world.clone(), host, pause));
        }
    }

    /// Some of the DPUs that have left register again.
    pub(super) fn create_missing_dpus(&self) {
        for host in hosts() {
            if self.below(2) == 0 {
                tokio::spawn(register(self.world.clone(), host, Duration::ZERO));
            }
        }
    }
}

/// The hosts of all tenants.
fn hosts() -> BTreeSet<&'static str> {
    TENANTS.iter().flat_map(|(_, hosts)| hosts.iter().copied()).collect()
}

/// A DPU registers, unless it has done so. Pods of its former Node don't run on it.
async fn register(world: Arc<World>, host: &'static str, pause: Duration) {
    tokio::time::sleep(pause).await;
    let node = dpu(host);
    let name = text(&node, "/metadata/name");
    if world.infra.get("nodes", None, name).is_some() {
        return;
    }
    while world.infra.list("pods").iter().any(|pod| pod["spec"]["nodeName"] == name) {
        tokio::time::sleep(LOOK).await;
    }
    let _ = world.infra.create(ADMIN, "nodes", node.clone());
    world.dpu_ready(host);
}
