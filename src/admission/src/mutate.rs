//! Mutation of Pods.

use outrigger_core::json::label;
use outrigger_core::{companion, keys};

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
    if tenant.is_none()
        && let Some(stale) = stale(cx, request, offloading.is_some())
    {
        return Err(stale.into());
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

/// What the cache doesn't show yet of a namespace that it shows without a tenant. All webhooks for new Pods share one path, so the object
/// has to tell which of them was called: companions are created in tenants' namespaces only, and where the cache shows nothing but
/// [`keys::INJECT_RESOURCE`], only guests are sent. To admit another Pod there, without what isolates it, would have the policies
/// refuse it for good. Of other Pods in an offloaded namespace, and of guests, the object doesn't tell.
fn stale(cx: Context<'_>, request: &Request, is_offloaded: bool) -> Option<CacheStale> {
    let is_injected = cx.caches.is_injected(&request.namespace);
    let is_guest = label(&request.object, keys::POD_ROLE) == Some(keys::GUEST);
    let unknown = if cx.is_manager(request) && companion::owner(&request.object).is_some() {
        "to belong to a tenant"
    } else if is_offloaded || is_injected && is_guest {
        return None;
    } else if is_injected {
        "to belong to a tenant or to be offloaded"
    } else {
        "to belong to a tenant or to be offloaded, nor to be one whose guests get slots"
    };
    Some(CacheStale(format!("namespace {} is not known yet {unknown}", request.namespace)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::caches::Caches;
    use crate::tests::{MANAGER, applied, caches, decide, namespace, request, request_for};

    #[test]
    fn a_pod_that_only_a_tenants_namespace_has_waits_for_the_label_of_an_adopted_namespace() {
        let caches = caches();
        let (offloaded, injected) =
            ((keys::OFFLOADED, "true"), (keys::INJECT_RESOURCE, keys::INJECT_ENABLED));
        let offloading = json!({"metadata": {"name": "offloading", "namespace": "tenant-blue"},
            "spec": {"podOffloadingStrategy": "Local"}});
        caches.apply_offloading(applied(offloading));
        let pod = |labels: Value| {
            let pod = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c"}]}});
            request_for("Pod", "tenant-blue", &pod, &Value::Null)
        };
        let (plain, guest) = (pod(json!({})), pod(json!({keys::POD_ROLE: keys::GUEST})));
        let companion = request(MANAGER, "2");
        let answer =
            |caches: &Caches, request: &Request| decide("/mutate/pods", caches, &mut request.clone());
        for ((key, value), request, unknown) in [
            (offloaded, &companion, Some("to belong to a tenant")),
            (injected, &companion, Some("to belong to a tenant")),
            (injected, &plain, Some("to belong to a tenant or to be offloaded")),
            // The webhooks of these namespaces are called for such Pods too.
            (offloaded, &plain, None),
            (injected, &guest, None),
        ] {
            caches.namespace(namespace("tenant-blue", &json!({key: value})));
            let expected =
                unknown.map(|unknown| format!("namespace tenant-blue is not known yet {unknown}; try again"));
            let stale = answer(&caches, request).err().map(|stale| stale.to_string());
            assert_eq!(stale, expected, "{key} {}", request.object);
            // When the label is there, the Pod is admitted.
            caches.namespace(namespace("tenant-blue", &json!({key: value, keys::TENANT: "blue"})));
            let admitted = answer(&caches, request);
            assert!(
                matches!(&admitted, Ok(Decision::Allow { patch, .. }) if !patch.0.is_empty()),
                "{admitted:?}"
            );
        }
    }
}
