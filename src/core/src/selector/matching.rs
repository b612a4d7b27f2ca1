//! Whether a node matches, as the scheduler decides it (`k8s.io/component-helpers/scheduling/corev1/nodeaffinity`).

use std::collections::BTreeMap;

use serde_json::Value;

/// A node as selectors see it.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    /// `metadata.name`.
    pub name: &'a str,
    /// `metadata.labels`.
    pub labels: &'a BTreeMap<String, String>,
}

impl Node<'_> {
    /// Whether a term of a node selector matches: all of its expressions and fields do, and there is one. What isn't of the
    /// API's shape matches nothing.
    pub fn matches(&self, term: &Value) -> bool {
        let list = |name: &str| term.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let (expressions, fields) = (list("matchExpressions"), list("matchFields"));
        !(expressions.is_empty() && fields.is_empty())
            && expressions.iter().all(|e| {
                let key = e.get("key").and_then(Value::as_str).unwrap_or_default();
                holds(e, self.labels.get(key).map(String::as_str))
            })
            // The API has no other field.
            && fields.iter().all(|e| {
                e.get("key").and_then(Value::as_str) == Some("metadata.name") && holds(e, Some(self.name))
            })
    }
}

/// Whether an expression holds for a value, or for its absence.
fn holds(expression: &Value, actual: Option<&str>) -> bool {
    let values = expression.get("values").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let among = |actual: &str| values.iter().any(|value| value.as_str() == Some(actual));
    let integers = || {
        let bound: i64 = values.first()?.as_str()?.parse().ok()?;
        Some((actual?.parse::<i64>().ok()?, bound))
    };
    match expression.get("operator").and_then(Value::as_str) {
        Some("In") => actual.is_some_and(among),
        Some("NotIn") => !actual.is_some_and(among),
        Some("Exists") => actual.is_some(),
        Some("DoesNotExist") => actual.is_none(),
        Some("Gt") => integers().is_some_and(|(actual, bound)| actual > bound),
        Some("Lt") => integers().is_some_and(|(actual, bound)| actual < bound),
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
            ("a", "Lt", &["6"], false),
            ("b", "Gt", &["6"], false),
            ("a", "Gt", &["x"], false),
            ("a", "Perhaps", &["7"], false),
        ] {
            assert_eq!(one(key, operator, values), matches, "{key} {operator} {values:?}");
        }
        let field = |name: &str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
        assert!(node.matches(&field("n")) && !node.matches(&field("m")));
        let mut both = field("n");
        both["matchExpressions"] = json!([{"key": "c", "operator": "Exists"}]);
        assert!(!node.matches(&both));
        for nothing in [json!({}), json!(null), json!({"matchExpressions": []}), json!("x")] {
            assert!(!node.matches(&nothing), "{nothing}");
        }
    }
}
