//! Validation of WorkloadRules: what the schema can't tell, the same as the manager and gRPC say it, and warnings.

use kube::ResourceExt;
use outrigger_api::WorkloadRule;
use outrigger_core::field::FieldError;
use outrigger_core::ids::TenantId;
use outrigger_core::lint::{self, Around};
use outrigger_core::validate;
use serde::Deserialize;

use super::pods::with_facts;
use super::{Settings, deny, deny_fields};
use crate::caches::Caches;
use crate::review::{Decision, Request};

/// A rule in a namespace without tenant (a tenant's own cluster, say) is judged by itself. One whose Tenant isn't known
/// yet is too: its companions are judged again when they are made.
pub(super) fn validate(caches: &Caches, settings: &Settings, request: &Request) -> Decision {
    if request.operation == "UPDATE" && request.object.get("spec") == request.old_object.get("spec") {
        // One that was no better before may still lose its finalizers.
        return Decision::allow();
    }
    let object = match WorkloadRule::deserialize(&request.object) {
        Ok(object) => object,
        Err(error) => return deny(422, format!("spec: {error}")),
    };
    let rule = match object.compile() {
        Ok(rule) => rule,
        Err(errors) => return deny_fields(422, &errors),
    };
    let owner = caches.owner(&request.namespace);
    let judged = owner.as_ref().and_then(|id| {
        let template = &object.spec.template.tree();
        with_facts(caches, settings, request, id, |facts| {
            let mut faults = validate::template(template, "spec.template", facts);
            faults.extend(validate::device_claims(&rule, facts));
            faults
        })
        .ok()
    });
    let faults = judged.unwrap_or_default();
    if !faults.is_empty() {
        return deny_fields(422, &faults);
    }
    if let Some(over) = owner.as_ref().and_then(|id| over_limit(caches, request, id, &object)) {
        // As the API server's own quotas answer.
        return deny_fields(403, &[over]);
    }
    let around = Around {
        host_label: &settings.host_label,
        tenant: owner.as_ref().map(TenantId::as_str),
        dpus: owner.as_ref().map(|id| caches.dpus_of(id)),
    };
    Decision::Allow { patch: json_patch::Patch(Vec::new()), warnings: lint::rule(&rule, &around) }
}

/// Why a rule would be one too many bytes. What is there stays, and may become smaller. Rules that are admitted at the same time
/// don't see each other: together they may exceed the limit by as much as is admitted before the watch shows the first.
fn over_limit(
    caches: &Caches,
    request: &Request,
    id: &TenantId,
    object: &WorkloadRule,
) -> Option<FieldError> {
    let limit = caches.tenant(id)?.tenant.as_ref()?.limits.rule_bytes;
    let size = object.size();
    let would = caches.other_rules_size(&request.namespace, &object.name_any()).saturating_add(size);
    let before = caches.rule(&request.namespace, &object.name_any()).map_or(0, |rule| rule.size);
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

/// Whether the object is one that rules are validated as.
pub(super) const KIND: (&str, &str, &str) = ("workload.universe.nvidia.com", "v1alpha1", "WorkloadRule");
