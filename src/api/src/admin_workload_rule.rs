//! `AdminWorkloadRule` (`workload.universe.nvidia.com/v1alpha1`): the platform's wish that the Pods of tenants get a
//! companion.

// The derive puts the resource into a private module of its own.
#![allow(unreachable_pub)]
// Printer columns share types.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, LabelSelectorRequirement};
use kube::core::{Selector, SelectorExt};
use kube::{CustomResource, KubeSchema};
use outrigger_core::field::FieldError;
use outrigger_core::ids::{TenantId, is_label_key, is_label_name};
use outrigger_core::keys;
use outrigger_core::rule::Rule;
use outrigger_core::validate;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::{WorkloadRule, WorkloadRuleSpec};

/// Starts a companion on a DPU for each workload of the selected tenants that matches.
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
    doc = "Starts a companion of the platform on a DPU for each workload that matches, of all tenants or of selected ones, and removes it with the workload. Served in one namespace only, usually universe.",
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
    /// What every rule says.
    #[serde(flatten)]
    pub rule: WorkloadRuleSpec,

    /// Whose workloads it is about, by the labels of Tenants. Each Tenant also counts as labeled with
    /// `outrigger.dev/tenant=<its name>`. Absent or empty: the workloads of all tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_selector: Option<LabelSelector>,
}

impl<'de> Deserialize<'de> for AdminWorkloadRuleSpec {
    /// Reads the text twice: a flattened part is handed over as a tree by serde, and [`outrigger_core::json::Json`] is read from text.
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

/// What became of an admin rule.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AdminWorkloadRuleStatus {
    /// `metadata.generation` of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Workloads that match the rule now, of all tenants together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matched: Option<i64>,

    /// Companions that exist and are not being deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<i64>,

    /// Companions whose Ready condition is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<i64>,

    /// Of the companions that exist, those that were made from the template as it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated: Option<i64>,

    /// By tenant, what only the replica that serves the tenant knows. A tenant that isn't named has no workload that
    /// matches.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tenants: BTreeMap<String, TenantMatches>,

    /// Accepted: the rule can be served. Matched: some workload matches. Ready: every match has a ready companion.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// What became of an admin rule for one tenant.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TenantMatches {
    /// Workloads of the tenant that match, as they were last told.
    #[serde(default)]
    pub matched: i64,

    /// Why a companion for one of them can't be made, if one can't.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// An admin rule that has been checked.
#[derive(Debug, Clone)]
pub struct AdminRule {
    /// What every rule says.
    pub rule: Rule,
    /// Whose workloads it is about.
    pub tenants: TenantSelector,
}

/// Which tenants a rule is about.
#[derive(Debug, Clone, Default)]
pub struct TenantSelector(Selector);

impl TenantSelector {
    /// Whether a tenant is meant. `labels`: those of the Tenant; the implied one counts whatever they say.
    pub fn selects(&self, tenant: &TenantId, labels: &BTreeMap<String, String>) -> bool {
        if self.0.selects_all() {
            return true;
        }
        let mut labels = labels.clone();
        labels.insert(keys::TENANT.to_owned(), tenant.to_string());
        self.0.matches(&labels)
    }
}

impl AdminWorkloadRule {
    /// The rule ready to be evaluated.
    ///
    /// # Errors
    /// Everything that is wrong with it, with paths that begin at the custom resource.
    pub fn compile(&self) -> Result<AdminRule, Vec<FieldError>> {
        let mut faults = Vec::new();
        // What both kinds say is read by the same code.
        let metadata = self.metadata.clone();
        let rule = WorkloadRule { metadata, spec: self.spec.rule.clone(), status: None }
            .compile()
            .map_err(|mut errors| faults.append(&mut errors))
            .ok();
        faults.extend(validate::admin_template(&self.spec.rule.template.tree(), "spec.template"));
        let tenants = selector(self.spec.tenant_selector.as_ref(), &mut faults);
        match rule {
            Some(rule) if faults.is_empty() => Ok(AdminRule { rule: rule.into_admin(), tenants }),
            _ => Err(faults),
        }
    }
}

/// Reads a selector. One that no label could ever be meant by is a mistake, and with NotIn or DoesNotExist it would select
/// everybody: so keys and values are checked too, which the schema can't.
fn selector(selector: Option<&LabelSelector>, faults: &mut Vec<FieldError>) -> TenantSelector {
    const ROOT: &str = "spec.tenantSelector";
    let Some(selector) = selector else { return TenantSelector::default() };
    let before = faults.len();
    for (key, value) in selector.match_labels.iter().flatten() {
        let path = format!("{ROOT}.matchLabels[{}]", cut(key));
        check_key(&path, key, faults);
        check_value(&path, value, faults);
    }
    for (i, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        check_requirement(&format!("{ROOT}.matchExpressions[{i}]"), requirement, faults);
    }
    if faults.len() > before {
        return TenantSelector::default();
    }
    match Selector::try_from(selector.clone()) {
        Ok(selector) => TenantSelector(selector),
        Err(error) => {
            faults.push(FieldError::new(ROOT, error));
            TenantSelector::default()
        }
    }
}

fn check_requirement(path: &str, requirement: &LabelSelectorRequirement, faults: &mut Vec<FieldError>) {
    check_key(&format!("{path}.key"), &requirement.key, faults);
    let values = requirement.values.as_deref().unwrap_or_default();
    match (requirement.operator.as_str(), values) {
        (operator @ ("In" | "NotIn"), []) => faults.push(FieldError::new(
            format_args!("{path}.values"),
            format_args!("{operator} needs at least one value"),
        )),
        ("In" | "NotIn", values) => {
            for (v, value) in values.iter().enumerate() {
                check_value(&format!("{path}.values[{v}]"), value, faults);
            }
        }
        ("Exists" | "DoesNotExist", []) => {}
        (operator @ ("Exists" | "DoesNotExist"), _) => faults.push(FieldError::new(
            format_args!("{path}.values"),
            format_args!("{operator} takes no values; remove them"),
        )),
        (other, _) => faults.push(FieldError::new(
            format_args!("{path}.operator"),
            format_args!("is {:?}; use one of In, NotIn, Exists, DoesNotExist", cut(other)),
        )),
    }
}

fn check_key(path: &str, key: &str, faults: &mut Vec<FieldError>) {
    if !is_label_key(key) {
        faults.push(FieldError::new(
            path,
            format_args!(
                "{:?} is no label's key: use 1 to 63 letters, digits, '-', '_' and '.', perhaps after a DNS subdomain and '/'",
                cut(key)
            ),
        ));
    }
}

fn check_value(path: &str, value: &str, faults: &mut Vec<FieldError>) {
    if !value.is_empty() && !is_label_name(value) {
        faults.push(FieldError::new(
            path,
            format_args!(
                "{:?} is no label's value: use up to 63 letters, digits, '-', '_' and '.'",
                cut(value)
            ),
        ));
    }
}

/// A value in a message: its beginning.
fn cut(text: &str) -> String {
    text.chars().take(80).collect()
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
    fn whom_a_selector_means() {
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
    fn each_field_wrong_in_turn() {
        let selector = |expression: Value| json!({"tenantSelector": {"matchExpressions": [expression]}});
        for (change, path) in [
            (json!({"workloadTerms": []}), "spec.workloadTerms"),
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
    fn what_every_rule_says_is_said_here_too() {
        let compiled = rule(json!({"dpuSelectionPolicy": "Any"})).compile().unwrap().rule;
        assert!(compiled.name().is_admin());
        assert_eq!((compiled.name().as_str(), compiled.uid(), compiled.generation()), ("r", "u", 2));
        let json = serde_json::to_value(rule(json!({}))).unwrap();
        assert!(json["spec"].get("rule").is_none() && json["spec"]["template"].is_object(), "{json}");
        assert_eq!(serde_json::from_value::<AdminWorkloadRule>(json).unwrap().spec, rule(json!({})).spec);
    }
}
