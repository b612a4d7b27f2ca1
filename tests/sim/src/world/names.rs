//! Names that hosts have as Nodes of tenants' clusters.

use serde_json::{Value, json};

use super::{MOVING, TENANTS, World};

/// Nodes whose names say nothing of their hosts. Each tenant's cluster has them.
const NODES: [&str; 2] = ["worker-1", "worker-2"];

/// The entries of a Tenant with these hosts: each is another one of these Nodes.
pub(super) fn of_hosts(hosts: &[&str]) -> Value {
    NODES.iter().zip(hosts).map(|(node, host)| json!({"node": node, "host": host})).collect()
}

impl World {
    /// The Nodes of a tenant's cluster.
    pub fn nodes(&self, tenant: &str) -> Vec<&'static str> {
        let (_, hosts) = TENANTS.into_iter().find(|(id, _)| *id == tenant).unwrap_or_default();
        let hosts = hosts.iter().copied().filter(|host| *host != MOVING);
        if self.scope.names { hosts.chain(NODES).collect() } else { hosts.chain([MOVING]).collect() }
    }

    /// The Nodes of all tenants' clusters.
    pub fn all_nodes(&self) -> Vec<&'static str> {
        if self.scope.names {
            TENANTS.iter().flat_map(|(id, _)| self.nodes(id)).collect()
        } else {
            TENANTS.iter().flat_map(|(_, hosts)| hosts.iter().copied()).collect()
        }
    }

    /// The entries of a Tenant about the names of its hosts; `null` where it has none, or there is no such Tenant.
    pub fn host_names(&self, tenant: &str) -> Value {
        let tenant = self.infra.get("tenants", None, tenant);
        tenant.map(|tenant| tenant["spec"]["hostNames"].clone()).unwrap_or_default()
    }
}
