//! Who may call, and for which tenant. [`super::intake`] checks that before a call is read; handlers find the result in the
//! extensions of the request.

use std::sync::Arc;

use outrigger_core::ids::TenantId;
use outrigger_core::tenant::Tenant;
use outrigger_runtime::ready::Readiness;
use outrigger_runtime::serve::Peer;
use tonic::Status;
use tonic::metadata::MetadataMap;
use tracing::warn;

use crate::context::Context;
use crate::identity::Caller;

/// Decides who may call, and for which tenant.
#[derive(Debug)]
pub(super) struct Access {
    context: Arc<Context>,
    /// Whether tenants, rules and companions have been listed: before that no call is served.
    readiness: Readiness,
}

/// UNAVAILABLE: the namespace that a Tenant names doesn't exist yet, or is labeled as another tenant's. What is in it, rules, companions and
/// workloads, isn't this tenant's then.
pub(super) fn no_namespace(id: &TenantId) -> Status {
    Status::unavailable(format!(
        "the namespace of tenant {id} is not there yet, or belongs to another tenant; call again"
    ))
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
        Self { context: context.clone(), readiness: readiness.clone() }
    }

    /// Who calls. Returns UNAUTHENTICATED when there is no certificate, or it is none of a client.
    pub(super) fn caller(&self, peer: Option<&Peer>) -> Result<Caller, Status> {
        Caller::of(peer, self.context.args.insecure)
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
        if !self.context.registry.is_admin(caller) {
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
        self.context.registry.authorize(caller, id).inspect_err(|status| {
            warn!(%caller, tenant = %id, code = %status.code(), reason = status.message(), "refused call");
        })
    }
}
