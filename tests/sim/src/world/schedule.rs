//! The scheduler of the infrastructure cluster.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{AFFINITY, SCHEDULER, World, at, is_queued, resizes, text};

impl World {
    /// The scheduler, as far as isolation and hosts are concerned.
    pub(super) fn schedule(&self) {
        let nodes = self.infra.list("nodes");
        for pod in self.infra.list("pods") {
            if is_queued(&pod)
                || pod["spec"]["nodeName"].is_string()
                || !pod["metadata"]["deletionTimestamp"].is_null()
            {
                continue;
            }
            let at = |subresource| {
                (pod["metadata"]["namespace"].as_str(), text(&pod, "/metadata/name"), subresource)
            };
            let can_run = |node: &&Arc<Value>| {
                fits(&pod, node)
                    && tolerates(&pod, node)
                    && node["spec"]["unschedulable"] != true
                    && resizes::cpu(&pod) != resizes::INFEASIBLE
            };
            if let Some(node) = self.pick_of(nodes.iter().filter(can_run)) {
                if !self.allocate(&pod, text(node, "/metadata/name")) {
                    continue;
                }
                let bound = json!({"spec": {"nodeName": node["metadata"]["name"]}});
                let _ = self.infra.merge(SCHEDULER, "pods", at(None), bound);
            } else if pod["status"]["conditions"].is_null() {
                let unschedulable =
                    json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
                let status = json!({"status": {"conditions": unschedulable}});
                let _ = self.infra.merge(SCHEDULER, "pods", at(Some("status")), status);
            }
        }
    }
}

/// Whether a node's name and labels match the Pod's required node affinity.
fn fits(pod: &Value, node: &Value) -> bool {
    let Some(terms) = at(pod, AFFINITY).and_then(Value::as_array) else { return true };
    terms.iter().any(|term| {
        let mut fields = term["matchFields"].as_array().into_iter().flatten();
        let is_named = fields.all(|field| {
            let mut names = field["values"].as_array().into_iter().flatten();
            names.any(|name| *name == node["metadata"]["name"])
        });
        let mut expressions = term["matchExpressions"].as_array().into_iter().flatten();
        let is_labelled = expressions.all(|expression| {
            let found = expression["key"].as_str().and_then(|key| node["metadata"]["labels"].get(key));
            match expression["operator"].as_str() {
                Some("Exists") => found.is_some(),
                Some("DoesNotExist") => found.is_none(),
                Some("Gt") => numbers(found, expression).is_some_and(|(label, bound)| label > bound),
                Some("Lt") => numbers(found, expression).is_some_and(|(label, bound)| label < bound),
                operator => {
                    let mut values = expression["values"].as_array().into_iter().flatten();
                    let is_in = found.is_some_and(|found| values.any(|value| value == found));
                    is_in == (operator != Some("NotIn"))
                }
            }
        });
        is_named && is_labelled
    })
}

/// A label's value and that of an expression which compares them, where both are integers of 64 bits.
fn numbers(label: Option<&Value>, expression: &Value) -> Option<(i64, i64)> {
    let number = |value: &Value| value.as_str()?.parse().ok();
    Some((number(label?)?, number(&expression["values"][0])?))
}

/// Whether a Pod tolerates all taints of a node.
fn tolerates(pod: &Value, node: &Value) -> bool {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let tolerations = list(&pod["spec"]["tolerations"]);
    list(&node["spec"]["taints"]).iter().filter(|taint| taint["effect"] != "PreferNoSchedule").all(|taint| {
        tolerations.iter().any(|toleration| {
            let any_or_same = |field: &str| toleration[field].is_null() || toleration[field] == taint[field];
            let exists = text(toleration, "/operator") == "Exists";
            any_or_same("key") && any_or_same("effect") && (exists || toleration["value"] == taint["value"])
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_asks_for_a_node_by_its_name_fits_on_no_other_one() {
        let term = |name: &str| {
            json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}],
                "matchExpressions": [{"key": "a", "operator": "Exists"}]})
        };
        let pod = |terms: Value| {
            json!({"spec": {"affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}})
        };
        let number = |key: &str, operator: &str, bound: &str| {
            let compares = json!({"key": key, "operator": operator, "values": [bound]});
            json!([{"matchExpressions": [compares]}])
        };
        let node = json!({"metadata": {"name": "x", "labels": {"a": "", "n": "7"}}});
        for (terms, expected) in [
            (json!([term("x")]), true),
            (json!([term("y")]), false),
            (json!([term("y"), term("x")]), true),
            (json!([{"matchExpressions": [{"key": "b", "operator": "Exists"}]}]), false),
            (number("n", "Gt", "6"), true),
            (number("n", "Gt", "7"), false),
            (number("n", "Lt", "8"), true),
            (number("n", "Lt", "7"), false),
            (number("a", "Lt", "7"), false),
        ] {
            assert_eq!(fits(&pod(terms.clone()), &node), expected, "{terms}");
        }
    }
}
