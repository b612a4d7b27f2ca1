//! The algebra of required node affinity, on raw JSON.
//!
//! A node selector is a list of terms that are ORed; a term is a list of expressions that are ANDed. A requirement that
//! has to hold therefore goes into *every* term: beside them it would only be one more way to match. A term without
//! expressions matches no node (`v1.NodeSelectorTerm`), so adding a requirement to it would make it match some: such
//! terms are dropped, unless there is no other.

pub mod clash;
pub mod matching;
pub mod product;
pub mod requirement;

use serde_json::{Value, json};

use crate::fault;
use crate::field::{self, FieldError};
use crate::json::list;
use crate::text::truncate;

pub use clash::contradiction;

const AFFINITY: &str = "spec.affinity";
const NODE_AFFINITY: &str = "spec.affinity.nodeAffinity";
const REQUIRED: &str = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution";
const TERMS: &str =
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";

/// That a node's label has this value, as an expression.
pub fn requirement(key: &str, value: &str) -> Value {
    json!({"key": key, "operator": "In", "values": [value]})
}

/// The term that only the node of this name matches.
pub fn node_named(name: &str) -> Value {
    json!({"matchFields": [requirement(requirement::NAME, name)]})
}

/// Whether an expression says just this, in the form that [`requirement`] writes and that policies compare with.
fn says(expression: &Value, key: &str, value: &str) -> bool {
    let text = |of: &str| expression.get(of).and_then(Value::as_str);
    let values = expression.get("values").and_then(Value::as_array);
    text("key") == Some(key)
        && text("operator") == Some("In")
        && values.is_some_and(|all| matches!(&all[..], [one] if one == value))
}

/// Requires a label's value in the required node affinity of a Pod: in every term, or in a first term where there is none.
/// A list of terms that is there but empty counts as absent. The API server would refuse it, and nothing that an empty
/// list could mean is wider than the one term that takes its place.
///
/// Nothing is written where every term has the requirement already, so applying it twice is applying it once. Returns whether
/// something was written.
pub fn require(pod: &mut Value, key: &str, value: &str) -> Result<bool, FieldError> {
    let terms = required_terms(pod)?;
    if terms.is_empty() {
        terms.push(json!({"matchExpressions": [requirement(key, value)]}));
        return Ok(true);
    }
    let mut matches_nothing = Vec::with_capacity(terms.len());
    for (i, term) in terms.iter().enumerate() {
        matches_nothing.push(is_empty_term(term, i)?);
    }
    if matches_nothing.iter().all(|&nothing| nothing) {
        let dropped = terms.len() > 1;
        terms.truncate(1);
        return Ok(dropped);
    }
    let mut changed = matches_nothing.contains(&true);
    let mut nothing = matches_nothing.into_iter();
    terms.retain(|_| !nothing.next().unwrap_or(false));
    for term in terms.iter_mut() {
        // The shapes have been checked with the emptiness.
        let term = field::as_object_mut(term, TERMS)?;
        let expressions = field::list_mut(term, TERMS, "matchExpressions")?;
        let is_missing = !expressions.iter().any(|e| says(e, key, value));
        if is_missing && !(changed && fault("only-one-term-is-isolated")) {
            expressions.push(requirement(key, value));
            changed = true;
        }
    }
    Ok(changed)
}

/// The terms of a Pod's required node affinity that match a node whose label has not this value, each with its path; or that there
/// is no term.
pub fn demands(pod: &Value, key: &str, value: &str) -> Vec<FieldError> {
    let wanted = format!("{key} In [{value}]");
    let terms = terms(pod);
    if terms.is_empty() {
        let message = format!("is empty; every Pod of a tenant must require {wanted}");
        return vec![FieldError::new(TERMS, message)];
    }
    let fault = |(i, term): (usize, &Value)| {
        let expressions = term.get("matchExpressions").and_then(Value::as_array);
        if expressions.is_some_and(|all| all.iter().any(|e| says(e, key, value))) {
            return None;
        }
        match is_empty_term(term, i) {
            Ok(true) => None,
            Err(error) => Some(error),
            Ok(false) => {
                let said: Vec<String> = expressions.into_iter().flatten().map(Value::to_string).collect();
                let said = said.join(", ");
                let said = truncate(&said, 200);
                let message = format!("is [{said}]; terms are ORed, so each must also require {wanted}");
                Some(FieldError::new(format_args!("{TERMS}[{i}]"), message))
            }
        }
    };
    terms.iter().enumerate().filter_map(fault).collect()
}

/// JSON pointer of the terms of a Pod's required node affinity.
pub const POINTER: &str =
    "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";

/// The terms of a Pod's required node affinity.
pub fn terms(pod: &Value) -> &[Value] {
    list(pod, POINTER)
}

/// The terms of a Pod's required node affinity, which are made where they are not there.
fn required_terms(pod: &mut Value) -> Result<&mut Vec<Value>, FieldError> {
    let pod = field::as_object_mut(pod, "")?;
    let spec = field::object_mut(pod, "", "spec")?;
    let affinity = field::object_mut(spec, "spec", "affinity")?;
    let node = field::object_mut(affinity, AFFINITY, "nodeAffinity")?;
    let required = field::object_mut(node, NODE_AFFINITY, "requiredDuringSchedulingIgnoredDuringExecution")?;
    field::list_mut(required, REQUIRED, "nodeSelectorTerms")
}

/// Whether a term matches nothing. A term of another shape is an error with its own path.
fn is_empty_term(term: &Value, i: usize) -> Result<bool, FieldError> {
    if term.is_null() {
        return Ok(true);
    }
    let empty = || {
        let term = field::as_object(term, "")?;
        Ok(field::list(term, "", "matchExpressions")?.is_empty()
            & field::list(term, "", "matchFields")?.is_empty())
    };
    empty().map_err(|error: FieldError| error.below(&format!("{TERMS}[{i}]")))
}

/// The toleration of a taint with this key, this value and the effect NoSchedule.
pub fn toleration(key: &str, value: &str) -> Value {
    json!({"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"})
}

/// Adds a toleration, unless one is there that says just this. Returns whether it was added.
pub fn tolerate(pod: &mut Value, toleration: Value) -> Result<bool, FieldError> {
    let spec = field::object_mut(field::as_object_mut(pod, "")?, "", "spec")?;
    let tolerations = field::list_mut(spec, "spec", "tolerations")?;
    let mut is_there = false;
    for (i, own) in tolerations.iter().enumerate() {
        if !own.is_object() {
            return Err(FieldError::wrong_type(&format!("spec.tolerations[{i}]"), own, "an object"));
        }
        is_there |= tolerated(own) == tolerated(&toleration)
            && own.get("tolerationSeconds").is_none_or(Value::is_null);
    }
    if !is_there {
        tolerations.push(toleration);
    }
    Ok(!is_there)
}

/// Key, operator, value and effect of a toleration.
fn tolerated(toleration: &Value) -> [&str; 4] {
    ["key", "operator", "value", "effect"].map(|field| {
        match (field, toleration.get(field).and_then(Value::as_str).unwrap_or_default()) {
            ("operator", "") => "Equal",
            (_, text) => text,
        }
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A Pod with these terms.
    pub(crate) fn pod(terms: Value) -> Value {
        json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": terms}}}}})
    }

    fn required(mut pod: Value) -> Value {
        let before = pod.clone();
        let written = require(&mut pod, "t", "1").unwrap();
        assert_eq!(written, pod != before, "it says whether it wrote something: {before}");
        let once = pod.clone();
        assert!(!require(&mut pod, "t", "1").unwrap());
        assert_eq!(pod, once, "applied twice");
        pod.pointer(POINTER).unwrap().clone()
    }

    #[test]
    fn absent_null_and_empty_get_one_term() {
        let one = json!([{"matchExpressions": [{"key": "t", "operator": "In", "values": ["1"]}]}]);
        assert_eq!(required(json!({"spec": {}})), one);
        assert_eq!(required(json!({"spec": {"affinity": null}})), one);
        assert_eq!(required(json!({"spec": {"affinity": {"podAffinity": {}}}})), one);
        assert_eq!(required(pod(json!(null))), one);
        assert_eq!(required(pod(json!([]))), one);
    }

    /// Policies compare with the form that is written here.
    #[test]
    fn a_value_that_is_named_twice_is_required_once_more() {
        let named = |values: Value| json!({"key": "t", "operator": "In", "values": values});
        let (twice, once) = (named(json!(["1", "1"])), named(json!(["1"])));
        let terms = pod(json!([{"matchExpressions": [twice]}]));
        assert_eq!(demands(&terms, "t", "1").len(), 1);
        assert_eq!(required(terms), json!([{"matchExpressions": [twice, once]}]));
    }

    #[test]
    fn every_term_gets_it_and_keeps_its_own() {
        let got = required(pod(json!([
            {"matchExpressions": [{"key": "a", "operator": "Exists"}], "x": 1},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
            {"matchExpressions": [{"key": "t", "operator": "In", "values": ["1"]}]},
        ])));
        let t = json!({"key": "t", "operator": "In", "values": ["1"]});
        assert_eq!(
            got,
            json!([
                {"matchExpressions": [{"key": "a", "operator": "Exists"}, t], "x": 1},
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}], "matchExpressions": [t]},
                {"matchExpressions": [t]},
            ])
        );
    }

    #[test]
    fn a_term_that_matches_nothing_never_starts_to_match() {
        let t = json!({"matchExpressions": [{"key": "t", "operator": "In", "values": ["1"]}]});
        let a = json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]});
        let got = required(pod(json!([{}, a, {"matchExpressions": []}, null])));
        assert_eq!(got.as_array().unwrap().len(), 1);
        assert_eq!(got[0]["matchExpressions"][1], t["matchExpressions"][0]);
        assert_eq!(required(pod(json!([{}, {}]))), json!([{}]));
    }

    #[test]
    fn wrong_types_are_errors_with_their_path() {
        for (bad, path) in [
            (json!({"spec": []}), "spec:"),
            (json!({"spec": {"affinity": 1}}), "spec.affinity:"),
            (pod(json!({})), "nodeSelectorTerms: must be a list"),
            (pod(json!([1])), "nodeSelectorTerms[0]: must be an object, is a number"),
            (pod(json!([{"matchExpressions": {}}])), "nodeSelectorTerms[0].matchExpressions: must be a list"),
            (json!([]), ": must be an object, is a list"),
        ] {
            let mut bad = bad;
            let error = require(&mut bad, "t", "1").unwrap_err().to_string();
            assert!(error.contains(path), "{error}");
        }
    }

    #[test]
    fn tolerations_are_not_doubled() {
        let one = |value| json!({"key": "k", "value": value, "effect": "NoSchedule"});
        let mut pod = json!({"spec": {"tolerations": [one("v")]}});
        let mut spelled_out = one("v");
        spelled_out["operator"] = json!("Equal");
        assert_eq!(tolerate(&mut pod, spelled_out), Ok(false));
        assert_eq!(tolerate(&mut pod, one("w")), Ok(true));
        assert_eq!(pod["spec"]["tolerations"], json!([one("v"), one("w")]));
        pod["spec"]["tolerations"][1]["tolerationSeconds"] = json!(30);
        assert_eq!(tolerate(&mut pod, one("w")), Ok(true), "for a time is not for ever");
    }
}
