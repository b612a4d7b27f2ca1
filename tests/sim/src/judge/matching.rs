//! Which workloads a rule matches, by its own words: the judge doesn't ask the product.

use serde_json::Value;

use super::wanted::is_workload;
use crate::model::Commit;
use crate::world::{at, is_queued, text};

/// What an expression's key names in a Pod.
fn field<'a>(key: &str, pod: &'a Value, node: Option<&'a str>) -> Option<&'a str> {
    if let Some(label) = key.strip_prefix(".state.extra.labels.") {
        return pod["metadata"]["labels"].get(label)?.as_str();
    }
    if let Some(annotation) = key.strip_prefix(".state.extra.annotations.") {
        return pod["metadata"]["annotations"].get(annotation)?.as_str();
    }
    match key {
        ".state.nodeName" => node,
        ".metadata.resourceName" => at(pod, "/metadata/name")?.as_str(),
        _ => None,
    }
}

/// Whether a Pod passes an expression.
fn passes(expression: &Value, pod: &Value, node: Option<&str>) -> bool {
    let found = field(text(expression, "/key"), pod, node);
    let values = expression["values"].as_array().map_or(&[][..], Vec::as_slice);
    let is_in = found.is_some_and(|found| values.iter().any(|value| value == found));
    let number = |text: &str| text.parse::<i64>().ok();
    let numbers = found.and_then(number).zip(values.first().and_then(Value::as_str).and_then(number));
    match text(expression, "/operator") {
        "In" => is_in,
        "NotIn" => !is_in,
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => numbers.is_some_and(|(found, bound)| found > bound),
        "Lt" => numbers.is_some_and(|(found, bound)| found < bound),
        _ => false,
    }
}

/// Whether a rule matches a Pod on a Node: a term of it whose expressions all pass.
pub(super) fn matches(rule: &Value, pod: &Value, node: Option<&str>) -> bool {
    any_term(rule, |expression| passes(expression, pod, node))
}

/// Whether a rule's companion of a Pod that it matches doesn't wait for a queue to release the Pod.
pub(super) fn serves(rule: &Value, pod: &Value) -> bool {
    !is_queued(pod) || at(rule, "/spec/gatedWorkloads").is_some_and(|when| when == "Serve")
}

/// What rules read of a Pod, beside its name.
pub(super) fn read(pod: &Value) -> [Value; 4] {
    let (metadata, spec) = (&pod["metadata"], &pod["spec"]);
    [&metadata["labels"], &metadata["annotations"], &spec["nodeName"], &spec["schedulingGates"]]
        .map(Value::clone)
}

/// Whether a write of a Pod changes what its companions depend on: what its kubelet and agents report isn't part of that.
pub(super) fn differs(commit: &Commit) -> bool {
    let facts = |pod: &Value| (read(pod), is_workload(pod), pod["metadata"]["deletionTimestamp"].clone());
    let [before, now] = [&commit.old, &commit.new].map(|pod| pod.as_deref().map(facts));
    before != now
}

/// Whether a rule may match a Pod that has no Node yet.
pub(super) fn could_match(rule: &Value, pod: &Value) -> bool {
    any_term(rule, |expression| {
        text(expression, "/key") == ".state.nodeName" || passes(expression, pod, None)
    })
}

fn any_term(rule: &Value, passes: impl Fn(&Value) -> bool) -> bool {
    let terms = at(rule, "/spec/workloadTerms").and_then(Value::as_array);
    terms.into_iter().flatten().any(|term| {
        term["matchExpressions"].as_array().is_some_and(|all| !all.is_empty() && all.iter().all(&passes))
    })
}

/// The annotations that a rule gives the companion of a Pod on a Node, each with its value; `None` where it has none.
pub(super) fn facts<'a>(
    rule: &'a Value,
    pod: &'a Value,
    node: Option<&'a str>,
) -> Vec<(&'a str, Option<&'a str>)> {
    let injected = rule["spec"]["workloadInfoInject"].as_array();
    let fact =
        |entry: &'a Value| (text(entry, "/asAnnotation/name"), field(text(entry, "/workloadKey"), pod, node));
    injected.into_iter().flatten().map(fact).collect()
}
