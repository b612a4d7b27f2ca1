//! Mutation of Pods.

use crate::companions::rule_of;
use crate::decision::Decision;
use crate::handler::{Admission, CacheStale, Context, Refusal};
use crate::machines::guests;
use crate::review::Request;
use crate::steps::{Roles, apply};
use crate::{admin, offloading};

/// Decides about the creation of a Pod. Placement and facts are decided once, at creation.
pub(crate) fn mutate_pod(cx: Context<'_>, request: &mut Request) -> Result<Admission, Refusal> {
    if request.operation != "CREATE" || !request.sub_resource.is_empty() {
        return Ok(Decision::allow().into());
    }
    let tenant = cx.caches.owner(&request.namespace);
    if *request.namespace == *cx.settings.admin.resources && tenant.is_none() {
        return admin::mutate(cx, request);
    }
    let offloading = offloading::of(cx.caches, &request.namespace)?;
    if tenant.is_none() && offloading.is_none() && !cx.caches.is_injected(&request.namespace) {
        // Only requests about such namespaces are sent here, so the cache doesn't show this one yet.
        return Err(CacheStale(format!(
            "namespace {} is not known yet to belong to a tenant or to be offloaded, nor to be one whose guests get slots",
            request.namespace
        ))
        .into());
    }
    let slot = guests::slot_for(cx.caches, request)?;
    let rule = if tenant.is_some() { rule_of(cx, request)? } else { None };
    let roles = Roles {
        tenant: tenant.as_ref(),
        offloading: offloading.as_deref(),
        rule: rule.as_ref(),
        slot: slot.as_ref(),
    };
    apply(cx, request, roles)
}
