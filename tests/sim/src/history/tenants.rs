//! Tenants that are deleted, and created again under their names, and agents that are killed.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::{History, LOOK};
use crate::world::{ADMIN, TENANTS, World};

impl History {
    /// A Tenant is deleted. It is created again at once when it is gone, up to two minutes later, or after the next rest.
    pub(super) fn delete_tenant(&mut self, tenant: &'static str) {
        if self.world.infra.delete(ADMIN, "tenants", None, tenant).is_err() {
            return;
        }
        let pause = match self.below(3) {
            0 => Duration::ZERO,
            1 => self.random().random.below(Duration::from_secs(120)),
            _ => {
                self.deleted.insert(tenant);
                return;
            }
        };
        tokio::spawn(create_again(self.world.clone(), tenant, pause));
    }

    /// An agent is killed. Another one starts within 20 s, or after the next rest.
    pub(super) fn kill_agent(&mut self, tenant: &'static str) {
        let Some(agent) = self.world.agents.lock().remove(tenant) else { return };
        self.world.kill(&agent, self.below(2) == 0);
        if self.below(3) == 0 {
            self.away.insert(tenant);
            return;
        }
        let (world, until) = (self.world.clone(), self.random().random.below(Duration::from_secs(20)));
        tokio::spawn(async move {
            tokio::time::sleep(until).await;
            world.ensure_agent(tenant);
        });
    }

    /// Starts the agents that have stayed away, and creates the Tenants that have.
    pub(super) fn bring_back(&mut self) {
        for tenant in std::mem::take(&mut self.deleted) {
            tokio::spawn(create_again(self.world.clone(), tenant, Duration::ZERO));
        }
        for tenant in std::mem::take(&mut self.away) {
            self.world.ensure_agent(tenant);
        }
    }

    /// After a restore Tenants may be missing, or be deleted as they were then.
    pub(super) fn create_missing_tenants(&self) {
        for (tenant, _) in TENANTS {
            tokio::spawn(create_again(self.world.clone(), tenant, Duration::ZERO));
        }
    }
}

/// Waits until a Tenant that is being deleted is gone, and creates another one of its name.
async fn create_again(world: Arc<World>, tenant: &'static str, pause: Duration) {
    let leaves = |found: &Value| !found["metadata"]["deletionTimestamp"].is_null();
    while let Some(found) = world.infra.get("tenants", None, tenant) {
        if !leaves(&found) {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
    tokio::time::sleep(pause).await;
    world.create_tenant(tenant);
}
