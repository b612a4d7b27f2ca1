//! DPUs that leave their cluster, and register again under their names.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{History, LOOK};
use crate::world::{ADMIN, TENANTS, World, dpu, text};

impl History {
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
}
