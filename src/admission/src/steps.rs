//! Running the steps of the mutation on a Pod, for all that the Pod is.

use outrigger_core::ids::TenantId;
use outrigger_core::mutate::{self, PodContext};
use outrigger_core::offloading::{NAME, Offloading};
use serde_json::Value;

use crate::caches::{Cached, RuleSpec};
use crate::companions::{has_gate, rule_origin};
use crate::decision::Decision;
use crate::handler::{Admission, Context, Refusal};
use crate::machines::guests::Slot;
use crate::provenance::{self, OWN_KEYS, Origin};
use crate::review::Request;

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
    let mut observer = |step, passed, pod: &Value| {
        last = step;
        cx.steps.finished(step, passed, pod);
    };
    let before = mutate::Before::of(&request.object, &facts);
    let report = mutate::mutate_observed(&mut request.object, &facts, &mut observer).map_err(|error| {
        let decision = Decision::deny_fields(422, &[error]);
        decision.decided_by(|| origin(cx, request, roles, last).in_step(last).to_string())
    })?;
    let decided =
        |step: &'static str| (provenance::key(step, again), origin(cx, request, roles, step).to_string());
    let audit = report.changed.into_iter().map(decided).collect();
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

#[cfg(test)]
mod tests {
    use outrigger_core::keys;
    use outrigger_core::mutate::STEPS;
    use serde_json::json;

    use super::*;
    use crate::companions::rule_of;
    use crate::handler::Settings;
    use crate::machines::guests::{
        self,
        tests::{apply_machine, cases},
    };
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
