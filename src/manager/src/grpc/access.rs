//! Who may call, and for which tenant. [`super::intake`] checks that before a call is read; handlers find the result in the
//! extensions of the request.

use std::sync::Arc;
use std::time::Duration;

use outrigger_core::ids::TenantId;
use outrigger_core::map::HashMap;
use outrigger_core::tenant::Tenant;
use outrigger_runtime::ready::Readiness;
use outrigger_runtime::serve::Peer;
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::Status;
use tonic::metadata::MetadataMap;
use tracing::{info, warn};

use crate::context::Context;
use crate::identity::Caller;

/// Decides who may call, and for which tenant.
#[derive(Debug)]
pub(super) struct Access {
    pub context: Arc<Context>,
    /// Whether tenants, rules and companions have been listed, and tenants have been reconciled: before that no call is served.
    readiness: Readiness,
    absences: Absences,
}

/// Least time between two lines of the log about refused calls of one tenant: its agent calls every few seconds.
const SAY: Duration = Duration::from_secs(60);

/// When the log had the last line about a call that was refused because its tenant has no namespace, by tenant.
#[derive(Debug, Default)]
struct Absences(Mutex<HashMap<TenantId, Instant>>);

impl Absences {
    /// Whether a refusal is due to be logged.
    fn is_due(&self, id: &TenantId, now: Instant) -> bool {
        let mut said = self.0.lock();
        if said.get(id).is_some_and(|last| now.duration_since(*last) < SAY) {
            return false;
        }
        said.retain(|_, last| now.duration_since(*last) < SAY);
        said.insert(id.clone(), now);
        true
    }
}

#[derive(Debug, Clone)]
pub(super) struct Admitted {
    pub caller: Caller,
    pub id: TenantId,
    pub tenant: Arc<Tenant>,
}

impl Access {
    /// Access as the context's settings and Tenants allow it.
    pub(super) fn new(context: &Arc<Context>, readiness: &Readiness) -> Self {
        Self { context: context.clone(), readiness: readiness.clone(), absences: Absences::default() }
    }

    /// UNAVAILABLE: the namespace that a Tenant names doesn't exist yet, or is labeled as another tenant's. What is in it, rules, companions
    /// and workloads, isn't this tenant's then. The log says so once a minute.
    pub(super) fn no_namespace(&self, id: &TenantId) -> Status {
        if self.absences.is_due(id, self.context.environment.clock.now()) {
            info!(tenant = %id, "refused call: the tenant's namespace does not exist or belongs to another tenant");
        }
        Status::unavailable(format!(
            "the namespace of tenant {id} is not there yet, or belongs to another tenant; call again"
        ))
    }

    /// Who calls. Returns UNAUTHENTICATED when there is no certificate, or it is none of a client.
    pub(super) fn caller(&self, peer: Option<&Peer>) -> Result<Caller, Status> {
        Caller::of(peer, self.context.replica.args.insecure)
            .inspect_err(|status| warn!(reason = status.message(), "refused call"))
    }

    /// The tenant that a call is about, when the caller may act for it. Fails as [`Self::authorize`]; INVALID_ARGUMENT when no
    /// tenant is named, UNAVAILABLE when this replica isn't ready.
    pub(super) fn tenant(&self, caller: Caller, metadata: &MetadataMap) -> Result<Admitted, Status> {
        let id = super::tenant_id(metadata)?;
        self.ready()?;
        let tenant = self.authorize(&caller, &id)?;
        Ok(Admitted { caller, id, tenant })
    }

    /// Admits administrators only, whatever the call is about. Returns PERMISSION_DENIED to all other callers, tenants included;
    /// UNAVAILABLE when this replica isn't ready.
    pub(super) fn admin(&self, caller: &Caller) -> Result<(), Status> {
        if !self.context.caches.registry.is_admin(caller) {
            warn!(%caller, "refused call: the caller is no administrator");
            return Err(Status::permission_denied("the client certificate is no administrator's"));
        }
        self.ready()
    }

    fn ready(&self) -> Result<(), Status> {
        if self.readiness.is_ready() {
            Ok(())
        } else {
            Err(Status::unavailable("this replica is not ready; connect again"))
        }
    }

    /// Whether the caller may act for the tenant now. Fails as [`crate::state::registry::Registry::authorize`]. The log has both
    /// names.
    pub(super) fn authorize(&self, caller: &Caller, id: &TenantId) -> Result<Arc<Tenant>, Status> {
        self.context.caches.registry.authorize(caller, id).inspect_err(|status| {
            warn!(%caller, tenant = %id, code = %status.code(), reason = status.message(), "refused call");
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use outrigger_runtime::fake_api::FakeApi;
    use tonic::Code;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;
    use crate::fixtures;

    /// Counts the lines of the log.
    #[derive(Clone, Default)]
    struct Lines(Arc<AtomicUsize>);

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            if *event.metadata().level() == tracing::Level::INFO {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_without_a_namespace_is_logged_once_a_minute() {
        let access = Access::new(&fixtures::context(FakeApi::default().client()), &Readiness::default());
        let [blue, red] = ["blue", "red"].map(|id| TenantId::new(id).unwrap());
        let lines = Lines::default();
        let refuse = |id: &TenantId| {
            let status = tracing::subscriber::with_default(lines.clone(), || access.no_namespace(id));
            assert_eq!(status.code(), Code::Unavailable);
            lines.0.load(Ordering::Relaxed)
        };
        assert_eq!([refuse(&blue), refuse(&blue), refuse(&red), refuse(&red)], [1, 1, 2, 2]);
        tokio::time::advance(SAY).await;
        assert_eq!([refuse(&blue), refuse(&blue)], [3, 3]);
        assert_eq!(access.absences.0.lock().len(), 1, "nothing is kept of a tenant that calls no more");
    }
}
