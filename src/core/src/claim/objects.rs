//! The objects that a rule's claims are made from, and their names.

use serde_json::{Value, json};

use super::{API_VERSION, DeviceClaim, Source};
use crate::companion;
use crate::ids::{RuleName, TenantId};
use crate::index::CompanionKey;
use crate::keys;
use crate::rule::Rule;

/// Name of the claim that the rule `of` makes for a workload, given by its label value, as `rule` means it: the platform's
/// rules name the platform's.
pub(crate) fn shared_name(
    rule: &RuleName,
    of: &RuleName,
    workload: &str,
    tenant: Option<&TenantId>,
) -> String {
    let of = if rule.is_admin() { of.clone().into_admin() } else { of.clone() };
    let key = CompanionKey { rule: of, workload: workload.into() };
    tenant.map_or_else(|| companion::own_name(&key), |tenant| companion::name(&key, tenant))
}

/// The same of a tenant's own rules, where the tenant doesn't matter.
pub fn own_shared_name(of: &RuleName, workload: &str) -> String {
    companion::own_name(&CompanionKey { rule: of.clone(), workload: workload.into() })
}

/// A ResourceClaimTemplate that a rule needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    /// Its name.
    pub name: String,
    /// Its place in the rule's `deviceClaims`.
    pub place: usize,
    /// The object.
    pub object: Value,
}

/// The ResourceClaimTemplates that a rule's companions need. Those of an admin rule serve all tenants: nothing in them
/// depends on the workload's tenant. `tenant`: the rule's; not asked for an admin rule.
///
/// Keys of ours are on the template alone: the claims that Kubernetes makes of it are not the manager's. `owned`: the rule
/// lives in that namespace too.
pub fn templates(rule: &Rule, tenant: Option<&TenantId>, namespace: &str, owned: bool) -> Vec<Template> {
    let mut labels = json!({keys::RULE: rule.name().label_value()});
    let mut annotations = json!({keys::RULE_UID: rule.uid()});
    if rule.name().is_admin() {
        annotations[keys::ADMIN_RULE] = rule.name().as_str().into();
    } else if let Some(tenant) = tenant {
        labels[keys::TENANT] = tenant.as_str().into();
    }
    let template = |(place, claim): (usize, &DeviceClaim)| {
        let Source::Template { name, spec, .. } = &claim.source else { return None };
        let object = json!({
            "apiVersion": API_VERSION,
            "kind": "ResourceClaimTemplate",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": labels,
                "annotations": annotations,
                "ownerReferences": companion::owners(rule, owned),
            },
            "spec": {"spec": spec.tree()},
        });
        Some(Template { name: name.clone(), place, object })
    };
    rule.devices().claims().iter().enumerate().filter_map(template).collect()
}
