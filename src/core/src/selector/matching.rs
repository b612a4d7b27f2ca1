//! Whether a node matches, as the scheduler decides it (`k8s.io/component-helpers/scheduling/corev1/nodeaffinity`): an expression
//! that the API server would refuse drops its term, as does a bound that is no integer.

use std::collections::BTreeMap;

use serde_json::Value;

use super::product::is_empty;
use super::requirement;
use crate::json::{list, text};

/// A node as selectors see it.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    /// `metadata.name`.
    pub name: &'a str,
    /// `metadata.labels`.
    pub labels: &'a BTreeMap<String, String>,
}

impl<'a> Node<'a> {
    /// Whether a term of a node selector matches: all of its expressions and fields do, and there is one. What isn't of the
    /// API's shape matches nothing.
    pub fn matches(&self, term: &Value) -> bool {
        !is_empty(term) && self.unmet(term).next().is_none()
    }

    /// The expressions and fields of a term that don't match, each with the value that the node has instead.
    pub fn unmet<'t>(self, term: &'t Value) -> impl Iterator<Item = (&'t Value, Option<&'a str>)> {
        let key = |of: &'t Value| text(of, "/key");
        let expressions = list(term, "/matchExpressions").iter();
        let labels = expressions
            .map(move |e| (e, self.labels.get(key(e)).map(String::as_str), requirement::is_valid(e)));
        // The API knows no other field, and what names one matches nothing. A field has two operators.
        let fields = list(term, "/matchFields").iter();
        let fields = fields.map(move |e| match key(e) {
            "metadata.name" => (e, Some(self.name), matches!(text(e, "/operator"), "In" | "NotIn")),
            _ => (e, None, false),
        });
        let unmet = labels.chain(fields).filter(|(e, actual, is_known)| !(*is_known && holds(e, *actual)));
        unmet.map(|(e, actual, _)| (e, actual))
    }
}

/// Whether an expression holds for a value, or for its absence.
fn holds(expression: &Value, actual: Option<&str>) -> bool {
    let values = list(expression, "/values");
    let is_in = |actual: &str| values.iter().any(|value| value.as_str() == Some(actual));
    let integers = || {
        let bound: i64 = values.first()?.as_str()?.parse().ok()?;
        Some((actual?.parse::<i64>().ok()?, bound))
    };
    match text(expression, "/operator") {
        "In" => actual.is_some_and(is_in),
        "NotIn" => !actual.is_some_and(is_in),
        "Exists" => actual.is_some(),
        "DoesNotExist" => actual.is_none(),
        "Gt" => integers().is_some_and(|(actual, bound)| actual > bound),
        "Lt" => integers().is_some_and(|(actual, bound)| actual < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn as_the_scheduler_does() {
        let labels = BTreeMap::from([("a".to_owned(), "7".to_owned()), ("b".to_owned(), "x".to_owned())]);
        let node = Node { name: "n", labels: &labels };
        let one = |key: &str, operator: &str, values: &[&str]| {
            node.matches(&json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
        };
        for (key, operator, values, matches) in [
            ("a", "In", &["7", "8"][..], true),
            ("a", "In", &["8"], false),
            ("c", "In", &["7"], false),
            ("a", "NotIn", &["7"], false),
            ("c", "NotIn", &["7"], true),
            ("a", "Exists", &[], true),
            ("c", "Exists", &[], false),
            ("c", "DoesNotExist", &[], true),
            ("a", "Gt", &["6"], true),
            ("a", "Gt", &["7"], false),
            ("a", "Lt", &["6"], false),
            ("a", "Lt", &["7"], false),
            ("a", "Lt", &["8"], true),
            ("b", "Gt", &["6"], false),
            ("a", "Gt", &["x"], false),
            ("a", "Gt", &["6.5"], false),
            ("c", "NotIn", &["eu west"], false),
            ("c", "NotIn", &[], false),
            ("a/b/c", "DoesNotExist", &[], false),
            ("c", "DoesNotExist", &["x"], false),
            ("a", "Perhaps", &["7"], false),
        ] {
            assert_eq!(one(key, operator, values), matches, "{key} {operator} {values:?}");
        }
        let field = |name: &str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
        assert!(node.matches(&field("n")) && !node.matches(&field("m")));
        assert!(!node.matches(&json!({"matchFields": [{"key": "x", "operator": "DoesNotExist"}]})));
        let mut both = field("n");
        both["matchExpressions"] = json!([{"key": "c", "operator": "Exists"}]);
        assert!(!node.matches(&both));
        for nothing in [json!({}), json!(null), json!({"matchExpressions": []}), json!("x")] {
            assert!(!node.matches(&nothing), "{nothing}");
        }
    }
}
