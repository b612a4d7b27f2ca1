//! Admin rules between the wire (`universe.admin.workload.v1`) and the custom resource. What they share with tenants' rules
//! goes through [`rule_wire`], so that both say the same of the same fault.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::ResourceExt;
use outrigger_core::field::FieldError;
use outrigger_proto::{admin, v1};

use crate::{
    AdminWorkloadRule, AdminWorkloadRuleSpec, AdminWorkloadRuleStatus, WorkloadRule, WorkloadRuleStatus,
    rule_wire,
};

/// The custom resource that a message asks for, without namespace.
///
/// # Errors
/// As [`rule_wire::object`].
pub fn object(rule: &admin::Rule) -> Result<AdminWorkloadRule, Vec<FieldError>> {
    let shared = v1::Rule { id: rule.id.clone(), data: rule.data.clone(), ..v1::Rule::default() };
    let WorkloadRule { metadata, spec, .. } = rule_wire::object(&shared)?;
    let tenant_selector = rule.tenant_selector.as_ref().map(selector);
    Ok(AdminWorkloadRule {
        metadata,
        spec: AdminWorkloadRuleSpec { rule: spec, tenant_selector },
        status: None,
    })
}

/// A custom resource as a message.
pub fn message(rule: &AdminWorkloadRule) -> admin::Rule {
    let shared = rule_wire::message(&WorkloadRule {
        metadata: rule.metadata.clone(),
        spec: rule.spec.rule.clone(),
        status: rule.status.as_ref().map(status),
    });
    admin::Rule {
        id: rule.name_any(),
        data: shared.data,
        revision: shared.revision,
        status: shared.status,
        tenant_selector: rule.spec.tenant_selector.as_ref().map(selector_message),
    }
}

/// What both kinds of rules tell of what became of them.
fn status(status: &AdminWorkloadRuleStatus) -> WorkloadRuleStatus {
    WorkloadRuleStatus {
        observed_generation: status.observed_generation,
        matched: status.matched,
        created: status.created,
        ready: status.ready,
        updated: status.updated,
        conditions: status.conditions.clone(),
        ..WorkloadRuleStatus::default()
    }
}

fn selector(message: &admin::TenantSelector) -> LabelSelector {
    let requirement = |requirement: &admin::TenantRequirement| LabelSelectorRequirement {
        key: requirement.key.clone(),
        operator: requirement.operator.clone(),
        values: (!requirement.values.is_empty()).then(|| requirement.values.clone()),
    };
    let labels: BTreeMap<_, _> = message.match_labels.clone().into_iter().collect();
    let expressions: Vec<_> = message.match_expressions.iter().map(requirement).collect();
    LabelSelector {
        match_labels: (!labels.is_empty()).then_some(labels),
        match_expressions: (!expressions.is_empty()).then_some(expressions),
    }
}

fn selector_message(selector: &LabelSelector) -> admin::TenantSelector {
    let requirement = |requirement: &LabelSelectorRequirement| admin::TenantRequirement {
        key: requirement.key.clone(),
        operator: requirement.operator.clone(),
        values: requirement.values.clone().unwrap_or_default(),
    };
    let labels: HashMap<_, _> = selector.match_labels.clone().unwrap_or_default().into_iter().collect();
    let expressions = selector.match_expressions.as_deref().unwrap_or_default();
    admin::TenantSelector {
        match_labels: labels,
        match_expressions: expressions.iter().map(requirement).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(selector: serde_json::Value) -> AdminWorkloadRule {
        let object = json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "AdminWorkloadRule",
            "metadata": {"name": "r"},
            "spec": {"resourceKind": "v1/Pod", "dpuSelectionPolicy": "Any", "tenantSelector": selector,
                "workloadTerms": [{"matchExpressions": [{"key": "@", "operator": "Exists"}]}],
                "template": {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [], "unknown": {"x": [1]}}}}});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn there_and_back() {
        for selector in [
            json!(null),
            json!({}),
            json!({"matchLabels": {"tier": "gold"}}),
            json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b", "c"]},
                {"key": "d", "operator": "Exists"}]}),
        ] {
            let before = rule(selector);
            assert_eq!(object(&message(&before)).unwrap().spec, before.spec);
        }
    }

    #[test]
    fn a_fault_is_told_as_in_a_tenants_rule() {
        let wrong = admin::Rule { id: "No".into(), ..admin::Rule::default() };
        let shared = v1::Rule { id: "No".into(), ..v1::Rule::default() };
        assert_eq!(object(&wrong).unwrap_err(), rule_wire::object(&shared).unwrap_err());
    }
}
