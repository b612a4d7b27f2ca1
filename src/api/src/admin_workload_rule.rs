//! `AdminWorkloadRule` (`workload.universe.nvidia.com/v1alpha1`): the platform's request for companions of the tenants'
//! workloads.

// The derive generates the resource in a private module.
#![allow(unreachable_pub)]
// Printer columns share types.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use outrigger_core::field::{FieldError, FieldErrors};
use outrigger_core::ids::TenantId;
use outrigger_core::keys;
use outrigger_core::rule::{Ordering, Rule};
use outrigger_core::validate;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::label_selector::Labels;
use crate::{WorkloadRule, WorkloadRuleSpec};

/// AdminWorkloadRuleSpec selects tenants and workloads, and defines their companions.
#[derive(CustomResource, KubeSchema, Serialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "workload.universe.nvidia.com",
    version = "v1alpha1",
    kind = "AdminWorkloadRule",
    plural = "adminworkloadrules",
    shortname = "awr",
    shortname = "awrule",
    category = "outrigger",
    namespaced,
    status = "AdminWorkloadRuleStatus",
    doc = "AdminWorkloadRule creates a companion of the platform on a DPU for each matching workload of all or selected tenants, and deletes it with the workload. Only the rules of one namespace are processed, usually universe.",
    printcolumn(json_path = ".spec.dpuSelectionPolicy", name = "Policy", type_ = "string"),
    printcolumn(json_path = ".status.matched", name = "Matched", type_ = "integer"),
    printcolumn(json_path = ".status.created", name = "Created", type_ = "integer"),
    printcolumn(json_path = ".status.ready", name = "Ready", type_ = "integer"),
    printcolumn(
        json_path = r#".status.conditions[?(@.type=="Accepted")].status"#,
        name = "Accepted",
        type_ = "string"
    ),
    printcolumn(
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#,
        name = "Message",
        type_ = "string",
        priority = 1
    ),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date")
)]
#[serde(rename_all = "camelCase")]
pub struct AdminWorkloadRuleSpec {
    /// The fields of every rule.
    #[serde(flatten)]
    pub rule: WorkloadRuleSpec,

    /// tenantSelector selects tenants by the labels of their Tenant objects. Each Tenant implicitly has the label
    /// `outrigger.dev/tenant=<its name>`. Defaults to all tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_selector: Option<LabelSelector>,
}

impl<'de> Deserialize<'de> for AdminWorkloadRuleSpec {
    /// Parses the text twice: serde passes a flattened part as a value tree, but [`outrigger_core::json::Json`] needs text.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Own {
            #[serde(default)]
            tenant_selector: Option<LabelSelector>,
        }
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let rule = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        let Own { tenant_selector } = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        Ok(Self { rule, tenant_selector })
    }
}

/// AdminWorkloadRuleStatus is the observed state of an AdminWorkloadRule.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AdminWorkloadRuleStatus {
    /// observedGeneration is the `metadata.generation` of the spec that this status reports on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// matched is the number of workloads of all tenants that match the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matched: Option<i64>,

    /// created is the number of companions that exist and are not being deleted. Companions that outlive their workloads
    /// count neither here nor in ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<i64>,

    /// ready is the number of companions whose Ready condition is True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<i64>,

    /// updated is the number of companions that were created from the current template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated: Option<i64>,

    /// tenants is the result for each tenant, written by the replica that serves the tenant. A tenant without an entry
    /// has no matching workload.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tenants: BTreeMap<String, TenantMatches>,

    /// conditions are the conditions of the rule. Accepted: the rule is valid. Matched: at least one workload matches.
    /// Ready: each matching workload has a ready companion.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// TenantMatches is the result of an AdminWorkloadRule for one tenant.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TenantMatches {
    /// matched is the number of matching workloads of the tenant.
    #[serde(default)]
    pub matched: i64,

    /// wanted is the number of companions that these workloads should have. Present with SameNodeAll only: else it is matched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<i64>,

    /// refused is the reason why a companion can't be created. Absent if all can be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,

    /// notSent lists annotations that the rule names and the tenant's agent doesn't send: they are unknown, and where they decide, workloads
    /// have a companion. Absent if it sends all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_sent: Option<String>,
}

/// A validated admin rule.
#[derive(Debug, Clone)]
pub struct AdminRule {
    /// The validated fields of every rule.
    pub rule: Rule,
    /// The selected tenants.
    pub tenants: TenantSelector,
}

/// Selects tenants by their labels.
#[derive(Debug, Clone, Default)]
pub struct TenantSelector(Labels);

impl TenantSelector {
    /// Reports whether a tenant with these labels is selected. The implicit label takes precedence over `labels`.
    pub fn selects(&self, tenant: &TenantId, labels: &BTreeMap<String, String>) -> bool {
        self.0.selects(|key| match key {
            keys::TENANT => Some(tenant.as_str()),
            key => labels.get(key).map(String::as_str),
        })
    }
}

impl AdminWorkloadRule {
    /// Validates the rule and converts it to the type that is evaluated.
    pub fn compile(&self) -> Result<AdminRule, Vec<FieldError>> {
        let mut errors = Vec::new();
        // The fields that both kinds have are validated by the same code.
        let metadata = self.metadata.clone();
        let rule = WorkloadRule { metadata, spec: self.spec.rule.clone(), status: None }
            .compile()
            .map_err(|mut wrong| errors.append(&mut wrong))
            .ok();
        errors.extend(validate::admin_template(&self.spec.rule.template.tree(), "spec.template"));
        if self.spec.rule.ordering.parse().is_ok_and(Ordering::binds) {
            errors.refuse(
                "spec.ordering",
                &self.spec.rule.ordering,
                "is for rules of tenants: a tenant's cluster doesn't know which of its Pods this rule matches; use BeforeStart",
            );
        }
        let tenants = match &self.spec.tenant_selector {
            Some(selector) => {
                Labels::new("spec.tenantSelector", selector).map_err(|mut wrong| errors.append(&mut wrong))
            }
            None => Ok(Labels::default()),
        };
        match (rule, tenants) {
            (Some(rule), Ok(tenants)) if errors.is_empty() => {
                Ok(AdminRule { rule: rule.into_admin(), tenants: TenantSelector(tenants) })
            }
            _ => Err(errors),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn rule(change: Value) -> AdminWorkloadRule {
        let mut object = json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "AdminWorkloadRule",
            "metadata": {"name": "r", "namespace": "universe", "uid": "u", "generation": 2},
            "spec": {"workloadTerms": [{"matchExpressions": [{"key": "@", "operator": "Exists"}]}],
                "template": {"apiVersion": "v1", "kind": "Pod",
                    "spec": {"hostNetwork": true, "containers": [{"name": "c"}]}}}});
        for (key, value) in change.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    fn selects(selector: Value, tenant: &str, labels: Value) -> bool {
        let rule = rule(json!({"tenantSelector": selector})).compile().unwrap();
        rule.tenants.selects(&TenantId::new(tenant).unwrap(), &serde_json::from_value(labels).unwrap())
    }

    #[test]
    fn selectors_select_tenants_by_label() {
        let by_name = json!({"matchLabels": {"outrigger.dev/tenant": "blue"}});
        let gold = json!({"matchLabels": {"tier": "gold"}});
        let others = json!({"matchExpressions": [
            {"key": "outrigger.dev/tenant", "operator": "NotIn", "values": ["blue"]},
            {"key": "trial", "operator": "DoesNotExist"}]});
        for (selector, tenant, labels, expected) in [
            (Value::Null, "blue", json!({}), true),
            (json!({}), "blue", json!({}), true),
            (by_name.clone(), "blue", json!({}), true),
            (by_name.clone(), "red", json!({}), false),
            (by_name, "red", json!({"outrigger.dev/tenant": "blue"}), false),
            (gold.clone(), "blue", json!({"tier": "gold"}), true),
            (gold, "blue", json!({}), false),
            (others.clone(), "blue", json!({}), false),
            (others.clone(), "red", json!({}), true),
            (others, "red", json!({"trial": ""}), false),
        ] {
            assert_eq!(
                selects(selector.clone(), tenant, labels.clone()),
                expected,
                "{selector} {tenant} {labels}"
            );
        }
    }

    #[test]
    fn each_invalid_field_is_reported() {
        let selector = |expression: Value| json!({"tenantSelector": {"matchExpressions": [expression]}});
        for (change, path) in [
            (json!({"workloadTerms": []}), "spec.workloadTerms"),
            (json!({"ordering": "BeforeBinding"}), "spec.ordering"),
            (
                json!({"tenantSelector": {"matchLabels": {"a b": "c"}}}),
                "spec.tenantSelector.matchLabels[a b]",
            ),
            (json!({"tenantSelector": {"matchLabels": {"a": "-"}}}), "spec.tenantSelector.matchLabels[a]"),
            (
                selector(json!({"key": "", "operator": "Exists"})),
                "spec.tenantSelector.matchExpressions[0].key",
            ),
            (
                selector(json!({"key": "a", "operator": "Gt"})),
                "spec.tenantSelector.matchExpressions[0].operator",
            ),
            (
                selector(json!({"key": "a", "operator": "In"})),
                "spec.tenantSelector.matchExpressions[0].values",
            ),
            (
                selector(json!({"key": "a", "operator": "Exists", "values": ["b"]})),
                "spec.tenantSelector.matchExpressions[0].values",
            ),
            (
                selector(json!({"key": "a", "operator": "NotIn", "values": ["b", "c "]})),
                "spec.tenantSelector.matchExpressions[0].values[1]",
            ),
            (
                json!({"template": {"apiVersion": "v1", "kind": "Pod",
                    "spec": {"tolerations": [{"operator": "Exists"}], "containers": [{"name": "c"}]}}}),
                "spec.template.spec.tolerations[0]",
            ),
        ] {
            let errors = rule(change).compile().unwrap_err();
            assert_eq!(errors.iter().map(|e| e.path.as_str()).collect::<Vec<_>>(), [path]);
        }
    }

    #[test]
    fn the_fields_of_every_rule_are_flattened() {
        let compiled = rule(json!({"dpuSelectionPolicy": "Any"})).compile().unwrap().rule;
        assert!(compiled.name().is_admin());
        assert_eq!((compiled.name().as_str(), compiled.uid(), compiled.generation()), ("r", "u", 2));
        let json = serde_json::to_value(rule(json!({}))).unwrap();
        assert!(json["spec"].get("rule").is_none() && json["spec"]["template"].is_object(), "{json}");
        assert_eq!(serde_json::from_value::<AdminWorkloadRule>(json).unwrap().spec, rule(json!({})).spec);
    }
}
