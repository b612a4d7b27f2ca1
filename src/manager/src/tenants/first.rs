//! The first pass: each Tenant of the first complete list is reconciled once before this replica is ready. Until then it refuses the
//! streams of tenants whose namespaces don't exist, and a Service shouldn't send them here.
//!
//! Only the leader reconciles Tenants. A replica that doesn't lead has done its part when its lists are complete: namespaces that exist
//! are in its cache, and it doesn't wait for what the leader has yet to create.
//!
//! The first attempt counts, whatever its outcome: otherwise one tenant, by a namespace that isn't its own, could keep all replicas from
//! serving the others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outrigger_core::ids::TenantId;
use outrigger_runtime::Process;
use tokio::sync::watch;
use tracing::warn;

use crate::context::Context;

/// The task of readiness that waits for the first pass.
pub(crate) const TASK: &str = "reconciled tenants";

/// Longest time that readiness waits for it. Calls to an API server that doesn't answer take half a minute each, and a replica that
/// isn't ready serves nobody.
const PATIENCE: Duration = Duration::from_secs(60);

/// The Tenants that have yet to be reconciled for the first time; `None` before this replica leads.
#[derive(Debug, Default)]
pub(crate) struct FirstPass(watch::Sender<Option<BTreeSet<TenantId>>>);

impl FirstPass {
    /// This replica begins to lead, and has queued these Tenants. Another term than the first changes nothing.
    pub(crate) fn begin(&self, tenants: impl IntoIterator<Item = TenantId>) {
        self.0.send_modify(|left| _ = left.get_or_insert_with(|| tenants.into_iter().collect()));
    }

    /// A Tenant has been reconciled, or that has failed.
    pub(crate) fn attempted(&self, tenant: &TenantId) {
        self.0.send_if_modified(|left| left.as_mut().is_some_and(|left| left.remove(tenant)));
    }

    /// How many Tenants are left; `None` before this replica leads.
    fn left(&self) -> Option<usize> {
        self.0.borrow().as_ref().map(BTreeSet::len)
    }

    async fn ended(&self) {
        let ended = |left: &Option<BTreeSet<TenantId>>| left.as_ref().is_some_and(BTreeSet::is_empty);
        // It fails where no sender is left, and this is one.
        let _ = self.0.subscribe().wait_for(ended).await;
    }
}

/// Delays readiness until this replica has made the first pass, if it leads.
pub(crate) fn start(process: &Process, context: &Arc<Context>) {
    let (ready, readiness) = (process.readiness.wait_for(TASK), process.readiness.clone());
    let (context, drain) = (context.clone(), process.drain.clone());
    process.drained(async move {
        let pass = async {
            readiness.done_but(TASK).await;
            wait(&context).await;
            ready.done();
        };
        tokio::select! {
            biased;
            () = drain.cancelled() => {}
            () = pass => {}
        }
    });
}

async fn wait(context: &Context) {
    let (leadership, first_pass) = (&context.replica.leadership, &context.caches.first_pass);
    let pass = async {
        let Some(term) = leadership.settled().await else { return };
        tokio::select! {
            () = leadership.ended(term) => {}
            () = first_pass.ended() => {}
        }
    };
    if tokio::time::timeout(PATIENCE, pass).await.is_err() {
        let left = first_pass.left();
        warn!(left, "ready although tenants are left that have not been reconciled: it takes too long");
    }
}

#[cfg(test)]
mod tests;
