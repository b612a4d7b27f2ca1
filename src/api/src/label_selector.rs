//! Label selectors of objects (`matchLabels`, `matchExpressions`): their validation, and which labels they select.
//!
//! Keys and values are validated here, which the schema of a custom resource can't do: an invalid one matches no label, so that
//! `NotIn` and `DoesNotExist` would select everything.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::{Expression, Selector};
use outrigger_core::field::{FieldError, FieldErrors};
use outrigger_core::syntax::Form;
use outrigger_core::text::quoted;

/// A valid label selector. The default selects everything, as an empty selector does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels(Vec<Expression>);

impl Labels {
    /// Validates and converts a selector. `path` is its path in the object, for errors.
    ///
    /// # Errors
    /// One for each invalid key, value and operator.
    pub fn new(path: &str, selector: &LabelSelector) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            let path = format!("{path}.matchLabels[{}]", quoted(key));
            errors.extend(Form::LabelKey.fault(&path, key));
            errors.extend(Form::LabelValue.fault(&path, value));
        }
        for (i, requirement) in selector.match_expressions.iter().flatten().enumerate() {
            check_requirement(&format!("{path}.matchExpressions[{i}]"), requirement, &mut errors);
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        match Selector::try_from(selector.clone()) {
            Ok(selector) => Ok(Self(selector.into_iter().collect())),
            Err(error) => {
                errors.add(path, error);
                Err(errors)
            }
        }
    }

    /// Reports whether it selects an object. `value` returns the value of the object's label with a key.
    pub fn selects<'a>(&self, value: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|expression| match expression {
            Expression::In(key, values) => value(key).is_some_and(|value| values.contains(value)),
            Expression::NotIn(key, values) => !value(key).is_some_and(|value| values.contains(value)),
            Expression::Equal(key, wanted) => value(key) == Some(wanted),
            Expression::NotEqual(key, wanted) => value(key) != Some(wanted),
            Expression::Exists(key) => value(key).is_some(),
            Expression::DoesNotExist(key) => value(key).is_none(),
        })
    }
}

fn check_requirement(path: &str, requirement: &LabelSelectorRequirement, errors: &mut Vec<FieldError>) {
    errors.extend(Form::LabelKey.fault(format_args!("{path}.key"), &requirement.key));
    let values = requirement.values.as_deref().unwrap_or_default();
    match (requirement.operator.as_str(), values) {
        (operator @ ("In" | "NotIn"), []) => {
            errors.add(format_args!("{path}.values"), format_args!("{operator} needs at least one value"));
        }
        ("In" | "NotIn", values) => {
            for (v, value) in values.iter().enumerate() {
                errors.extend(Form::LabelValue.fault(format_args!("{path}.values[{v}]"), value));
            }
        }
        ("Exists" | "DoesNotExist", []) => {}
        (operator @ ("Exists" | "DoesNotExist"), _) => {
            errors
                .add(format_args!("{path}.values"), format_args!("{operator} takes no values; remove them"));
        }
        (other, _) => errors.add(
            format_args!("{path}.operator"),
            format_args!("is {:?}; use one of In, NotIn, Exists, DoesNotExist", quoted(other)),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kube::core::SelectorExt;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn selector(value: serde_json::Value) -> LabelSelector {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn an_empty_selector_selects_everything_and_an_invalid_one_is_refused() {
        let all = Labels::new("s", &selector(json!({}))).unwrap();
        assert!(all == Labels::default() && all.selects(|_| None));
        for (wrong, path) in [
            (json!({"matchLabels": {"a b": "c"}}), "s.matchLabels[a b]"),
            (json!({"matchLabels": {"a": "-"}}), "s.matchLabels[a]"),
            (json!({"matchExpressions": [{"key": "a", "operator": "Gt"}]}), "s.matchExpressions[0].operator"),
            (json!({"matchExpressions": [{"key": "a", "operator": "In"}]}), "s.matchExpressions[0].values"),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
                "s.matchExpressions[0].values",
            ),
        ] {
            let errors = Labels::new("s", &selector(wrong)).unwrap_err();
            assert_eq!(errors.iter().map(|error| error.path.as_str()).collect::<Vec<_>>(), [path]);
        }
    }

    proptest! {
        /// kube's matching needs a map of owned texts, which labels of very many workloads aren't.
        #[test]
        fn it_selects_what_kube_s_selector_matches(
            labels in proptest::collection::btree_map("[ab]", "[xy]?", 0..3),
            equal in proptest::collection::btree_map("[ab]", "[xy]?", 0..2),
            expressions in proptest::collection::vec(
                ("[ab]", 0..4_usize, proptest::collection::vec("[xy]?", 1..3)), 0..3),
        ) {
            let expressions: Vec<_> = expressions.into_iter().map(|(key, operator, values)| {
                let operator = ["In", "NotIn", "Exists", "DoesNotExist"][operator];
                let values = operator.ends_with("In").then_some(values);
                LabelSelectorRequirement { key, operator: operator.to_owned(), values }
            }).collect();
            let selector = LabelSelector { match_labels: Some(equal), match_expressions: Some(expressions) };
            let theirs = Selector::try_from(selector.clone()).unwrap().matches(&labels);
            let ours = Labels::new("s", &selector).unwrap();
            prop_assert_eq!(ours.selects(|key| labels.get(key).map(String::as_str)), theirs);
            let none = BTreeMap::new();
            let theirs = Selector::try_from(selector).unwrap().matches(&none);
            prop_assert_eq!(ours.selects(|_| None), theirs);
        }
    }
}
