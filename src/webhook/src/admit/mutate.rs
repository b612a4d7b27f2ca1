//! Mutation of Pods.

use outrigger_core::companion;
use outrigger_core::field::FieldError;
use outrigger_core::ids::{RuleName, TenantId};
use outrigger_core::keys;
use outrigger_core::mutate::{self, Facts};
use outrigger_core::offloading::Offloading;
use serde_json::Value;

use super::guests::Slot;
use super::{Behind, Settings, admin, deny, deny_fields, expect_kind, guests, offloading};
use crate::caches::{CachedRule, Caches};
use crate::metrics::StepClock;
use crate::review::{Decision, Request};

/// Decides about the creation of a Pod. The request's object is changed on the way, but not when a cache is behind: the
/// same request can be asked about again then.
///
/// # Errors
/// [`Behind`] when a cache has to catch up first.
pub fn mutate_pod(caches: &Caches, settings: &Settings, request: &mut Request) -> Result<Decision, Behind> {
    if let Err(denied) = expect_kind(request, &[("", "v1", "Pod")]) {
        return Ok(denied);
    }
    if request.operation != "CREATE" || !request.sub_resource.is_empty() {
        // Placement and facts are decided once, at creation.
        return Ok(Decision::allow());
    }
    let tenant = caches.owner(&request.namespace);
    if *request.namespace == *settings.admin.resources && tenant.is_none() {
        return admin::mutate(caches, settings, request);
    }
    let offloading = offloading::of(caches, &request.namespace)?;
    if tenant.is_none() && offloading.is_none() && !caches.is_injected(&request.namespace) {
        // Only what is in such namespaces is sent here, so this one isn't known yet.
        return Err(Behind(format!(
            "namespace {} is not known yet to belong to a tenant or to be offloaded, nor to be one whose guests get slots",
            request.namespace
        )));
    }
    let slot = match guests::of(caches, request) {
        Ok(slot) => slot,
        Err((outcome, denied)) => {
            request.guest = Some(outcome);
            return Ok(denied);
        }
    };
    let rule = match &tenant {
        None => None,
        Some(_) => match rule_of(caches, settings, request)? {
            Ok(rule) => rule,
            Err(denied) => return Ok(denied),
        },
    };
    let roles = Roles {
        tenant: tenant.as_ref(),
        offloading: offloading.as_deref(),
        rule: rule.as_ref(),
        slot: slot.as_ref(),
    };
    let decision = apply(&mut request.object, roles, settings);
    Ok(with_devices(decision, caches, request))
}

/// Adds what is to be said about the devices that the Pod's claims have already.
pub(super) fn with_devices(mut decision: Decision, caches: &Caches, request: &Request) -> Decision {
    if let Decision::Allow { warnings, .. } = &mut decision {
        let allocated = |claim: &str| caches.allocated(&request.namespace, claim);
        warnings.extend(mutate::claims::warnings(&request.object, allocated));
    }
    decision
}

/// What a Pod's namespace and the Pod itself are besides.
#[derive(Clone, Copy, Default)]
pub(super) struct Roles<'a> {
    /// A tenant's.
    pub(super) tenant: Option<&'a TenantId>,
    /// Offloaded.
    pub(super) offloading: Option<&'a Offloading>,
    /// A companion.
    pub(super) rule: Option<&'a CachedRule>,
    /// A guest.
    pub(super) slot: Option<&'a Slot>,
}

/// Runs the steps that concern the namespace: a tenant's that is offloaded too has both.
pub(super) fn apply(object: &mut Value, roles: Roles<'_>, settings: &Settings) -> Decision {
    let Roles { tenant, offloading, rule, slot } = roles;
    // Elsewhere our keys mean nothing.
    if tenant.is_some()
        && rule.is_none()
        && let Err(error) = mutate::refuse_own_keys(object)
    {
        return deny_fields(403, &[error]);
    }
    let facts = Facts {
        tenant,
        rule: rule.and_then(|r| r.rule.as_deref()),
        offloading: offloading.map(|offloading| mutate::offloading::Facts {
            offloading,
            exempt_runtime_class: &settings.exempt_runtime_class,
        }),
        machine: slot.map(Slot::facts),
        host_label: &settings.host_label,
    };
    let mut clock = StepClock::new();
    match mutate::patch_told(object, &facts, &mut |step, passed| clock.over(step, passed)) {
        Ok((patch, report)) => Decision::Allow { patch, warnings: report.warnings },
        Err(error) => deny_fields(422, &[error]),
    }
}

/// The rule whose companion the Pod is. `None` for everybody else's Pods: only the manager's word makes a companion.
pub(super) fn rule_of(
    caches: &Caches,
    settings: &Settings,
    request: &Request,
) -> Result<Result<Option<CachedRule>, Decision>, Behind> {
    let pod = &request.object;
    if !settings.managers.contains(&request.user_info.username) {
        return Ok(Ok(None));
    }
    let Some((name, uid)) = companion::owner(pod) else { return Ok(Ok(None)) };
    let made_by = match made_by(pod) {
        Ok(generation) => generation,
        Err(error) => return Ok(Err(deny_fields(422, &[error]))),
    };
    let cached = caches.rule(&request.namespace, name.as_str());
    Ok(as_new_as(cached, &name, uid, made_by, pod)?.map(Some))
}

/// The rule, if it is as new as the manager's own, and valid. A rule with device claims has to be the very one that the
/// companion was made from: the annotation that tells so stays, and with claims of another one the companion would keep a
/// ResourceClaimTemplate in use that nobody keeps for it.
pub(super) fn as_new_as(
    cached: Option<CachedRule>,
    name: &RuleName,
    uid: &str,
    generation: i64,
    pod: &Value,
) -> Result<Result<CachedRule, Decision>, Behind> {
    let kind = companion::kind(name.scope());
    let cached = cached
        .filter(|cached| cached.uid == uid && cached.generation >= generation)
        .ok_or_else(|| Behind(format!("{kind} {name} of generation {generation} is not known yet")))?;
    let Some(rule) = &cached.rule else {
        let message = format!("{kind} {name}: is not valid any more; see its Accepted condition");
        return Ok(Err(deny(422, message)));
    };
    let hash =
        pod.get("metadata").and_then(|m| m.get("annotations")).and_then(|a| a.get(keys::TEMPLATE_HASH));
    if !rule.devices().claims().is_empty() && hash.and_then(Value::as_str) != Some(rule.template_hash()) {
        // It is the manager who is behind: waiting here would not help, and it tries again.
        let message = format!(
            "{kind} {name}: is of generation {} by now and has other device claims or another template than in \
             generation {generation}, which the companion was made from; try again",
            cached.generation
        );
        return Ok(Err(deny(503, message)));
    }
    Ok(Ok(cached))
}

/// The generation of the rule that the manager made the companion from.
pub(super) fn made_by(pod: &Value) -> Result<i64, FieldError> {
    let text =
        pod.get("metadata").and_then(|m| m.get("annotations")).and_then(|a| a.get(keys::RULE_GENERATION));
    text.and_then(Value::as_str).and_then(|text| text.parse().ok()).ok_or_else(|| {
        FieldError::new(format_args!("metadata.annotations[{}]", keys::RULE_GENERATION), "must be an integer")
    })
}
