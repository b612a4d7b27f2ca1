//! Whether a Pod fits a Node, and what keeps it away: what the scheduler and the kubelet ask of labels and taints.

use std::collections::BTreeMap;

use outrigger_core::tenant::nodes::Taint;
use serde_json::{Map, Value};

/// What of a Node decides whether a Pod may run there. Room and volumes are left to the scheduler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Node {
    /// Its name.
    pub(crate) name: String,
    /// All labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// All taints.
    pub(crate) taints: Vec<Taint>,
    /// `spec.unschedulable`: it is cordoned.
    pub(crate) unschedulable: bool,
}

/// The taint that a cordoned Node counts as having.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Everything about a Node that a Pod's node selector, required node affinity and tolerations don't agree with, in
/// words; empty when the Pod may run there. Of several terms the one that lacks least is told.
pub(crate) fn obstacles(pod: &Value, node: &Node) -> Vec<String> {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let mut obstacles = Vec::new();
    for (key, value) in spec.get("nodeSelector").and_then(Value::as_object).into_iter().flatten() {
        let wanted = value.as_str().unwrap_or_default();
        if node.labels.get(key).map(String::as_str) != Some(wanted) {
            obstacles.push(format!("{}, nodeSelector wants {wanted:?}", is(key, node.labels.get(key))));
        }
    }
    let terms = spec
        .pointer("/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    obstacles.extend(terms.iter().map(|term| lacks(term, node)).min_by_key(Vec::len).unwrap_or_default());
    taints(spec, node, &mut obstacles);
    obstacles
}

/// What of a term a Node doesn't meet.
fn lacks(term: &Value, node: &Node) -> Vec<String> {
    let list = |key: &str| term.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let (expressions, fields) = (list("matchExpressions"), list("matchFields"));
    if expressions.is_empty() && fields.is_empty() {
        return vec!["a node selector term without expressions matches no node".to_owned()];
    }
    let label = |key: &str| node.labels.get(key);
    // The API knows this one field.
    let field = |key: &str| (key == "metadata.name").then_some(&node.name);
    let mut lacking: Vec<String> = expressions.iter().filter_map(|e| unmet(e, label)).collect();
    lacking.extend(fields.iter().filter_map(|e| unmet(e, field)));
    lacking
}

fn unmet<'a>(expression: &Value, of: impl FnOnce(&str) -> Option<&'a String>) -> Option<String> {
    let text = |key: &str| expression.get(key).and_then(Value::as_str).unwrap_or_default();
    let (key, operator) = (text("key"), text("operator"));
    let values: Vec<&str> = expression
        .get("values")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let found = of(key);
    let among = || found.is_some_and(|found| values.contains(&found.as_str()));
    let compare = |holds: fn(i64, i64) -> bool| {
        let number = |text: &str| text.parse::<i64>().ok();
        let limit = values.first().and_then(|value| number(value));
        found.and_then(|found| number(found)).zip(limit).is_some_and(|(found, limit)| holds(found, limit))
    };
    let met = match operator {
        "In" => among(),
        "NotIn" => !among(),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => compare(|found, limit| found > limit),
        "Lt" => compare(|found, limit| found < limit),
        _ => false,
    };
    let wanted = match operator {
        "Exists" | "DoesNotExist" => operator.to_owned(),
        _ => format!("{operator} [{}]", values.join(", ")),
    };
    (!met).then(|| format!("{}, the Pod requires {wanted}", is(key, found)))
}

fn is(key: &str, found: Option<&String>) -> String {
    match found {
        Some(found) => format!("{key} is {found:?}"),
        None => format!("{key} is absent"),
    }
}

fn taints(spec: &Value, node: &Node, obstacles: &mut Vec<String>) {
    let tolerations = spec.get("tolerations").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let tolerated = |key: &str, value: &str, effect: &str| {
        tolerations
            .iter()
            .filter_map(Value::as_object)
            .any(|toleration| tolerates(toleration, key, value, effect))
    };
    for Taint { key, value, effect } in &node.taints {
        let keeps_away = matches!(effect.as_str(), "NoSchedule" | "NoExecute");
        if keeps_away && key != UNSCHEDULABLE && !tolerated(key, value, effect) {
            let equals = if value.is_empty() { "" } else { "=" };
            obstacles.push(format!(
                "has the taint {key}{equals}{value}:{effect}, which the Pod does not tolerate"
            ));
        }
    }
    if node.unschedulable && !tolerated(UNSCHEDULABLE, "", "NoSchedule") {
        obstacles.push("is cordoned".to_owned());
    }
}

/// Whether a toleration is about this taint (`v1.Toleration.ToleratesTaint`).
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
    fn operators_are_those_of_the_scheduler() {
        for (key, operator, values, fits) in [
            ("zone", "In", &["a", "b"][..], true),
            ("zone", "In", &["b"], false),
            ("none", "In", &["b"], false),
            ("zone", "NotIn", &["a"], false),
            ("none", "NotIn", &["a"], true),
            ("zone", "Exists", &[], true),
            ("none", "Exists", &[], false),
            ("none", "DoesNotExist", &[], true),
            ("zone", "DoesNotExist", &[], false),
            ("cores", "Gt", &["7"], true),
            ("cores", "Gt", &["8"], false),
            ("cores", "Lt", &["9"], true),
            ("zone", "Lt", &["9"], false),
            ("none", "Gt", &["0"], false),
            ("zone", "Perhaps", &["a"], false),
        ] {
            let found = of(term("matchExpressions", key, operator, values));
            assert_eq!(found.is_empty(), fits, "{key} {operator} {values:?}: {found:?}");
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
