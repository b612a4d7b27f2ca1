//! Terms of node selectors that the API server refuses: `ValidateNodeSelectorRequirement` and
//! `ValidateNodeFieldSelectorRequirement` in Kubernetes' `pkg/apis/core/validation`.

use serde_json::Value;

use super::product::entries;
use crate::field::FieldError;
use crate::json::text;
use crate::syntax::Form;
use crate::text::quoted;

/// The only field of nodes that a selector may name.
pub(super) const NAME: &str = "metadata.name";

/// Whether values have to be values of labels. In preferred affinity the API server takes others too, which no node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// They have to be.
    Checked,
    /// They don't.
    Any,
}

/// The first thing that is wrong with each expression of a term, which is at `path` and of the API's shape
/// ([`super::product::check`]).
pub fn faults(term: &Value, path: &str, values: Values) -> Vec<FieldError> {
    let mut faults = Vec::new();
    for (e, expression) in entries(term, "matchExpressions").iter().enumerate() {
        faults.extend(label(expression, &format!("{path}.matchExpressions[{e}]"), values));
    }
    for (e, expression) in entries(term, "matchFields").iter().enumerate() {
        faults.extend(field(expression, &format!("{path}.matchFields[{e}]")));
    }
    faults
}

/// Bounds of a term that are no integers of 64 bits. The API server takes them, and the scheduler drops the whole term, as if no node
/// matched it (`NewRequirement` in apimachinery's `labels`).
pub fn unbounded(term: &Value, path: &str) -> Vec<FieldError> {
    let expressions = entries(term, "matchExpressions").iter().enumerate();
    let dropped = expressions.filter(|(_, expression)| is_unbounded(expression));
    dropped.map(|(e, expression)| one_integer(expression, &format!("{path}.matchExpressions[{e}]"))).collect()
}

/// Whether the scheduler makes a requirement of a label of an expression. Otherwise it drops the term.
pub(crate) fn is_valid(expression: &Value) -> bool {
    label(expression, "", Values::Checked).is_none() && !is_unbounded(expression)
}

/// Whether an expression compares with something else than an integer of 64 bits.
pub(crate) fn is_unbounded(expression: &Value) -> bool {
    matches!(text(expression, "/operator"), "Gt" | "Lt")
        && text(expression, "/values/0").parse::<i64>().is_err()
}

fn one_integer(expression: &Value, path: &str) -> FieldError {
    let values: Vec<&str> = entries(expression, "values").iter().filter_map(Value::as_str).collect();
    let (values, operator) = (values.join(", "), text(expression, "/operator"));
    let message = format!("is [{}]; {operator} needs one integer", quoted(&values));
    FieldError::new(format_args!("{path}.values"), message)
}

/// What is wrong with a requirement of a label.
fn label(expression: &Value, path: &str, checked: Values) -> Option<FieldError> {
    let (key, operator) = (text(expression, "/key"), text(expression, "/operator"));
    let values = entries(expression, "values");
    if let fault @ Some(_) = Form::LabelKey.fault(format_args!("{path}.key"), key) {
        return fault;
    }
    let wrong = match operator {
        "In" | "NotIn" if values.is_empty() => format!("is empty; {operator} needs a value"),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            format!("has {}; {operator} takes none", values.len())
        }
        "Gt" | "Lt" if values.len() != 1 => return Some(one_integer(expression, path)),
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {
            let mut all = values.iter().filter_map(Value::as_str).enumerate();
            return all.find_map(|(v, value)| {
                let wrong = Form::LabelValue.fault(format_args!("{path}.values[{v}]"), value);
                wrong.filter(|_| checked == Values::Checked)
            });
        }
        other => {
            let message = format!("is {:?}; use In, NotIn, Exists, DoesNotExist, Gt or Lt", quoted(other));
            return Some(FieldError::new(format_args!("{path}.operator"), message));
        }
    };
    Some(FieldError::new(format_args!("{path}.values"), wrong))
}

/// What is wrong with a requirement of a field.
fn field(expression: &Value, path: &str) -> Option<FieldError> {
    let (key, operator) = (text(expression, "/key"), text(expression, "/operator"));
    let values = entries(expression, "values");
    if key != NAME {
        let message = format!("is {:?}; the only field is {NAME}", quoted(key));
        return Some(FieldError::new(format_args!("{path}.key"), message));
    }
    let [value] = values else { return Some(field_operator(path, operator, values.len())) };
    if !matches!(operator, "In" | "NotIn") {
        return Some(field_operator(path, operator, 1));
    }
    Form::DnsSubdomain.fault(format_args!("{path}.values[0]"), value.as_str().unwrap_or_default())
}

fn field_operator(path: &str, operator: &str, values: usize) -> FieldError {
    let message = format!("is {:?} with {values} values; use In or NotIn with one", quoted(operator));
    FieldError::new(format_args!("{path}.operator"), message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(term: &Value, values: Values) -> Vec<String> {
        faults(term, "t", values).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_the_api_server_refuses_is_reported_with_its_path() {
        let label = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": "ok", "operator": "Exists"}, {"key": key, "operator": operator, "values": values}]});
        let field = |key: &str, operator: &str, values: &[&str]| json!({"matchFields": [{"key": key, "operator": operator, "values": values}]});
        for (term, path) in [
            (label("", "Exists", &[]), "t.matchExpressions[1].key: is missing; use a label's key"),
            (label("a/b/c", "Exists", &[]), "t.matchExpressions[1].key: is \"a/b/c\"; use a label's key"),
            (label("a", "In", &[]), "t.matchExpressions[1].values: is empty; In needs a value"),
            (label("a", "Exists", &["x"]), "t.matchExpressions[1].values: has 1; Exists takes none"),
            (label("a", "Lt", &["1", "2"]), "t.matchExpressions[1].values: is [1, 2]; Lt needs one integer"),
            (label("a", "Has", &["x"]), "t.matchExpressions[1].operator: is \"Has\"; use In, NotIn"),
            (field("a", "In", &["x"]), "t.matchFields[0].key: is \"a\"; the only field"),
            (field(NAME, "Exists", &[]), "t.matchFields[0].operator: is \"Exists\" with 0 values"),
            (field(NAME, "In", &["x", "y"]), "t.matchFields[0].operator: is \"In\" with 2 values"),
            (field(NAME, "NotIn", &["N"]), "t.matchFields[0].values[0]: is \"N\"; use a DNS subdomain"),
        ] {
            for values in [Values::Checked, Values::Any] {
                let found = found(&term, values);
                assert!(found.len() == 1 && found[0].starts_with(path), "{term}: {found:?}");
            }
        }
        let value = label("a", "NotIn", &["x", "eu west"]);
        let said = found(&value, Values::Checked);
        assert!(
            said.len() == 1 && said[0].starts_with("t.matchExpressions[1].values[1]: is \"eu west\""),
            "{said:?}"
        );
        assert_eq!(found(&value, Values::Any), [""; 0]);
        for fine in [label("a", "In", &["", "x"]), label("a", "Gt", &["24.10"]), field(NAME, "In", &["n"])] {
            assert_eq!(found(&fine, Values::Checked), [""; 0], "{fine}");
        }
    }
}
