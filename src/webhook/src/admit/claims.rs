//! Validation of ResourceClaims and ResourceClaimTemplates in tenants' namespaces.

use outrigger_core::validate;

use super::pods::with_facts;
use super::{Behind, Settings, owner, verdict};
use crate::caches::Caches;
use crate::review::{Decision, Request};

pub(super) fn validate(caches: &Caches, settings: &Settings, request: &Request) -> Result<Decision, Behind> {
    let id = owner(caches, &request.namespace)?;
    let faults = with_facts(caches, settings, request, &id, |facts| {
        validate::claim(&request.object, &request.old_object, facts.policy, facts.manager)
    })?;
    Ok(verdict(&faults))
}
