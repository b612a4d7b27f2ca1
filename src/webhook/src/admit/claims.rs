//! Validation of ResourceClaims and ResourceClaimTemplates in tenants' namespaces.

use outrigger_core::validate;

use super::{Behind, Settings, is_manager, owner, verdict};
use crate::caches::Caches;
use crate::review::{Decision, Request};

pub(super) fn validate(caches: &Caches, settings: &Settings, request: &Request) -> Result<Decision, Behind> {
    let id = owner(caches, &request.namespace)?;
    let not_known =
        || Behind(format!("Tenant {id} is not known yet, or is not valid (see its Accepted condition)"));
    let cached = caches.tenant(&id).ok_or_else(not_known)?;
    let tenant = cached.tenant.as_ref().ok_or_else(not_known)?;
    let manager = is_manager(settings, request);
    Ok(verdict(&validate::claim(&request.object, &request.old_object, &tenant.policy, manager)))
}
