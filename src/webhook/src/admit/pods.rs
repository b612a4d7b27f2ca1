//! Validation of Pods in tenants' namespaces: the final object, whoever made it and however.

use outrigger_core::companion;
use outrigger_core::ids::TenantId;
use outrigger_core::validate::{self, Facts};

use serde_json::Value;

use super::mutate::rule_of;
use super::{Behind, Settings, is_manager, owner, verdict};
use crate::caches::Caches;
use crate::review::{Decision, Request};

pub(super) fn validate(caches: &Caches, settings: &Settings, request: &Request) -> Result<Decision, Behind> {
    if !matches!(request.operation.as_str(), "CREATE" | "UPDATE") {
        return Ok(Decision::allow());
    }
    let id = owner(caches, &request.namespace)?;
    // Everything but the creation of the Pod itself changes one that is there: ephemeral containers and resizes too.
    let created = request.operation == "CREATE" && request.sub_resource.is_empty();
    let (bytes, before) = request.sizes();
    let before = if created { 0 } else { before };
    // Nobody but the manager makes what a rule owns.
    let companion = is_manager(settings, request) || companion::owner(&request.old_object).is_some();
    let most = if companion { validate::MAX_COMPANION_BYTES } else { validate::MAX_BYTES };
    if let Some(fault) = validate::too_large(&request.object, bytes, before, most) {
        return Ok(verdict(&[fault]));
    }
    // What the rule says of claims matters to a companion that has some. Later the Pod's claims can't change.
    let claims = request.object.pointer("/spec/resourceClaims").and_then(Value::as_array);
    let rule = if created && claims.is_some_and(|claims| !claims.is_empty()) {
        match rule_of(caches, settings, request)? {
            Ok(rule) => rule.and_then(|cached| cached.rule),
            Err(denied) => return Ok(denied),
        }
    } else {
        None
    };
    let faults = with_facts(caches, settings, request, &id, |facts| {
        if created {
            validate::create(&request.object, &Facts { rule: rule.as_deref(), ..*facts })
        } else {
            validate::update(&request.object, &request.old_object, facts)
        }
    })?;
    Ok(verdict(&faults))
}

/// Judges by what is known of a tenant.
pub(super) fn with_facts<T>(
    caches: &Caches,
    settings: &Settings,
    request: &Request,
    id: &TenantId,
    judge: impl FnOnce(&Facts<'_>) -> T,
) -> Result<T, Behind> {
    let not_known =
        || Behind(format!("Tenant {id} is not known yet, or is not valid (see its Accepted condition)"));
    let cached = caches.tenant(id).ok_or_else(not_known)?;
    let tenant = cached.tenant.as_ref().ok_or_else(not_known)?;
    let default_priority_class = caches.default_priority_class();
    let claims = caches.claims(&request.namespace);
    let pod_claims = caches.pod_claims(&request.namespace);
    let device_resources = caches.device_resources();
    Ok(judge(&Facts {
        policy: &tenant.policy,
        namespace: &request.namespace,
        manager: is_manager(settings, request),
        rule: None,
        schedulers: &settings.schedulers,
        default_priority_class: default_priority_class.as_deref(),
        claims: &claims,
        pod_claims: &pod_claims,
        device_resources: &device_resources,
    }))
}
