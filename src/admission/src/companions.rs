//! Which rule a companion is of. Only the manager creates companions.

use outrigger_core::field::FieldError;
use outrigger_core::ids::RuleName;
use outrigger_core::json::{annotation, list, text};
use outrigger_core::{companion, fault, keys};
use serde_json::Value;

use crate::caches::{Cached, RuleSpec};
use crate::decision::Decision;
use crate::handler::{CacheStale, Context, Refusal};
use crate::provenance::Origin;
use crate::review::Request;

/// The rule whose companion the Pod is. `None` for all other Pods: only the manager creates companions.
pub(crate) fn rule_of(cx: Context<'_>, request: &Request) -> Result<Option<Cached<RuleSpec>>, Refusal> {
    if cx.is_manager(request) { rule_of_managers(cx, request) } else { Ok(None) }
}

/// The rule whose companion a Pod is that the manager creates.
pub(crate) fn rule_of_managers(
    cx: Context<'_>,
    request: &Request,
) -> Result<Option<Cached<RuleSpec>>, Refusal> {
    let Some((name, uid)) = companion::owner(&request.object) else { return Ok(None) };
    current_rule(cx, request, &name, uid).map(Some)
}

/// The cached rule, if it is valid and at least as new as the manager's. In the first call of a request it has to be as old, too: a
/// manager whose cache is behind would start a companion that nobody asks for any longer, or one of an earlier template in place of
/// a newer one that was deleted. In later calls, between which the rule may change, this matters to a rule with device claims only:
/// the annotation that names it stays, and with the claims of another rule the companion would keep a ResourceClaimTemplate in use
/// that nothing maintains.
pub(crate) fn current_rule(
    cx: Context<'_>,
    request: &Request,
    name: &RuleName,
    uid: &str,
) -> Result<Cached<RuleSpec>, Refusal> {
    let pod = &request.object;
    let (kind, generation) = (companion::kind(name.scope()), made_by(pod)?);
    let cached = cx
        .caches
        .rule(&request.namespace, name)
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
pub(crate) fn has_gate(pod: &Value) -> bool {
    list(pod, "/spec/schedulingGates").iter().any(|gate| text(gate, "/name") == keys::ADMISSION_GATE)
}
