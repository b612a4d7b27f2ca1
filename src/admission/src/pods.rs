//! Validation of Pods in tenants' namespaces: the final object, whoever made it and however.

use outrigger_core::companion;
use outrigger_core::ids::TenantId;
use outrigger_core::validate::{self, ValidationContext};
use serde_json::Value;

use crate::bindings;
use crate::companions::{made_by, rule_of, rule_origin};
use crate::decision::Decision;
use crate::handler::{Admission, CacheStale, Context, Refusal};
use crate::provenance::{Origin, VALIDATION};
use crate::review::Request;

/// Validates Pods, their subresources, and their bindings.
pub(crate) fn validate(cx: Context<'_>, request: &mut Request) -> Result<Admission, Refusal> {
    if request.kind.kind == "Binding" {
        return bindings::validate(cx, request);
    }
    if !matches!(request.operation.as_str(), "CREATE" | "UPDATE") {
        return Ok(Decision::allow().into());
    }
    let id = cx.owner(request)?;
    // Everything but the creation of the Pod itself changes an existing Pod: ephemeral containers and resizes too.
    let created = request.operation == "CREATE" && request.sub_resource.is_empty();
    let (bytes, before) = request.sizes();
    let before = if created { 0 } else { before };
    // Only the manager creates what a rule owns.
    let companion = cx.is_manager(request) || companion::owner(&request.old_object).is_some();
    let most = if companion { validate::MAX_COMPANION_BYTES } else { validate::MAX_BYTES };
    if let Some(error) = validate::too_large(&request.object, bytes, before, most) {
        let decision = Decision::deny_fields(403, &[error]);
        return Ok(decision.decided_by(|| origin(cx, request, &id, created)).into());
    }
    // What the rule says of claims concerns companions with claims only. Later the Pod's claims can't change.
    let claims = request.object.pointer("/spec/resourceClaims").and_then(Value::as_array);
    let rule = if created && claims.is_some_and(|claims| !claims.is_empty()) {
        rule_of(cx, request)?.and_then(|cached| cached.spec.rule)
    } else {
        None
    };
    let errors = with_facts(cx, request, &id, |facts| {
        if created {
            validate::create(&request.object, &ValidationContext { rule: rule.as_deref(), ..*facts })
        } else {
            validate::update(&request.object, &request.old_object, facts)
        }
    })?;
    let decision = Decision::by_fields(403, &errors);
    Ok(decision.decided_by(|| origin(cx, request, &id, created)).into())
}

/// What decides about a Pod, for audit: the rule whose companion is created, or else the Tenant.
fn origin(cx: Context<'_>, request: &Request, id: &TenantId, created: bool) -> String {
    let rule = companion::owner(&request.object).filter(|_| created && cx.is_manager(request));
    let origin = match (&rule, made_by(&request.object)) {
        (Some((name, _)), Ok(generation)) => rule_origin(cx, request, name, generation),
        _ => Origin::object("Tenant", id.as_str()),
    };
    origin.in_step(VALIDATION).to_string()
}

/// Calls `judge` with what the caches show of a tenant.
pub(crate) fn with_facts<T>(
    cx: Context<'_>,
    request: &Request,
    id: &TenantId,
    judge: impl FnOnce(&ValidationContext<'_>) -> T,
) -> Result<T, CacheStale> {
    let Context { caches, settings, .. } = cx;
    let stale =
        || CacheStale(format!("Tenant {id} is not known yet, or is not valid (see its Accepted condition)"));
    let tenant = caches.tenant(id).flatten().ok_or_else(stale)?;
    let default_priority_class = caches.default_priority_class();
    let claims = caches.claims(&request.namespace);
    let pod_claims = caches.pod_claims(&request.namespace);
    let device_resources = caches.device_resources();
    Ok(judge(&ValidationContext {
        policy: &tenant.policy,
        namespace: &request.namespace,
        manager: cx.is_manager(request),
        rule: None,
        schedulers: &settings.schedulers,
        default_priority_class: default_priority_class.as_deref(),
        claims: &claims,
        pod_claims: &pod_claims,
        device_resources: &device_resources,
    }))
}

#[cfg(test)]
mod tests {
    use outrigger_api::Change;
    use outrigger_core::validate::{MAX_BYTES, MAX_COMPANION_BYTES};
    use serde_json::json;

    use super::*;
    use crate::caches::Caches;
    use crate::tests::{MANAGER, caches, decide, denied, namespace, patched, request, tenant};

    fn with_tenant(caches: Caches) -> Caches {
        caches.apply_tenant(Change::Applied(tenant("blue", json!({}))));
        caches
    }

    /// The creation of a companion as it is after mutation.
    fn placed() -> Request {
        let mut request = request(MANAGER, "2");
        let decision = decide("/mutate/pods", &caches(), &mut request.clone()).unwrap();
        request.object = patched(decision, &request.object).unwrap();
        request
    }

    #[test]
    fn only_companions_may_be_larger_than_other_pods_by_the_facts_that_are_injected() {
        let caches = with_tenant(caches());
        let ask = |request: &Request, bytes: usize, before: usize| {
            let mut request = Request { sizes: Some((bytes, before)), ..request.clone() };
            decide("/validate/pods", &caches, &mut request)
        };
        let refused = |request: &Request, bytes: usize, before: usize| {
            let (code, message) = denied(ask(request, bytes, before));
            assert!(code == 403 && message.contains(&format!("has {bytes} bytes of JSON")), "{message}");
        };
        let companion = placed();
        assert_eq!(ask(&companion, MAX_BYTES + 1, 0), Ok(Decision::allow()));
        refused(&companion, MAX_COMPANION_BYTES + 1, 0);
        // Others may update a companion, and one that was larger before may stay as large.
        let mut update = companion.clone();
        (update.operation, update.old_object) = ("UPDATE".into(), update.object.clone());
        update.user_info.username = "somebody".into();
        assert_eq!(ask(&update, MAX_BYTES + 1, MAX_BYTES), Ok(Decision::allow()));
        refused(&update, MAX_COMPANION_BYTES + 1, MAX_COMPANION_BYTES);
        assert_eq!(ask(&update, MAX_COMPANION_BYTES + 2, MAX_COMPANION_BYTES + 2), Ok(Decision::allow()));
        // What its creator says of a Pod makes it no companion.
        for mut other in [companion, update] {
            other.user_info.username = "somebody".into();
            other.old_object = json!({"metadata": {}, "spec": other.object["spec"]});
            refused(&other, MAX_BYTES + 1, 1);
        }
    }

    #[test]
    fn a_rule_decides_about_the_companions_that_the_manager_creates_and_the_tenant_about_the_rest() {
        let caches = with_tenant(caches());
        let created = placed();
        let mut forged = created.clone();
        forged.user_info.username = "somebody".into();
        let mut updated = created.clone();
        (updated.operation, updated.old_object) = ("UPDATE".into(), updated.object.clone());
        let rule = "step=validation kind=WorkloadRule namespace=tenant-blue name=r generation=2";
        let tenant = "step=validation kind=Tenant name=blue";
        for (mut request, expected) in [(created, rule), (forged, tenant), (updated, tenant)] {
            request.object["spec"]["hostNetwork"] = json!(true);
            match decide("/validate/pods", &caches, &mut request) {
                Ok(Decision::Deny { by, .. }) => assert_eq!(by, expected),
                other => panic!("{expected}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_companion_without_claims_is_validated_whatever_is_known_of_its_rule() {
        let empty = with_tenant(Caches::default());
        empty.namespace(namespace("tenant-blue", &json!({outrigger_core::keys::TENANT: "blue"})));
        assert_eq!(decide("/validate/pods", &empty, &mut placed()), Ok(Decision::allow()));
    }
}
