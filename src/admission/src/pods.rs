//! Validation of Pods in tenants' namespaces: the final object, whoever made it and however.

use std::sync::Arc;

use outrigger_core::companion;
use outrigger_core::ids::TenantId;
use outrigger_core::json::{list, text};
use outrigger_core::tenant::Tenant;
use outrigger_core::validate::{self, ValidationContext};

use crate::bindings;
use crate::companions::{made_by, rule_of_managers, rule_origin};
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
    let by_manager = cx.is_manager(request);
    let decider = || origin(cx, request, &id, created && by_manager);
    // Only the manager creates what a rule owns.
    let companion = by_manager || companion::owner(&request.old_object).is_some();
    let most = if companion { validate::MAX_COMPANION_BYTES } else { validate::MAX_BYTES };
    if let Some(error) = validate::too_large(&request.object, bytes, before, most) {
        let decision = Decision::deny_fields(403, &[error]);
        return Ok(decision.decided_by(decider).into());
    }
    // What the rule says of claims concerns companions with claims only. Later the Pod's claims can't change.
    let has_claims = !list(&request.object, "/spec/resourceClaims").is_empty();
    let has_rule = by_manager && created && has_claims;
    let rule = if has_rule { rule_of_managers(cx, request)? } else { None };
    let rule = rule.and_then(|cached| cached.spec.rule);
    let (tenant, faults) = with_facts(cx, request, &id, |facts| {
        let facts = ValidationContext { manager: by_manager, rule: rule.as_deref(), ..*facts };
        if created {
            validate::create(&request.object, &facts)
        } else {
            validate::update(&request.object, &request.old_object, &facts)
        }
    })?;
    let pod = text(&request.object, "/metadata/name");
    let exception = |check: &str| cx.exception(&tenant, check, pod);
    let level = cx.enforcement(&tenant);
    Ok(Decision::at_level(level, 403, faults, exception, decider).into())
}

/// What decides about a Pod, for audit: the rule whose companion the manager `creates`, or else the Tenant.
fn origin(cx: Context<'_>, request: &Request, id: &TenantId, creates: bool) -> String {
    let rule = companion::owner(&request.object).filter(|_| creates);
    let origin = match (&rule, made_by(&request.object)) {
        (Some((name, _)), Ok(generation)) => rule_origin(cx, request, name, generation),
        _ => Origin::object("Tenant", id.as_str()),
    };
    origin.in_step(VALIDATION).to_string()
}

/// Calls `judge` with what the caches show of a tenant, for what somebody else than the manager makes. Returns the tenant beside the
/// result.
pub(crate) fn with_facts<T>(
    cx: Context<'_>,
    request: &Request,
    id: &TenantId,
    judge: impl FnOnce(&ValidationContext<'_>) -> T,
) -> Result<(Arc<Tenant>, T), CacheStale> {
    let Context { caches, settings, .. } = cx;
    let stale =
        || CacheStale(format!("Tenant {id} is not known yet, or is not valid (see its Accepted condition)"));
    let tenant = caches.tenant(id).flatten().ok_or_else(stale)?;
    let default_priority_class = caches.default_priority_class();
    let claims = caches.claims(&request.namespace);
    let pod_claims = caches.pod_claims(&request.namespace);
    let device_resources = caches.device_resources();
    let judged = judge(&ValidationContext {
        policy: &tenant.policy,
        namespace: &request.namespace,
        manager: false,
        rule: None,
        schedulers: &settings.schedulers,
        default_priority_class: default_priority_class.as_deref(),
        claims: &claims,
        pod_claims: &pod_claims,
        device_resources: &device_resources,
    });
    Ok((tenant, judged))
}

#[cfg(test)]
mod tests {
    use outrigger_api::Change;
    use outrigger_core::keys;
    use outrigger_core::tenant::Enforcement;
    use outrigger_core::validate::{MAX_BYTES, MAX_COMPANION_BYTES};
    use serde_json::{Value, json};

    use super::*;
    use crate::caches::Caches;
    use crate::handler::Settings;
    use crate::tests::{
        MANAGER, applied, caches, decide, denied, namespace, patched, request, request_for, tenant,
    };
    use crate::webhooks;

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

    /// A Pod that uses the claim of another Pod, which a level may let through, with this change. At a tenant's level and the
    /// installation's.
    fn user_of_a_claim(spec: Value, level: Enforcement, change: &Value) -> Decision {
        let caches = caches();
        caches.apply_tenant(Change::Applied(tenant("blue", spec)));
        let claim = json!({"metadata": {"name": "web-d-x7k2m", "namespace": "tenant-blue", "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u", "controller": true}]}, "spec": {}});
        caches.claim(applied(claim));
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}],
            "resourceClaims": [{"name": "d", "resourceClaimName": "web-d-x7k2m"}]}});
        let mut request = request_for("Pod", "tenant-blue", &pod, &Value::Null);
        let decision = decide("/mutate/pods", &caches, &mut request.clone()).unwrap();
        request.object = patched(decision, &request.object).unwrap();
        json_patch::merge(&mut request.object, change);
        let settings = Settings { enforcement: level, ..Settings::default() };
        let endpoint = webhooks::endpoint("/validate/pods").unwrap();
        let cx = Context { now: Some(1_000_000_000), ..Context::new(&caches, &settings) };
        endpoint.decide(cx, &mut request).unwrap().decision
    }

    #[test]
    fn an_exception_lets_a_named_pod_through_a_check_until_its_end_and_says_so_to_audit() {
        let path = "spec.resourceClaims[0].resourceClaimName";
        let decided = |pods: &str, until: &str, change: Value| {
            let exception = json!({"name": "a", "requestedBy": "storage", "checks": ["ClaimsOfOtherPods"],
                "pods": [pods], "until": until});
            user_of_a_claim(json!({"exceptions": [exception]}), Enforcement::Enforce, &change)
        };
        // The time is 2001-09-09T01:46:40Z.
        let (later, now) = ("2001-09-09T01:46:41Z", "2001-09-09T01:46:40Z");
        let decision = decided("p", later, json!({}));
        assert!(decision.would_deny());
        let Decision::Allow { warnings, audit, .. } = decision else { panic!("{decision:?}") };
        let warning = format!("is admitted by the exception a until {later}: {path}: ");
        assert!(warnings.len() == 1 && warnings[0].starts_with(&warning), "{warnings:?}");
        let value = format!("code=403 exception=a step=validation kind=Tenant name=blue fields={path}");
        assert_eq!(audit, [("denied", value)]);
        for (pods, until, change, field) in [
            ("p", now, json!({}), path),
            ("other", later, json!({}), path),
            ("q*", later, json!({}), path),
            // What isn't excepted is refused, and named alone.
            ("p", later, json!({"spec": {"hostNetwork": true}}), "spec.hostNetwork"),
        ] {
            let (_, message) = denied(Ok(decided(pods, until, change)));
            assert!(message.starts_with(field), "{pods} {until}: {message}");
        }
    }

    #[test]
    fn a_level_lets_through_what_it_governs_with_a_warning_and_says_so_to_audit() {
        let path = "spec.resourceClaims[0].resourceClaimName";
        let refused = |decision: Decision| {
            assert!(!decision.would_deny());
            denied(Ok(decision))
        };
        // The Tenant's level counts before the installation's, and the default is Enforce.
        for (spec, level) in
            [(json!({}), Enforcement::default()), (json!({"enforcement": "Enforce"}), Enforcement::Observe)]
        {
            let (code, message) = refused(user_of_a_claim(spec, level, &json!({})));
            assert!(code == 403 && message.starts_with(path), "{message}");
        }
        for (spec, level, expected) in [
            (json!({}), Enforcement::Warn, "Warn"),
            (json!({"enforcement": "Observe"}), Enforcement::Enforce, "Observe"),
            (json!({"enforcement": "Warn"}), Enforcement::Enforce, "Warn"),
        ] {
            let decision = user_of_a_claim(spec, level, &json!({}));
            assert!(decision.would_deny());
            let Decision::Allow { patch, warnings, audit } = decision else { panic!("{decision:?}") };
            assert!(patch.0.is_empty());
            let warning = format!(
                "would be refused at the level Enforce: {path}: is \"web-d-x7k2m\", which was made for Pod"
            );
            assert!(warnings.len() == 1 && warnings[0].starts_with(&warning), "{warnings:?}");
            let denial =
                format!("code=403 level={expected} step=validation kind=Tenant name=blue fields={path}");
            assert_eq!(audit, [("denied", denial)]);
        }
    }

    #[test]
    fn placement_and_isolation_are_enforced_at_the_lowest_level() {
        for (change, path) in [
            (json!({"spec": {"affinity": null}}), "spec.affinity"),
            (json!({"spec": {"hostNetwork": true}}), "spec.hostNetwork"),
            (json!({"spec": {"nodeName": "n"}}), "spec.nodeName"),
            (json!({"spec": {"serviceAccountName": "other"}}), "spec.serviceAccountName"),
            (json!({"spec": {"priorityClassName": "system-node-critical"}}), "spec.priorityClassName"),
            (json!({"metadata": {"labels": {keys::RULE: "r"}}}), "metadata.labels"),
            (
                json!({"spec": {"resourceClaims": [{"name": "d", "resourceClaimName": "r-573e560607f4a185"}]}}),
                "spec.resourceClaims",
            ),
        ] {
            let decision = user_of_a_claim(json!({"enforcement": "Observe"}), Enforcement::Observe, &change);
            let Decision::Deny { code: 403, message, causes, .. } = decision else {
                panic!("{path}: {decision:?}")
            };
            assert!(
                message.starts_with(path) && causes.len() == 1,
                "only what refuses it is named: {message}"
            );
        }
    }

    #[test]
    fn a_companion_without_claims_is_validated_whatever_is_known_of_its_rule() {
        let empty = with_tenant(Caches::default());
        empty.namespace(namespace("tenant-blue", &json!({outrigger_core::keys::TENANT: "blue"})));
        assert_eq!(decide("/validate/pods", &empty, &mut placed()), Ok(Decision::allow()));
    }
}
