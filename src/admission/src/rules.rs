//! Validation of WorkloadRules: what the schema can't express, with the messages of the manager and gRPC, and warnings.

use kube::ResourceExt;
use outrigger_api::WorkloadRule;
use outrigger_core::field::FieldError;
use outrigger_core::ids::TenantId;
use outrigger_core::lint::{self, LintContext};
use outrigger_core::validate;
use serde::Deserialize;

use crate::decision::Decision;
use crate::handler::{Admission, Context, Refusal};
use crate::pods::with_facts;
use crate::review::Request;

/// Validates a rule. A rule in a namespace without tenant (a tenant's own cluster, say), or whose Tenant isn't known yet, is
/// validated by itself: its companions are validated again when they are created.
pub(crate) fn validate(cx: Context<'_>, request: &mut Request) -> Result<Admission, Refusal> {
    if request.leaves_spec() {
        // An object that was invalid before may still lose its finalizers.
        return Ok(Decision::allow().into());
    }
    let object = WorkloadRule::deserialize(&request.object)
        .map_err(|error| Decision::deny(422, format!("spec: {error}")))?;
    let rule = object.compile().map_err(|errors| Decision::deny_fields(422, &errors))?;
    let owner = cx.caches.owner(&request.namespace);
    let judged = owner.as_ref().and_then(|id| {
        let template = &object.spec.template.tree();
        with_facts(cx, request, id, |facts| {
            let mut errors = validate::template(template, "spec.template", facts);
            errors.extend(validate::device_claims(&rule, facts));
            errors
        })
        .ok()
    });
    let (level, errors) =
        judged.map(|(tenant, errors)| (cx.enforcement(&tenant), errors)).unwrap_or_default();
    // Exceptions are of Pods.
    let judged = Decision::at_level(level, 422, errors, |_| None, String::new);
    if matches!(judged, Decision::Deny { .. }) {
        return Ok(judged.into());
    }
    if let Some(over) = owner.as_ref().and_then(|id| over_limit(cx, request, id, &object)) {
        // The API server's own quotas answer with this code.
        return Ok(Decision::deny_fields(403, &[over]).into());
    }
    let around = LintContext {
        host_labels: &cx.settings.host_labels,
        tenant: owner.as_ref().map(TenantId::as_str),
        dpus: owner.as_ref().map(|id| cx.caches.dpus_of(id)),
    };
    Ok(judged.with_warnings(lint::rule(&rule, &around)).into())
}

/// The error of a rule that exceeds its tenant's limit. Existing rules stay, and may become smaller. Rules that are admitted at
/// the same time don't see each other: together they may exceed the limit by as much as is admitted before the watch shows the
/// first.
fn over_limit(
    cx: Context<'_>,
    request: &Request,
    id: &TenantId,
    object: &WorkloadRule,
) -> Option<FieldError> {
    let (caches, name) = (cx.caches, object.name_any());
    let limit = caches.tenant(id)??.limits.rule_bytes;
    let size = object.size();
    let would = caches.other_rules_size(&request.namespace, &name).saturating_add(size);
    let before = caches.rule_size(&request.namespace, &name);
    (would > limit && size > before).then(|| {
        FieldError::new(
            "spec",
            format_args!(
                "exceeded quota: Tenant spec.limits.ruleBytes: {would} would be used, at most {limit} are allowed, {size} by \
                 this rule; shorten or remove rules, or ask the platform"
            ),
        )
    })
}
