//! Mutation of Pods.

use outrigger_core::companion;
use outrigger_core::field::FieldError;
use outrigger_core::ids::{RuleName, TenantId};
use outrigger_core::json::{annotation, list, text};
use outrigger_core::mutate::{self, PodContext};
use outrigger_core::offloading::{NAME, Offloading};
use outrigger_core::{fault, keys};
use serde_json::Value;

use crate::caches::{Cached, RuleSpec};
use crate::decision::{Admission, CacheStale, Context, Decision, Refusal};
use crate::machines::guests::{self, Slot};
use crate::provenance::{self, OWN_KEYS, Origin};
use crate::review::Request;
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

/// What a Pod is admitted as.
#[derive(Clone, Copy, Default)]
pub(crate) struct Roles<'a> {
    /// The tenant that owns the namespace.
    pub(crate) tenant: Option<&'a TenantId>,
    /// The offloading of the namespace.
    pub(crate) offloading: Option<&'a Offloading>,
    /// The rule whose companion the Pod is.
    pub(crate) rule: Option<&'a Cached<RuleSpec>>,
    /// The slot that the Pod takes as a guest.
    pub(crate) slot: Option<&'a Slot>,
}

/// Runs the steps for all roles of the Pod, and warns of devices that its claims have elsewhere.
pub(crate) fn apply(cx: Context<'_>, request: &mut Request, roles: Roles<'_>) -> Result<Admission, Refusal> {
    let Roles { tenant, offloading, rule, slot } = roles;
    // Outside of tenants' namespaces Outrigger's keys mean nothing.
    if tenant.is_some() && rule.is_none() {
        mutate::refuse_own_keys(&request.object).map_err(|error| {
            Decision::deny_fields(403, &[error])
                .decided_by(|| origin(cx, request, roles, OWN_KEYS).in_step(OWN_KEYS).to_string())
        })?;
    }
    let facts = PodContext {
        tenant,
        rule: rule.and_then(|rule| rule.spec.rule.as_deref()),
        offloading: offloading.map(|offloading| mutate::offloading::OffloadingContext {
            offloading,
            exempt_runtime_class: &cx.settings.exempt_runtime_class,
        }),
        machine: slot.map(Slot::facts),
        host_labels: &cx.settings.host_labels,
    };
    cx.steps.started();
    let again = rule.is_some() && !has_gate(&request.object);
    let mut last = "";
    let mut told = |step, passed, pod: &Value| {
        last = step;
        cx.steps.finished(step, passed, pod);
    };
    let before = mutate::Before::of(&request.object, &facts);
    let report = mutate::mutate_told(&mut request.object, &facts, &mut told).map_err(|error| {
        let decision = Decision::deny_fields(422, &[error]);
        decision.decided_by(|| origin(cx, request, roles, last).in_step(last).to_string())
    })?;
    let told =
        |step: &'static str| (provenance::key(step, again), origin(cx, request, roles, step).to_string());
    let audit = report.changed.into_iter().map(told).collect();
    let mut warnings = report.warnings;
    let allocated = |claim: &str| cx.caches.allocated(&request.namespace, claim);
    warnings.extend(mutate::claims::warnings(&request.object, allocated));
    Ok(Decision::Allow { patch: before.patch(&mut request.object), warnings, audit }.into())
}

/// What decides in a step: of one that isn't listed here, nothing.
fn origin<'a>(cx: Context<'a>, request: &'a Request, roles: Roles<'a>, step: &str) -> Origin<'a> {
    let Roles { tenant, rule, slot, .. } = roles;
    let of_rule = || {
        let rule = rule.and_then(|cached| Some((cached.generation, cached.spec.rule.as_deref()?)));
        rule.map(|(generation, rule)| rule_origin(cx, request, rule.name(), generation))
    };
    let found = match step {
        "machine" => slot.map(Slot::origin),
        "offloading" => Some(Origin::object("NamespaceOffloading", NAME).within(&request.namespace)),
        "companion" | "claims" => of_rule(),
        "isolation" | OWN_KEYS => tenant.map(|tenant| Origin::object("Tenant", tenant.as_str())),
        _ => None,
    };
    found.unwrap_or_default()
}

/// A rule that decides about a request.
pub(crate) fn rule_origin<'a>(
    cx: Context<'a>,
    request: &'a Request,
    name: &'a RuleName,
    generation: i64,
) -> Origin<'a> {
    let namespace = if name.is_admin() { &cx.settings.admin.rules } else { request.namespace.as_str() };
    Origin::object(companion::kind(name.scope()), name.as_str()).within(namespace).of_generation(generation)
}

/// Whether a companion has the gate with which the manager creates it. The first call of a request removes the gate.
fn has_gate(pod: &Value) -> bool {
    list(pod, "/spec/schedulingGates").iter().any(|gate| text(gate, "/name") == keys::ADMISSION_GATE)
}

/// The rule whose companion the Pod is. `None` for all other Pods: only the manager creates companions.
pub(crate) fn rule_of(cx: Context<'_>, request: &Request) -> Result<Option<Cached<RuleSpec>>, Refusal> {
    if !cx.is_manager(request) {
        return Ok(None);
    }
    let Some((name, uid)) = companion::owner(&request.object) else { return Ok(None) };
    let cached = cx.caches.rule(&request.namespace, &name);
    as_new_as(cached, &name, uid, made_by(&request.object)?, &request.object).map(Some)
}

/// The cached rule, if it is valid and at least as new as the manager's. In the first call of a request it has to be as old, too: a
/// manager whose cache is behind would start a companion that nobody asks for any longer, or one of an earlier template in place of
/// a newer one that was deleted. In later calls, between which the rule may change, this matters to a rule with device claims only:
/// the annotation that names it stays, and with the claims of another rule the companion would keep a ResourceClaimTemplate in use
/// that nothing maintains.
pub(crate) fn as_new_as(
    cached: Option<Cached<RuleSpec>>,
    name: &RuleName,
    uid: &str,
    generation: i64,
    pod: &Value,
) -> Result<Cached<RuleSpec>, Refusal> {
    let kind = companion::kind(name.scope());
    let cached = cached
        .filter(|cached| {
            cached.uid == uid && (cached.generation >= generation || fault("outdated-rule-admits"))
        })
        .ok_or_else(|| CacheStale(format!("{kind} {name} of generation {generation} is not known yet")))?;
    let by = || {
        Origin::object(kind, name.as_str()).of_generation(cached.generation).in_step("companion").to_string()
    };
    let Some(rule) = &cached.spec.rule else {
        let message = format!("{kind} {name}: is no longer valid; see its Accepted condition");
        return Err(Decision::deny(422, message).decided_by(by).into());
    };
    if cached.generation > generation && has_gate(pod) && !fault("companion-of-an-earlier-rule-is-admitted") {
        // Waiting here would not help, and the manager retries.
        let message = format!(
            "{kind} {name}: is of generation {} by now, and the companion was made from generation {generation}; try \
             again",
            cached.generation
        );
        return Err(Decision::deny(503, message).decided_by(by).into());
    }
    if !rule.devices().claims().is_empty()
        && annotation(pod, keys::TEMPLATE_HASH) != Some(rule.template_hash())
    {
        // As above.
        let message = format!(
            "{kind} {name}: is of generation {} by now and has other device claims or another template than in \
             generation {generation}, which the companion was made from; try again",
            cached.generation
        );
        return Err(Decision::deny(503, message).decided_by(by).into());
    }
    Ok(cached)
}

/// The generation of the rule that the manager created the companion from.
pub(crate) fn made_by(pod: &Value) -> Result<i64, Decision> {
    annotation(pod, keys::RULE_GENERATION).and_then(|text| text.parse().ok()).ok_or_else(|| {
        let path = format!("metadata.annotations[{}]", keys::RULE_GENERATION);
        Decision::deny_fields(422, &[FieldError::new(path, "must be an integer")])
    })
}

#[cfg(test)]
mod tests {
    use outrigger_core::mutate::STEPS;
    use serde_json::json;

    use super::*;
    use crate::decision::Settings;
    use crate::machines::guests::tests::{apply_machine, cases};
    use crate::tests::{MANAGER, caches, namespace, request};

    #[test]
    fn each_step_names_what_decides_in_it() {
        let (caches, settings, case) = (caches(), Settings::default(), &cases("pod_injector")[0]);
        let labels = json!({keys::TENANT: "blue", keys::INJECT_RESOURCE: keys::INJECT_ENABLED});
        caches.namespace(namespace("tenant-blue", &labels));
        apply_machine(&caches, &case["machine"]);
        let (cx, mut request) = (Context::new(&caches, &settings), request(MANAGER, "2"));
        let (tenant, rule) = (caches.owner("tenant-blue"), rule_of(cx, &request).unwrap());
        request.object = case["pod"].clone();
        let slot = guests::slot_for(&caches, &request).unwrap();
        let roles =
            Roles { tenant: tenant.as_ref(), rule: rule.as_ref(), slot: slot.as_ref(), ..Roles::default() };
        let kind = |step| origin(cx, &request, roles, step).kind.unwrap_or_default();
        let kinds: Vec<_> = STEPS.iter().map(|(step, _)| (*step, kind(step))).collect();
        let expected = [
            ("machine", "Machine"),
            ("offloading", "NamespaceOffloading"),
            ("companion", "WorkloadRule"),
            ("isolation", "Tenant"),
            ("claims", "WorkloadRule"),
        ];
        assert_eq!(kinds, expected.map(|(step, kind)| (step, kind.into())));
        assert_eq!([kind(OWN_KEYS), kind("unknown")], ["Tenant", ""]);
    }
}
