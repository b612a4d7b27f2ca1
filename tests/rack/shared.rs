//! The rack of these tests: two clusters, a tenant with a host, and the DPU in it.

use outrigger_tests::outrigger::tenant_identity;
use outrigger_tests::rack::{Machine, Rack};
use outrigger_tests::tenant::tenant;
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// Where webhook and manager run.
pub(super) const CONTROL: Machine = Machine::infra("control", 10, None);
/// The DPU of [`HOST`].
pub(super) const DPU: Machine = Machine::infra("dpu-1", 11, Some("host-1"));
/// A host of the tenant's.
pub(super) const HOST: Machine = Machine::tenant("host-1", 21);

/// The tenant.
pub(super) const BLUE: &str = "blue";

/// A rack in which Outrigger runs. Tests take turns: what one switches off, another one would miss.
pub(super) struct Turn {
    pub(super) rack: &'static Rack,
    _turn: MutexGuard<'static, ()>,
}

/// The rack that all tests of this process share, when it is this test's turn.
pub(super) async fn turn() -> Turn {
    static TURN: Mutex<()> = Mutex::const_new(());
    static SHARED: OnceCell<Rack> = OnceCell::const_new();
    let turn = TURN.lock().await;
    Turn { rack: SHARED.get_or_init(installed).await, _turn: turn }
}

async fn installed() -> Rack {
    let rack = Rack::start(&[]).unwrap();
    rack.add(&[CONTROL, DPU, HOST]).await;
    rack.install().await.unwrap();
    rack.plane.infra.apply(&[blue()]).unwrap();
    rack.install_agent(BLUE, CONTROL).await.unwrap();
    rack
}

fn blue() -> serde_json::Value {
    tenant(BLUE, json!({"identities": [tenant_identity(BLUE)], "hosts": [HOST.name]}))
}
