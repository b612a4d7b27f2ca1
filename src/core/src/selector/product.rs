//! ANDs two selectors: a node matches the product exactly if it matches both.
//!
//! Terms are ORed, so the product has a term for each pair. A term that says everything of one of the other side's terms
//! already is left as it is: it implies that one, so nothing is left to AND; and so the product of a product is itself.

use serde_json::{Map, Value};

use super::{TERMS, required_terms};
use crate::field::FieldError;

/// Most bytes that a product may have, as JSON. etcd takes objects of 1.5 MiB (its `--max-request-bytes`), and a Pod has to
/// hold more than its affinity. The API server's own refusal would come later, and would not say what is too much.
pub const MAX_BYTES: usize = 1 << 20;

/// The two lists of a term.
const LISTS: [&str; 2] = ["matchExpressions", "matchFields"];

/// ANDs terms into the required node affinity of a Pod: the Pod's terms outermost, its expressions first. Without terms of
/// its own the Pod gets these.
///
/// An empty term of the Pod matches no node, so it is dropped; where all are empty, one is kept, for the product of
/// nothing and something is nothing. `imposed` must have been checked by [`check`] and have no empty term; without any
/// term nothing changes.
///
/// # Errors
/// A [`FieldError`] where the Pod has something of another type on the way, or where the product has more than
/// [`MAX_BYTES`].
pub fn and(pod: &mut Value, imposed: &[Value]) -> Result<(), FieldError> {
    if imposed.is_empty() {
        return Ok(());
    }
    let terms = required_terms(pod)?;
    check(terms, TERMS)?;
    if terms.is_empty() {
        bound(&[], imposed)?;
        terms.extend_from_slice(imposed);
        return Ok(());
    }
    if terms.iter().all(is_empty) {
        terms.truncate(1);
        return Ok(());
    }
    terms.retain(|term| !is_empty(term));
    if terms.iter().all(|term| says_one_of(term, imposed)) {
        return Ok(());
    }
    bound(terms, imposed)?;
    let own = std::mem::take(terms);
    for term in own {
        if says_one_of(&term, imposed) {
            terms.push(term);
        } else {
            terms.extend(imposed.iter().map(|other| both(&term, other)));
        }
    }
    Ok(())
}

/// Refuses a product that is too large, before it is made.
fn bound(own: &[Value], imposed: &[Value]) -> Result<(), FieldError> {
    let all: usize = imposed.iter().map(size).sum();
    let (mut count, mut bytes) = (0_usize, 0_usize);
    for term in own.iter().filter(|term| !says_one_of(term, imposed)) {
        count += imposed.len();
        bytes = bytes.saturating_add(size(term).saturating_mul(imposed.len())).saturating_add(all);
    }
    if own.is_empty() {
        (count, bytes) = (imposed.len(), all);
    }
    if bytes <= MAX_BYTES {
        return Ok(());
    }
    Err(FieldError::new(
        TERMS,
        format_args!(
            "has {} terms, and admission adds {} to each: together {count} terms of {bytes} bytes, at most {MAX_BYTES} \
             fit into a Pod; use fewer or shorter terms here or in the namespace's NamespaceOffloading",
            own.len(),
            imposed.len()
        ),
    ))
}

/// About how many bytes a value has as JSON: what has to be escaped counts as it is.
fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 3,
        Value::Array(list) => 2 + list.iter().map(size).sum::<usize>(),
        Value::Object(map) => 2 + map.iter().map(|(key, value)| key.len() + 4 + size(value)).sum::<usize>(),
    }
}

/// Checks that terms are of the API's shape, down to the single value.
///
/// # Errors
/// The first that has another type, with its path under `path`.
pub fn check(terms: &[Value], path: &str) -> Result<(), FieldError> {
    for (t, term) in terms.iter().enumerate() {
        if term.is_null() {
            continue;
        }
        let path = || format!("{path}[{t}]");
        let term = term.as_object().ok_or_else(|| FieldError::wrong_type(&path(), term, "an object"))?;
        for list in LISTS {
            match term.get(list) {
                None | Some(Value::Null) => {}
                Some(Value::Array(all)) => {
                    for (e, expression) in all.iter().enumerate() {
                        check_expression(expression, &|| format!("{}.{list}[{e}]", path()))?;
                    }
                }
                Some(other) => {
                    return Err(FieldError::wrong_type(&format!("{}.{list}", path()), other, "a list"));
                }
            }
        }
    }
    Ok(())
}

fn check_expression(expression: &Value, path: &dyn Fn() -> String) -> Result<(), FieldError> {
    let expression =
        expression.as_object().ok_or_else(|| FieldError::wrong_type(&path(), expression, "an object"))?;
    for key in ["key", "operator"] {
        match expression.get(key) {
            None | Some(Value::Null | Value::String(_)) => {}
            Some(other) => {
                return Err(FieldError::wrong_type(&format!("{}.{key}", path()), other, "a string"));
            }
        }
    }
    match expression.get("values") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Array(values)) => match values.iter().enumerate().find(|(_, value)| !value.is_string()) {
            None => Ok(()),
            Some((v, other)) => {
                Err(FieldError::wrong_type(&format!("{}.values[{v}]", path()), other, "a string"))
            }
        },
        Some(other) => Err(FieldError::wrong_type(&format!("{}.values", path()), other, "a list")),
    }
}

/// Whether a term has no expressions, and so matches no node.
pub fn is_empty(term: &Value) -> bool {
    LISTS.iter().all(|list| entries(term, list).is_empty())
}

fn entries<'a>(term: &'a Value, list: &str) -> &'a [Value] {
    term.get(list).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Whether a term says all that one of these says, and so implies it.
fn says_one_of(term: &Value, others: &[Value]) -> bool {
    others.iter().any(|other| {
        LISTS.iter().all(|list| {
            let own = entries(term, list);
            entries(other, list).iter().all(|theirs| own.iter().any(|own| same(own, theirs)))
        })
    })
}

/// A term that says what both say. What the first has besides expressions stays.
fn both(term: &Value, other: &Value) -> Value {
    let mut all = term.as_object().cloned().unwrap_or_else(Map::new);
    for list in LISTS {
        let theirs = entries(other, list);
        if theirs.is_empty() {
            continue;
        }
        let own = entries(term, list);
        let mut joined = Vec::with_capacity(own.len() + theirs.len());
        joined.extend_from_slice(own);
        add(&mut joined, theirs);
        all.insert(list.to_owned(), Value::Array(joined));
    }
    Value::Object(all)
}

/// Appends the expressions that are not there yet.
pub fn add(expressions: &mut Vec<Value>, more: &[Value]) {
    for expression in more {
        if !expressions.iter().any(|own| same(own, expression)) {
            expressions.push(expression.clone());
        }
    }
}

/// Whether two expressions mean the same: the order of values doesn't matter, nor how often one stands there.
fn same(a: &Value, b: &Value) -> bool {
    let (own, theirs) = (entries(a, "values"), entries(b, "values"));
    ["key", "operator"].iter().all(|part| a.get(part) == b.get(part))
        && (own == theirs
            || (own.iter().all(|v| theirs.contains(v)) && theirs.iter().all(|v| own.contains(v))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn term(key: &str, values: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": key, "operator": "In", "values": values}]})
    }

    fn anded(terms: &Value, imposed: &[Value]) -> Result<Value, FieldError> {
        let pod = |terms: &Value| {
            json!({"spec": {"affinity": {"nodeAffinity":
                {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}})
        };
        let mut once = pod(terms);
        and(&mut once, imposed)?;
        let mut twice = once.clone();
        and(&mut twice, imposed)?;
        assert_eq!(once, twice);
        Ok(once.pointer("/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms")
            .unwrap()
            .clone())
    }

    #[test]
    fn every_pair_becomes_a_term() {
        let imposed = [term("b", &["1"]), term("c", &["1"])];
        let own = json!([{"matchExpressions": [{"key": "a", "operator": "Exists"}], "zz": 1}, {},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]);
        let (b, c) = (&imposed[0]["matchExpressions"][0], &imposed[1]["matchExpressions"][0]);
        let (a, n) = (&own[0]["matchExpressions"][0], &own[2]["matchFields"]);
        assert_eq!(
            anded(&own, &imposed).unwrap(),
            json!([{"matchExpressions": [a, b], "zz": 1}, {"matchExpressions": [a, c], "zz": 1},
                {"matchFields": n, "matchExpressions": [b]}, {"matchFields": n, "matchExpressions": [c]}])
        );
    }

    #[test]
    fn what_implies_one_side_already_stays_as_it_is() {
        let imposed = [term("b", &["1", "2"]), term("c", &["1"])];
        let own = json!([term("b", &["2", "1", "1"]), term("b", &["1"])]);
        let terms = anded(&own, &imposed).unwrap();
        assert_eq!(terms[0], own[0]);
        assert_eq!(terms.as_array().unwrap().len(), 3, "the other is ANDed with both");
    }

    #[test]
    fn nothing_stays_nothing_and_absent_terms_are_any() {
        let imposed = [term("b", &["1"])];
        assert_eq!(anded(&json!([{}, null, {"matchExpressions": []}]), &imposed).unwrap(), json!([{}]));
        assert_eq!(anded(&json!([]), &imposed).unwrap(), json!(imposed));
        assert_eq!(anded(&json!(null), &imposed).unwrap(), json!(imposed));
        assert_eq!(anded(&json!([{}]), &[]).unwrap(), json!([{}]), "nothing is imposed");
    }

    #[test]
    fn a_product_that_is_too_large_is_refused_with_its_counts() {
        let many = |key: &str, count: usize| -> Vec<Value> {
            (0..count).map(|i| term(&format!("{key}{i}"), &["1"])).collect()
        };
        assert_eq!(anded(&json!(many("p", 20)), &many("i", 51)).unwrap().as_array().unwrap().len(), 1020);
        let error = anded(&json!(many("p", 100)), &many("i", 200)).unwrap_err().to_string();
        for part in
            ["nodeSelectorTerms: has 100 terms", "adds 200 to each", "20000 terms of ", "at most 1048576"]
        {
            assert!(error.contains(part), "{error}");
        }
        // The guess is near what it is.
        let pair = json!([both(&term("p", &["1"]), &term("i", &["1"]))]);
        let (guess, is) = (size(&pair), pair.to_string().len());
        assert!(guess >= is && guess < is + is / 3, "{guess} {is}");
        let long = "x".repeat(MAX_BYTES);
        assert!(anded(&json!([]), &[term("b", &[&long])]).is_err());
    }

    #[test]
    fn wrong_types_are_errors_with_their_path() {
        for (terms, path) in [
            (json!("x"), "nodeSelectorTerms: must be a list, is a string"),
            (json!([1]), "nodeSelectorTerms[0]: must be an object, is a number"),
            (json!([{}, {"matchFields": {}}]), "nodeSelectorTerms[1].matchFields: must be a list"),
            (
                json!([{"matchExpressions": [[]]}]),
                "nodeSelectorTerms[0].matchExpressions[0]: must be an object",
            ),
            (json!([{"matchExpressions": [{"key": 1}]}]), "matchExpressions[0].key: must be a string"),
            (json!([{"matchExpressions": [{"values": {}}]}]), "matchExpressions[0].values: must be a list"),
            (
                json!([{"matchExpressions": [{"values": ["a", 1]}]}]),
                "values[1]: must be a string, is a number",
            ),
        ] {
            let error = anded(&terms, &[term("b", &["1"])]).unwrap_err().to_string();
            assert!(error.contains(path), "{error}");
        }
    }
}
