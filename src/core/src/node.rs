//! Whether a Pod may run on a Node by its labels and taints, as scheduler and kubelet decide it, and if not, why.
//! `tests/e2e/beliefs.rs` compares this with the scheduler.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::json::{list, metadata_map, text};
use crate::keys;
use crate::selector::{self, matching, product};
use crate::tenant::nodes::Taint;

/// The fields of a Node that decide whether a Pod may run there. Resources and volumes are left to the scheduler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// `spec.unschedulable`: it is cordoned.
    pub unschedulable: bool,
}

impl Node {
    /// Reads a Node as the API has it.
    pub fn of(node: &Value) -> Self {
        let taint = |taint: &Value| {
            let field = |pointer: &str| text(taint, pointer).to_owned();
            Taint { key: field("/key"), value: field("/value"), effect: field("/effect") }
        };
        Self {
            name: text(node, "/metadata/name").to_owned(),
            labels: metadata_map(node, "labels")
                .iter()
                .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect(),
            taints: list(node, "/spec/taints").iter().map(taint).collect(),
            unschedulable: node.pointer("/spec/unschedulable") == Some(&Value::Bool(true)),
        }
    }
}

/// The mismatches between a Node and a Pod's node selector, required node affinity and tolerations; empty when the Pod may run
/// there. Of several terms the one with the fewest mismatches is reported.
pub fn obstacles(pod: &Value, node: &Node) -> Vec<String> {
    let mut obstacles: Vec<String> = unmet(pod, node).iter().map(Unmet::obstacle).collect();
    obstacles.extend(untolerated(pod, node).map(|taint| {
        let Taint { key, value, effect } = taint;
        let equals = if value.is_empty() { "" } else { "=" };
        format!("has the taint {key}{equals}{value}:{effect}, which the Pod does not tolerate")
    }));
    if node.unschedulable && !tolerated(pod, keys::UNSCHEDULABLE, "", "NoSchedule") {
        obstacles.push("is cordoned".to_owned());
    }
    obstacles
}

/// A requirement of a Pod that a Node doesn't meet.
pub enum Unmet<'a> {
    /// A label of its node selector: the key, the value that it wants, and what the Node has.
    Label(&'a str, &'a str, Option<&'a str>),
    /// An expression of its required node affinity, and what the Node has.
    Expression(&'a Value, Option<&'a str>),
    /// A term of its required node affinity without expressions.
    EmptyTerm,
}

impl Unmet<'_> {
    /// What the Node has, and what the Pod wants instead.
    fn obstacle(&self) -> String {
        match self {
            Self::Label(key, wanted, found) => format!("{}, nodeSelector wants {wanted:?}", is(key, *found)),
            Self::Expression(expression, found) => {
                format!("{}, the Pod requires {}", is(text(expression, "/key"), *found), wanted(expression))
            }
            Self::EmptyTerm => "a node selector term without expressions matches no node".to_owned(),
        }
    }

    /// What the Pod wants.
    pub fn requirement(&self) -> String {
        match self {
            Self::Label(key, wanted, _) => format!("nodeSelector {key}={wanted}"),
            Self::Expression(expression, _) => {
                format!("node affinity {} {}", text(expression, "/key"), wanted(expression))
            }
            Self::EmptyTerm => "a term of node affinity without expressions".to_owned(),
        }
    }
}

/// The requirements that a Node doesn't meet, apart from tolerations. Of several terms those of the nearest.
pub fn unmet<'a>(pod: &'a Value, node: &'a Node) -> Vec<Unmet<'a>> {
    let mut unmet = Vec::new();
    let selector = pod.pointer("/spec/nodeSelector").and_then(Value::as_object);
    for (key, value) in selector.into_iter().flatten() {
        let wanted = value.as_str().unwrap_or_default();
        let found = node.labels.get(key).map(String::as_str);
        if found != Some(wanted) {
            unmet.push(Unmet::Label(key, wanted, found));
        }
    }
    let terms = selector::terms(pod).iter().map(|term| lacks(term, node));
    unmet.extend(terms.min_by_key(Vec::len).unwrap_or_default());
    unmet
}

/// The expressions of a term that a Node doesn't match.
fn lacks<'a>(term: &'a Value, node: &'a Node) -> Vec<Unmet<'a>> {
    if product::is_empty(term) {
        return vec![Unmet::EmptyTerm];
    }
    let unmet = matching::Node { name: &node.name, labels: &node.labels }.unmet(term);
    unmet.map(|(expression, found)| Unmet::Expression(expression, found)).collect()
}

/// An operator with its values.
fn wanted(expression: &Value) -> String {
    let values: Vec<&str> = list(expression, "/values").iter().filter_map(Value::as_str).collect();
    match text(expression, "/operator") {
        operator @ ("Exists" | "DoesNotExist") => operator.to_owned(),
        operator => format!("{operator} [{}]", values.join(", ")),
    }
}

fn is(key: &str, found: Option<&str>) -> String {
    match found {
        Some(found) => format!("{key} is {found:?}"),
        None => format!("{key} is absent"),
    }
}

/// The taints that keep a Pod away from a Node, apart from that of a cordoned one.
pub fn untolerated<'a>(pod: &'a Value, node: &'a Node) -> impl Iterator<Item = &'a Taint> {
    node.taints.iter().filter(move |Taint { key, value, effect }| {
        let keeps_away = matches!(effect.as_str(), "NoSchedule" | "NoExecute");
        keeps_away && key != keys::UNSCHEDULABLE && !tolerated(pod, key, value, effect)
    })
}

fn tolerated(pod: &Value, key: &str, value: &str, effect: &str) -> bool {
    let tolerations = list(pod, "/spec/tolerations").iter().filter_map(Value::as_object);
    tolerations.into_iter().any(|toleration| tolerates(toleration, key, value, effect))
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
            // The API server takes these where the feature TaintTolerationComparisonOperators is on.
            "Gt" => compares(text("value"), value, |own, taints| taints > own),
            "Lt" => compares(text("value"), value, |own, taints| taints < own),
            _ => false,
        }
}

/// Compares a toleration's value and a taint's, if both are integers as a human writes them.
fn compares(own: &str, taints: &str, holds: fn(i64, i64) -> bool) -> bool {
    let integer = |text: &str| text.parse::<i64>().ok().filter(|number| number.to_string() == text);
    integer(own).zip(integer(taints)).is_some_and(|(own, taints)| holds(own, taints))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node() -> Node {
        Node::of(&json!({"metadata": {"name": "dpu-1", "labels": {"zone": "a", "cores": "8"}},
            "spec": {"taints": [{"key": "t", "value": "v", "effect": "NoSchedule"}]}}))
    }

    #[test]
    fn a_node_is_read_as_the_api_has_it() {
        let taint = Taint { key: "t".into(), value: String::new(), effect: "NoExecute".into() };
        let cordoned = json!({"metadata": {"name": "n"},
            "spec": {"unschedulable": true, "taints": [{"key": "t", "effect": "NoExecute"}]}});
        let labels = BTreeMap::new();
        assert_eq!(
            Node::of(&cordoned),
            Node { name: "n".into(), labels, taints: vec![taint], unschedulable: true }
        );
        assert_eq!((node().labels["cores"].as_str(), node().unschedulable), ("8", false));
    }

    fn of(spec: Value) -> Vec<String> {
        obstacles(&json!({"spec": spec}), &Node { taints: Vec::new(), ..node() })
    }

    fn term(list: &str, key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {list: [{"key": key, "operator": operator, "values": values}]}]}}}})
    }

    #[test]
    fn unmet_expressions_are_reported_with_what_the_node_has() {
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
    fn terms_are_ored_and_the_nearest_is_reported() {
        let required = |terms: Value| {
            of(json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": terms}}}}))
        };
        let zone = |zone: &str| selector::requirement("zone", zone);
        let none = json!({"key": "none", "operator": "Exists"});
        assert!(
            required(json!([{"matchExpressions": [zone("b")]}, {"matchExpressions": [zone("a")]}]))
                .is_empty()
        );
        let reasons =
            required(json!([{"matchExpressions": [zone("b"), none]}, {"matchExpressions": [none]}]));
        assert_eq!(reasons, ["none is absent, the Pod requires Exists"]);
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
        let numbered = Node {
            taints: vec![Taint { key: "t".into(), value: "5".into(), effect: "NoSchedule".into() }],
            ..node()
        };
        for (operator, value, fits) in [
            ("Gt", "4", true),
            ("Gt", "5", false),
            ("Lt", "6", true),
            ("Lt", "5", false),
            ("Gt", "x", false),
            ("Lt", "007", false),
            ("Gt", "-1", true),
        ] {
            let tolerations = json!([{"key": "t", "operator": operator, "value": value}]);
            let found = obstacles(&json!({"spec": {"tolerations": tolerations}}), &numbered);
            assert_eq!(found.is_empty(), fits, "{operator} {value}");
            // A taint that is no number is tolerated by none of them.
            assert!(!with(tolerations).is_empty());
        }
        assert_eq!(with(json!([])), ["has the taint t=v:NoSchedule, which the Pod does not tolerate"]);
        let cordoned = Node { taints: Vec::new(), unschedulable: true, ..node() };
        assert_eq!(obstacles(&json!({"spec": {}}), &cordoned), ["is cordoned"]);
    }
}
