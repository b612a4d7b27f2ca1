//! The rack of tests and benches: two clusters in which Outrigger runs, a tenant with a host, and the DPU in it.

use serde_json::{Value, json};

use super::{Machine, Rack};
use crate::outrigger::tenant_identity;
use crate::tenant::tenant;

/// Where webhook and manager run.
pub const CONTROL: Machine = Machine::infra("control", 10, None);
/// The DPU of [`HOST`].
pub const DPU: Machine = Machine::infra("dpu-1", 11, Some("host-1"));
/// A host of the tenant's, on which its agent runs.
pub const HOST: Machine = Machine::tenant("host-1", 21);

/// The tenant.
pub const BLUE: &str = "blue";

impl Rack {
    /// Starts the rack with Outrigger and the tenant's agent, and waits until the tenant's rules are taken.
    ///
    /// # Panics
    /// If the machine can't have real Nodes, or a part doesn't become ready.
    pub async fn with_blue() -> Self {
        let rack = Self::start(&[]).expect("a rack");
        rack.add(&[CONTROL, DPU, HOST]).await;
        rack.install().await.expect("webhook and manager");
        rack.plane.infra.apply(&[blue()]).expect("the tenant");
        rack.install_agent(BLUE, CONTROL).await.expect("the agent");
        rack
    }
}

fn blue() -> Value {
    tenant(BLUE, json!({"identities": [tenant_identity(BLUE)], "hosts": [HOST.name]}))
}
