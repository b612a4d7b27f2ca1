//! Conversion of admin rules between protobuf messages (`universe.admin.workload.v1`) and the custom resource. The
//! fields of every rule are converted by [`rule_wire`], so that both kinds report the same errors.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::ResourceExt;
use outrigger_core::field::FieldError;
use outrigger_proto::{admin, v1};

use crate::{
    AdminWorkloadRule, AdminWorkloadRuleSpec, AdminWorkloadRuleStatus, WorkloadRule, WorkloadRuleStatus,
    rule_wire,
};

/// Creates the custom resource, without a namespace. The errors are those of a [`WorkloadRule`].
impl TryFrom<&admin::Rule> for AdminWorkloadRule {
    type Error = Vec<FieldError>;

    fn try_from(rule: &admin::Rule) -> Result<Self, Self::Error> {
        let shared = v1::Rule { id: rule.id.clone(), data: rule.data.clone(), ..v1::Rule::default() };
        let WorkloadRule { metadata, spec, .. } = WorkloadRule::try_from(&shared)?;
        let tenant_selector = rule.tenant_selector.as_ref().map(selector);
        Ok(Self { metadata, spec: AdminWorkloadRuleSpec { rule: spec, tenant_selector }, status: None })
    }
}

/// Converts a custom resource to a message.
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
        etag: shared.etag,
        tenant_selector: rule.spec.tenant_selector.as_ref().map(selector_message),
    }
}

/// Returns the status fields that both kinds of rules have.
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
    let requirement = |requirement: &admin::TenantRequirement| {
        // Over gRPC these operators may come with a single value, as in expressions of rules. A label selector has none there.
        let ignored =
            matches!(&*requirement.operator, "Exists" | "DoesNotExist") && requirement.values.len() == 1;
        LabelSelectorRequirement {
            key: requirement.key.clone(),
            operator: requirement.operator.clone(),
            values: (!ignored && !requirement.values.is_empty()).then(|| requirement.values.clone()),
        }
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
    fn conversion_is_reversible() {
        for selector in [
            json!(null),
            json!({}),
            json!({"matchLabels": {"tier": "gold"}}),
            json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b", "c"]},
                {"key": "d", "operator": "Exists"}]}),
        ] {
            let before = rule(selector);
            assert_eq!(AdminWorkloadRule::try_from(&message(&before)).unwrap().spec, before.spec);
        }
    }

    #[test]
    fn a_single_value_of_an_operator_without_values_is_ignored() {
        let values = |operator: &str, values: &[&str]| {
            let mut message =
                message(&rule(json!({"matchExpressions": [{"key": "a", "operator": operator}]})));
            let selector = message.tenant_selector.as_mut().unwrap();
            selector.match_expressions[0].values = values.iter().map(ToString::to_string).collect();
            let rule = AdminWorkloadRule::try_from(&message).unwrap();
            rule.spec.tenant_selector.unwrap().match_expressions.unwrap().remove(0).values
        };
        for operator in ["Exists", "DoesNotExist"] {
            assert_eq!(values(operator, &["x"]), None, "{operator}");
            assert_eq!(values(operator, &["x", "y"]).unwrap().len(), 2, "{operator}: admission refuses it");
        }
        assert_eq!(values("In", &["x"]).unwrap(), ["x"]);
    }

    #[test]
    fn errors_equal_those_of_a_tenants_rule() {
        let wrong = admin::Rule { id: "No".into(), ..admin::Rule::default() };
        let shared = v1::Rule { id: "No".into(), ..v1::Rule::default() };
        assert_eq!(
            AdminWorkloadRule::try_from(&wrong).unwrap_err(),
            WorkloadRule::try_from(&shared).unwrap_err()
        );
    }
}
