//! Whether a Pod may run on a Node by its labels and taints, as scheduler and kubelet decide it, and if not, why.

use std::collections::BTreeMap;

use outrigger_core::json::{list, text};
use outrigger_core::keys;
use outrigger_core::selector::{self, matching, product};
use outrigger_core::tenant::nodes::Taint;
use serde_json::{Map, Value};

/// The fields of a Node that decide whether a Pod may run there. Resources and volumes are left to the scheduler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    /// `spec.unschedulable`: it is cordoned.
    pub(crate) unschedulable: bool,
}

/// The mismatches between a Node and a Pod's node selector, required node affinity and tolerations; empty when the Pod may run
/// there. Of several terms the one with the fewest mismatches is reported.
pub(crate) fn obstacles(pod: &Value, node: &Node) -> Vec<String> {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let mut obstacles = Vec::new();
    for (key, value) in spec.get("nodeSelector").and_then(Value::as_object).into_iter().flatten() {
        let wanted = value.as_str().unwrap_or_default();
        let found = node.labels.get(key).map(String::as_str);
        if found != Some(wanted) {
            obstacles.push(format!("{}, nodeSelector wants {wanted:?}", is(key, found)));
        }
    }
    obstacles.extend(
        selector::terms(pod).iter().map(|term| lacks(term, node)).min_by_key(Vec::len).unwrap_or_default(),
    );
    taints(spec, node, &mut obstacles);
    obstacles
}

/// The expressions of a term that a Node doesn't match.
fn lacks(term: &Value, node: &Node) -> Vec<String> {
    if product::is_empty(term) {
        return vec!["a node selector term without expressions matches no node".to_owned()];
    }
    let unmet = matching::Node { name: &node.name, labels: &node.labels }.unmet(term);
    unmet.map(|(expression, found)| obstacle(expression, found)).collect()
}

fn obstacle(expression: &Value, found: Option<&str>) -> String {
    let values: Vec<&str> = list(expression, "/values").iter().filter_map(Value::as_str).collect();
    let wanted = match text(expression, "/operator") {
        operator @ ("Exists" | "DoesNotExist") => operator.to_owned(),
        operator => format!("{operator} [{}]", values.join(", ")),
    };
    format!("{}, the Pod requires {wanted}", is(text(expression, "/key"), found))
}

fn is(key: &str, found: Option<&str>) -> String {
    match found {
        Some(found) => format!("{key} is {found:?}"),
        None => format!("{key} is absent"),
    }
}

fn taints(spec: &Value, node: &Node, obstacles: &mut Vec<String>) {
    let tolerations = list(spec, "/tolerations");
    let tolerated = |key: &str, value: &str, effect: &str| {
        tolerations
            .iter()
            .filter_map(Value::as_object)
            .any(|toleration| tolerates(toleration, key, value, effect))
    };
    for Taint { key, value, effect } in &node.taints {
        let keeps_away = matches!(effect.as_str(), "NoSchedule" | "NoExecute");
        if keeps_away && key != keys::UNSCHEDULABLE && !tolerated(key, value, effect) {
            let equals = if value.is_empty() { "" } else { "=" };
            obstacles.push(format!(
                "has the taint {key}{equals}{value}:{effect}, which the Pod does not tolerate"
            ));
        }
    }
    if node.unschedulable && !tolerated(keys::UNSCHEDULABLE, "", "NoSchedule") {
        obstacles.push("is cordoned".to_owned());
    }
}

/// Whether a toleration tolerates this taint (`v1.Toleration.ToleratesTaint`).
fn tolerates(toleration: &Map<String, Value>, key: &str, value: &str, effect: &str) -> bool {
    let text = |field: &str| toleration.get(field).and_then(Value::as_str).unwrap_or_default();
    let any_or = |field: &str, wanted: &str| text(field).is_empty() || text(field) == wanted;
    any_or("effect", effect)
        && any_or("key", key)
        && match text("operator") {
            "" | "Equal" => text("value") == value,
            "Exists" => true,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node() -> Node {
        Node {
            name: "dpu-1".into(),
            labels: BTreeMap::from([("zone".into(), "a".into()), ("cores".into(), "8".into())]),
            taints: vec![Taint { key: "t".into(), value: "v".into(), effect: "NoSchedule".into() }],
            unschedulable: false,
        }
    }

    fn of(spec: Value) -> Vec<String> {
        obstacles(&json!({"spec": spec}), &Node { taints: Vec::new(), ..node() })
    }

    fn term(list: &str, key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {list: [{"key": key, "operator": operator, "values": values}]}]}}}})
    }

    #[test]
    fn unmet_expressions_are_told_with_what_the_node_has() {
        assert_eq!(of(term("matchExpressions", "cores", "Gt", &["7"])), Vec::<String>::new());
        for (key, operator, values, expected) in [
            ("zone", "In", &["b", "c"][..], "zone is \"a\", the Pod requires In [b, c]"),
            ("none", "Exists", &[], "none is absent, the Pod requires Exists"),
            ("zone", "DoesNotExist", &[], "zone is \"a\", the Pod requires DoesNotExist"),
        ] {
            assert_eq!(of(term("matchExpressions", key, operator, values)), [expected]);
        }
        assert_eq!(of(term("matchFields", "metadata.name", "In", &["dpu-1"])), Vec::<String>::new());
        assert_eq!(
            of(term("matchFields", "metadata.name", "In", &["dpu-2"])),
            ["metadata.name is \"dpu-1\", the Pod requires In [dpu-2]"]
        );
    }

    #[test]
    fn terms_are_ored_and_the_nearest_is_told() {
        let required = |terms: Value| {
            of(json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": terms}}}}))
        };
        let zone = |zone: &str| json!({"key": "zone", "operator": "In", "values": [zone]});
        let none = json!({"key": "none", "operator": "Exists"});
        assert!(
            required(json!([{"matchExpressions": [zone("b")]}, {"matchExpressions": [zone("a")]}]))
                .is_empty()
        );
        let told = required(json!([{"matchExpressions": [zone("b"), none]}, {"matchExpressions": [none]}]));
        assert_eq!(told, ["none is absent, the Pod requires Exists"]);
        assert_eq!(required(json!([{}])), ["a node selector term without expressions matches no node"]);
        assert!(required(json!([])).is_empty());
    }

    #[test]
    fn selectors_and_taints() {
        assert_eq!(
            of(json!({"nodeSelector": {"zone": "b", "x": "y"}})),
            ["x is absent, nodeSelector wants \"y\"", "zone is \"a\", nodeSelector wants \"b\""]
        );
        let with = |tolerations: Value| obstacles(&json!({"spec": {"tolerations": tolerations}}), &node());
        for (tolerations, fits) in [
            (json!([]), false),
            (json!([{"key": "t", "value": "v"}]), true),
            (json!([{"key": "t", "operator": "Equal", "value": "w"}]), false),
            (json!([{"key": "t", "operator": "Exists", "effect": "NoSchedule"}]), true),
            (json!([{"key": "t", "operator": "Exists", "effect": "NoExecute"}]), false),
            (json!([{"operator": "Exists"}]), true),
            (json!(["x"]), false),
        ] {
            assert_eq!(with(tolerations.clone()).is_empty(), fits, "{tolerations}");
        }
        assert_eq!(with(json!([])), ["has the taint t=v:NoSchedule, which the Pod does not tolerate"]);
        let cordoned = Node { taints: Vec::new(), unschedulable: true, ..node() };
        assert_eq!(obstacles(&json!({"spec": {}}), &cordoned), ["is cordoned"]);
    }
}
