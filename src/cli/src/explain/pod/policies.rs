//! The ValidatingAdmissionPolicies that an API server evaluates for the creation of a Pod.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};
use outrigger_core::json::list;
use serde::Serialize;
use serde_json::Value;

use crate::state::State;

const GROUP: &str = "admissionregistration.k8s.io";

/// A policy that applies by what its selectors say. Its expressions, and its match conditions, are not evaluated here.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Policy {
    pub(super) policy: String,
    pub(super) binding: String,
    /// What happens when the validation fails: Deny, Warn, Audit.
    pub(super) actions: Vec<String>,
    /// Names of conditions that may leave the Pod out.
    pub(super) match_conditions: Vec<String>,
}

type Labels = BTreeMap<String, String>;

/// The policies for a new Pod with these labels, in a namespace with those.
pub(super) fn applying(state: &State, pod: &Labels, namespace: &Labels) -> Vec<Policy> {
    let mut all = Vec::new();
    for policy in state.of(GROUP, "ValidatingAdmissionPolicy") {
        let spec = &policy.value["spec"];
        if !selects(&spec["matchConstraints"], pod, namespace, false) {
            continue;
        }
        for binding in state.of(GROUP, "ValidatingAdmissionPolicyBinding") {
            let bound = &binding.value["spec"];
            if bound["policyName"] == policy.name.as_str()
                && selects(&bound["matchResources"], pod, namespace, true)
            {
                let conditions = list(spec, "/matchConditions").iter().map(|condition| &condition["name"]);
                all.push(Policy {
                    policy: policy.name.clone(),
                    binding: binding.name.clone(),
                    actions: texts(list(bound, "/validationActions")),
                    match_conditions: texts(conditions),
                });
            }
        }
    }
    all.sort_by(|a, b| (&a.policy, &a.binding).cmp(&(&b.policy, &b.binding)));
    all
}

/// Whether MatchResources select the creation of a Pod. `without_rules`: what no rules mean; a binding without them takes what its policy
/// does.
fn selects(resources: &Value, pod: &Labels, namespace: &Labels, without_rules: bool) -> bool {
    let rules = list(resources, "/resourceRules");
    let is_named = if rules.is_empty() { without_rules } else { rules.iter().any(is_for_new_pods) };
    is_named
        && !list(resources, "/excludeResourceRules").iter().any(is_for_new_pods)
        && matches(&resources["namespaceSelector"], namespace)
        && matches(&resources["objectSelector"], pod)
}

fn is_for_new_pods(rule: &Value) -> bool {
    let has = |key: &str, wanted: &str| {
        list(rule, key).iter().any(|found| found == wanted || found == "*" || found == "*/*")
    };
    // Names can't be matched: a generated one isn't known when the Pod is created.
    has("/apiGroups", "")
        && has("/apiVersions", "v1")
        && has("/resources", "pods")
        && has("/operations", "CREATE")
}

/// A selector that can't be read selects, so that its policy is named.
fn matches(selector: &Value, labels: &Labels) -> bool {
    let Ok(selector) = serde_json::from_value::<Option<LabelSelector>>(selector.clone()) else { return true };
    Selector::try_from(selector.unwrap_or_default()).map_or(true, |selector| selector.matches(labels))
}

fn texts<'a>(values: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
    values.into_iter().filter_map(|value| value.as_str().map(str::to_owned)).collect()
}
