//! Validation of Pods in tenants' namespaces: the final object, whoever made it and however.

use outrigger_core::companion;
use outrigger_core::ids::TenantId;
use outrigger_core::validate::{self, ValidationContext};
use serde_json::Value;

use crate::bindings;
use crate::decision::{Admission, CacheStale, Context, Decision, Refusal};
use crate::mutate::{made_by, rule_of, rule_origin};
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
