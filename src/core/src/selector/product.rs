//! ANDs two selectors: a node matches the product exactly if it matches both.
//!
//! Terms are ORed, so the product has a term for each pair. A term that says everything of one of the other side's terms
//! already is left as it is: it implies that one, so nothing is left to AND; and so the product of a product is itself.

use crate::map::{HashMap, HashSet};
use serde_json::{Map, Value};

use super::{TERMS, required_terms};
use crate::field::{self, FieldError};
use crate::steps::step;

/// Most bytes that a product may have, as JSON. etcd takes objects of 1.5 MiB (its `--max-request-bytes`), and a Pod has to
/// hold more than its affinity. The API server's own refusal would come later, and would not say what is too much.
pub const MAX_BYTES: usize = 1 << 20;

/// Most comparisons of a Pod's terms with expressions that are imposed: one for each pair. A Pod of 10,000 terms, which is what
/// [`MAX_BYTES`] leave room for, may be ANDed with 400 expressions.
const MAX_PAIRS: usize = 1 << 22;

/// The two lists of a term.
const LISTS: [&str; 2] = ["matchExpressions", "matchFields"];

/// ANDs terms into the required node affinity of a Pod: the Pod's terms outermost, its expressions first. Without terms of
/// its own the Pod gets these.
///
/// An empty term of the Pod matches no node, so it is dropped; where all are empty, one is kept, for the product of
/// nothing and something is nothing. `imposed` must have been checked by [`check`] and have no empty term; without any
/// term nothing changes. Returns whether something changed.
///
/// # Errors
/// A [`FieldError`] where the Pod has something of another type on the way, or where the product has more than
/// [`MAX_BYTES`].
pub fn and(pod: &mut Value, imposed: &[Value]) -> Result<bool, FieldError> {
    if imposed.is_empty() {
        return Ok(false);
    }
    let terms = required_terms(pod)?;
    check(terms, TERMS)?;
    if terms.is_empty() {
        bound(std::iter::empty(), 0, imposed)?;
        terms.extend_from_slice(imposed);
        return Ok(true);
    }
    if terms.iter().all(is_empty) {
        let dropped = terms.len() > 1;
        terms.truncate(1);
        return Ok(dropped);
    }
    let before = terms.len();
    terms.retain(|term| !is_empty(term));
    let imposed = Imposed::new(imposed);
    imposed.comparable(terms)?;
    let said: Vec<Said> = terms.iter().map(|term| imposed.said_by(term)).collect();
    if said.iter().all(|said| said.implies) {
        return Ok(terms.len() < before);
    }
    bound(
        terms.iter().zip(&said).filter(|(_, said)| !said.implies).map(|(term, _)| term),
        terms.len(),
        imposed.terms,
    )?;
    for (term, said) in std::mem::take(terms).into_iter().zip(said) {
        if said.implies {
            terms.push(term);
        } else {
            terms.extend((0..imposed.terms.len()).map(|i| imposed.both(&term, &said, i)));
        }
    }
    Ok(true)
}

/// Refuses a product that is too large, before it is made.
///
/// `multiplied`: those of the Pod's `own` terms that get a term for each that is imposed.
fn bound<'a>(
    multiplied: impl Iterator<Item = &'a Value>,
    own: usize,
    imposed: &[Value],
) -> Result<(), FieldError> {
    let all: usize = imposed.iter().map(size).sum();
    let (mut count, mut bytes) = (0_usize, 0_usize);
    for term in multiplied {
        count += imposed.len();
        bytes = bytes.saturating_add(size(term).saturating_mul(imposed.len())).saturating_add(all);
    }
    if own == 0 {
        (count, bytes) = (imposed.len(), all);
    }
    if bytes <= MAX_BYTES {
        return Ok(());
    }
    Err(FieldError::new(
        TERMS,
        format_args!(
            "has {own} terms, and admission adds {} to each: together {count} terms of {bytes} bytes, at most {MAX_BYTES} \
             fit into a Pod; use fewer or shorter terms here or in the namespace's NamespaceOffloading",
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

/// Checks that terms are of the API's shape, down to the single value. The path of an error begins with `path`.
pub fn check(terms: &[Value], path: &str) -> Result<(), FieldError> {
    // Paths are only made where they are needed: this runs for every Pod.
    for (t, term) in terms.iter().enumerate().filter(|(_, term)| !term.is_null()) {
        check_term(term).map_err(|error| error.below(&format!("{path}[{t}]")))?;
    }
    Ok(())
}

/// The same of one term, with paths that begin at it.
pub(crate) fn check_term(term: &Value) -> Result<(), FieldError> {
    let term = field::as_object(term, "")?;
    for list in LISTS {
        for (e, expression) in field::list(term, "", list)?.iter().enumerate() {
            check_expression(expression).map_err(|error| error.below(&format!("{list}[{e}]")))?;
        }
    }
    Ok(())
}

fn check_expression(expression: &Value) -> Result<(), FieldError> {
    let expression = field::as_object(expression, "")?;
    for key in ["key", "operator"] {
        field::text(expression, "", key)?;
    }
    match field::list(expression, "", "values")?.iter().enumerate().find(|(_, value)| !value.is_string()) {
        None => Ok(()),
        Some((v, other)) => Err(FieldError::wrong_type(&format!("values[{v}]"), other, "a string")),
    }
}

/// Whether a term has no expressions, and so matches no node.
pub fn is_empty(term: &Value) -> bool {
    LISTS.iter().all(|list| entries(term, list).is_empty())
}

/// The entries of one of a term's lists.
pub(crate) fn entries<'a>(term: &'a Value, list: &str) -> &'a [Value] {
    term.get(list).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// What an expression of one of a term's lists means: the order of its values doesn't matter, nor how often one stands there.
#[derive(PartialEq, Eq, Hash)]
struct Meaning<'a> {
    list: &'static str,
    key: Option<&'a Value>,
    operator: Option<&'a Value>,
    values: Vec<&'a str>,
}

impl<'a> Meaning<'a> {
    fn of(list: &'static str, expression: &'a Value) -> Self {
        step();
        let mut values: Vec<&str> = entries(expression, "values").iter().filter_map(Value::as_str).collect();
        values.sort_unstable();
        values.dedup();
        Self { list, key: expression.get("key"), operator: expression.get("operator"), values }
    }
}

/// The terms that are imposed, and their expressions numbered by what they mean.
struct Imposed<'a> {
    terms: &'a [Value],
    numbers: HashMap<Meaning<'a>, usize>,
    /// Of each term: the list, the number and the expression, each number once.
    expressions: Vec<Vec<(&'static str, usize, &'a Value)>>,
}

/// What a term of the Pod says of what is imposed.
struct Said {
    /// Of each number, whether the term says it.
    numbers: Vec<bool>,
    /// Whether it says all of one of the terms.
    implies: bool,
}

impl<'a> Imposed<'a> {
    fn new(terms: &'a [Value]) -> Self {
        let mut numbers = HashMap::default();
        let mut of_term = |term: &'a Value| {
            let mut once = HashSet::default();
            let all = LISTS.into_iter().flat_map(|list| entries(term, list).iter().map(move |e| (list, e)));
            let numbered = all.map(|(list, expression)| {
                let next = numbers.len();
                (list, *numbers.entry(Meaning::of(list, expression)).or_insert(next), expression)
            });
            numbered.filter(|(_, number, _)| once.insert(*number)).collect()
        };
        let expressions = terms.iter().map(&mut of_term).collect();
        Self { terms, numbers, expressions }
    }

    /// Refuses terms of a Pod that would take too long to compare with what is imposed.
    fn comparable(&self, own: &[Value]) -> Result<(), FieldError> {
        let expressions: usize = self.expressions.iter().map(|all| 1 + all.len()).sum();
        if own.len().saturating_mul(expressions) <= MAX_PAIRS {
            return Ok(());
        }
        Err(FieldError::new(
            TERMS,
            format_args!(
                "has {} terms, and admission compares each with {expressions} terms and expressions; at most {MAX_PAIRS} pairs \
                 of them are allowed: use fewer terms here or in the namespace's NamespaceOffloading",
                own.len()
            ),
        ))
    }

    fn said_by(&self, term: &Value) -> Said {
        let mut numbers = vec![false; self.numbers.len()];
        for list in LISTS {
            for expression in entries(term, list) {
                if let Some(said) = self
                    .numbers
                    .get(&Meaning::of(list, expression))
                    .and_then(|number| numbers.get_mut(*number))
                {
                    *said = true;
                }
            }
        }
        let says = |number: usize| {
            step();
            numbers.get(number).is_some_and(|said| *said)
        };
        let implies = self.expressions.iter().any(|all| all.iter().all(|(_, number, _)| says(*number)));
        Said { numbers, implies }
    }

    /// A term that says what both say. What the Pod's has besides expressions stays.
    fn both(&self, term: &Value, said: &Said, i: usize) -> Value {
        let mut all = term.as_object().cloned().unwrap_or_else(Map::new);
        for (list, number, expression) in self.expressions.get(i).into_iter().flatten() {
            if said.numbers.get(*number).is_some_and(|said| *said) {
                continue;
            }
            match all.get_mut(*list) {
                Some(Value::Array(joined)) => joined.push((*expression).clone()),
                _ => {
                    all.insert((*list).to_owned(), Value::Array(vec![(*expression).clone()]));
                }
            }
        }
        Value::Object(all)
    }
}

/// Appends an expression to a term's `matchExpressions`, unless it is there already.
pub fn add(expressions: &mut Vec<Value>, expression: &Value) {
    const LIST: &str = LISTS[0];
    let meaning = Meaning::of(LIST, expression);
    if !expressions.iter().any(|own| Meaning::of(LIST, own) == meaning) {
        expressions.push(expression.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::super::POINTER;
    use super::super::tests::pod;
    use super::*;
    use serde_json::json;

    fn term(key: &str, values: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": key, "operator": "In", "values": values}]})
    }

    fn anded(terms: &Value, imposed: &[Value]) -> Result<Value, FieldError> {
        let before = pod(terms.clone());
        let mut once = before.clone();
        let changed = and(&mut once, imposed)?;
        assert_eq!(changed, once != before, "it says whether it changed something: {terms}");
        let mut twice = once.clone();
        assert!(!and(&mut twice, imposed)?);
        assert_eq!(once, twice);
        Ok(once.pointer(POINTER).unwrap().clone())
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
        // Beside it, a term that matches no node is dropped.
        assert_eq!(anded(&json!([{}, own[0]]), &imposed[..1]).unwrap(), json!([own[0]]));
    }

    #[test]
    fn nothing_stays_nothing_and_absent_terms_are_any() {
        let imposed = [term("b", &["1"])];
        assert_eq!(anded(&json!([{}, null, {"matchExpressions": []}]), &imposed).unwrap(), json!([{}]));
        assert_eq!(anded(&json!([{}]), &imposed).unwrap(), json!([{}]));
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
        for value in ["1", &"v".repeat(100)] {
            let pair = anded(&json!([term("p", &[value])]), &[term("i", &[value])]).unwrap();
            let (guess, is) = (size(&pair), pair.to_string().len());
            assert!(guess >= is && guess < is + is / 3, "{guess} {is}");
        }
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

    #[test]
    fn its_steps_grow_with_terms_and_expressions_and_no_faster() {
        let values = |count: usize| -> Value { (0..count).map(|i| format!("v{i}")).rev().collect() };
        let imposed = [json!({"matchExpressions": [{"key": "a", "operator": "In", "values": values(5)}]})];
        let expression = |i: usize| json!({"key": format!("k{i}"), "operator": "Exists"});
        crate::steps::assert_nearly_linear(
            |size| pod(json!([{"matchExpressions": (0..size).map(expression).collect::<Vec<_>>()}])),
            |pod| assert!(and(pod, &imposed).unwrap()),
        );
        crate::steps::assert_nearly_linear(
            |size| {
                pod(json!(
                    (0..size).map(|i| json!({"matchExpressions": [expression(i)]})).collect::<Vec<_>>()
                ))
            },
            |pod| assert!(and(pod, &imposed).unwrap()),
        );
    }

    #[test]
    fn what_would_take_too_long_to_compare_is_refused() {
        let imposed: Vec<Value> = (0..600).map(|i| term(&format!("i{i}"), &["1"])).collect();
        let error = anded(&json!(vec![term("a", &["1"]); 4000]), &imposed).unwrap_err().to_string();
        assert!(
            error.contains("has 4000 terms") && error.contains("with 1200 terms and expressions"),
            "{error}"
        );
    }
}
