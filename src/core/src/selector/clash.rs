//! Contradictions: why no node at all can match.
//!
//! This looks at what the expressions say about one label each, and never cries wolf: where it finds something, no node
//! can match, whatever nodes there are.

use std::collections::BTreeSet;

use serde_json::Value;

/// What a selector says about one label, or about one field of the node.
struct Says<'a> {
    field: bool,
    key: &'a str,
    operator: &'a str,
    values: BTreeSet<&'a str>,
}

impl<'a> Says<'a> {
    fn read(expression: &'a Value, field: bool) -> Option<Self> {
        let values = expression.get("values").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        Some(Self {
            field,
            key: expression.get("key")?.as_str()?,
            operator: expression.get("operator")?.as_str()?,
            values: values.iter().filter_map(Value::as_str).collect(),
        })
    }

    fn excludes(&self, other: &Self) -> bool {
        if self.key != other.key || self.field != other.field {
            return false;
        }
        match (self.operator, other.operator) {
            ("In", "In") => self.values.is_disjoint(&other.values),
            ("In", "NotIn") => self.values.is_subset(&other.values),
            ("NotIn", "In") => other.values.is_subset(&self.values),
            ("DoesNotExist", "In" | "Exists" | "Gt" | "Lt")
            | ("In" | "Exists" | "Gt" | "Lt", "DoesNotExist") => true,
            ("In", "Gt" | "Lt") => !self.values.iter().any(|value| other.admits(value)),
            ("Gt" | "Lt", "In") => other.excludes(self),
            // Between the bounds there has to be an integer.
            ("Gt", "Lt") => match (self.bound(), other.bound()) {
                (Some(low), Some(high)) => low.saturating_add(1) >= high,
                _ => false,
            },
            ("Lt", "Gt") => other.excludes(self),
            _ => false,
        }
    }

    /// The only value of Gt and Lt.
    fn bound(&self) -> Option<i64> {
        self.values.first().and_then(|value| value.parse().ok())
    }

    /// Whether a label's value passes Gt or Lt.
    fn admits(&self, value: &str) -> bool {
        // A bound that is no integer is the API server's to refuse.
        let Some(bound) = self.bound() else { return true };
        value
            .parse::<i64>()
            .is_ok_and(|value| if self.operator == "Gt" { value > bound } else { value < bound })
    }

    fn describe(&self) -> String {
        let values: Vec<&str> = self.values.iter().copied().collect();
        let name = if self.field { "field " } else { "" };
        match self.operator {
            "Exists" | "DoesNotExist" => format!("{name}{} {}", self.key, self.operator),
            _ => format!("{name}{} {} [{}]", self.key, self.operator, values.join(", ")),
        }
    }
}

/// All that a term says.
fn says(term: &Value) -> impl Iterator<Item = Says<'_>> {
    [("matchExpressions", false), ("matchFields", true)].into_iter().flat_map(move |(list, field)| {
        let expressions = term.get(list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        expressions.iter().filter_map(move |expression| Says::read(expression, field))
    })
}

/// All that a Pod's nodeSelector says.
fn node_selector(pod: &Value) -> impl Iterator<Item = Says<'_>> {
    let map = pod.get("spec").and_then(|spec| spec.get("nodeSelector")).and_then(Value::as_object);
    map.into_iter().flatten().filter_map(|(key, value)| {
        Some(Says { field: false, key, operator: "In", values: BTreeSet::from([value.as_str()?]) })
    })
}

/// The terms of a Pod's required node affinity.
fn terms(pod: &Value) -> &[Value] {
    pod.pointer(
        "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms",
    )
    .and_then(Value::as_array)
    .map_or(&[][..], Vec::as_slice)
}

/// The first two of them that exclude each other.
fn within<'s, 'a>(all: &'s [Says<'a>]) -> Option<(&'s Says<'a>, &'s Says<'a>)> {
    all.iter().enumerate().find_map(|(i, a)| all[..i].iter().find(|b| a.excludes(b)).map(|b| (b, a)))
}

/// Why no node at all can match a Pod's nodeSelector and required node affinity: both sides of the first contradiction,
/// when every term has one. `None` when some node could match.
pub fn contradiction(pod: &Value) -> Option<String> {
    let mut first = None;
    for term in terms(pod) {
        let own: Vec<Says<'_>> = says(term).collect();
        let found = if own.is_empty() {
            "a node selector term without expressions, which matches no node".to_owned()
        } else {
            let all: Vec<Says<'_>> = node_selector(pod).chain(own).collect();
            let (a, b) = within(&all)?;
            format!("{} and {}", a.describe(), b.describe())
        };
        first.get_or_insert(found);
    }
    first
}

/// Why no node at all can match both a Pod and one of the terms that are imposed on it: what the Pod says, and what is
/// imposed. `None` when some node could match, and when the Pod or what is imposed contradicts itself.
pub fn opposition(pod: &Value, imposed: &[Value]) -> Option<(String, String)> {
    let own: Vec<Vec<Says<'_>>> = match terms(pod) {
        [] => vec![node_selector(pod).collect()],
        terms => terms
            .iter()
            .map(|term| says(term).collect::<Vec<_>>())
            .filter(|said| !said.is_empty())
            .map(|said| node_selector(pod).chain(said).collect())
            .collect(),
    };
    let theirs: Vec<Vec<Says<'_>>> = imposed.iter().map(|term| says(term).collect()).collect();
    let mut first = None;
    for own in &own {
        for theirs in &theirs {
            let found = own.iter().find_map(|a| theirs.iter().find(|b| a.excludes(b)).map(|b| (a, b)));
            match found {
                Some((a, b)) if first.is_none() => first = Some((a.describe(), b.describe())),
                Some(_) => {}
                None if within(own).is_none() && within(theirs).is_none() => return None,
                None => {}
            }
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(terms: Value, selector: Value) -> Value {
        json!({"spec": {"nodeSelector": selector, "affinity": {"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}})
    }

    fn term(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
    }

    #[test]
    fn contradictions_name_both_sides() {
        let found = |terms: Value, selector: Value| contradiction(&pod(terms, selector));
        let a_in = |v: &[&str]| term("a", "In", v);
        assert_eq!(found(json!([a_in(&["1"])]), json!({"a": "1"})), None);
        assert_eq!(
            found(json!([a_in(&["2", "3"])]), json!({"a": "1"})).as_deref(),
            Some("a In [1] and a In [2, 3]")
        );
        assert_eq!(found(json!([a_in(&["2"]), a_in(&["1"])]), json!({"a": "1"})), None, "one term is left");
        assert!(found(json!([{}]), json!({})).is_some());
        let not = json!([{"matchExpressions": [
            {"key": "a", "operator": "NotIn", "values": ["1", "2"]}, {"key": "a", "operator": "In", "values": ["1"]}]}]);
        assert!(found(not, json!({})).is_some());
        assert_eq!(contradiction(&json!({"spec": {}})), None);
    }

    #[test]
    fn integers_and_fields_contradict_too() {
        let both = |a: Value, b: Value| {
            let lists = |name: &str| -> Vec<Value> {
                [&a, &b].iter().flat_map(|t| t[name].as_array().cloned().unwrap_or_default()).collect()
            };
            let term =
                json!({"matchExpressions": lists("matchExpressions"), "matchFields": lists("matchFields")});
            contradiction(&pod(json!([term]), json!({})))
        };
        let field = |name: &str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
        for (a, b, contradicts) in [
            (term("a", "In", &["1", "x"]), term("a", "Gt", &["1"]), true),
            (term("a", "Gt", &["1"]), term("a", "In", &["2"]), false),
            (term("a", "Gt", &["1"]), term("a", "Lt", &["2"]), true),
            (term("a", "Lt", &["3"]), term("a", "Gt", &["1"]), false),
            (term("a", "Lt", &["x"]), term("a", "Gt", &["1"]), false),
            (term("a", "NotIn", &["1"]), term("a", "DoesNotExist", &[]), false),
            (field("n"), field("m"), true),
            (field("n"), field("n"), false),
            (field("n"), term("metadata.name", "In", &["m"]), false),
        ] {
            assert_eq!(both(a.clone(), b.clone()).is_some(), contradicts, "{a} {b}");
        }
    }

    #[test]
    fn an_opposition_tells_whose_words_are_whose() {
        let us = || vec![term("region", "In", &["us"]), term("type", "NotIn", &["virtual"])];
        let virtual_eu = || {
            json!({"matchExpressions": [{"key": "region", "operator": "In", "values": ["eu"]},
                {"key": "type", "operator": "In", "values": ["virtual"]}]})
        };
        assert_eq!(
            opposition(&pod(json!([virtual_eu()]), json!({})), &us()),
            Some(("region In [eu]".to_owned(), "region In [us]".to_owned()))
        );
        assert_eq!(opposition(&pod(json!([virtual_eu(), term("x", "Exists", &[])]), json!({})), &us()), None);
        let (own, theirs) =
            opposition(&pod(json!(null), json!({"region": "eu", "type": "virtual"})), &us()).unwrap();
        assert_eq!((own.as_str(), theirs.as_str()), ("region In [eu]", "region In [us]"));
        // What contradicts itself is nobody else's fault.
        assert_eq!(opposition(&pod(json!([term("a", "In", &["1"])]), json!({"a": "2"})), &us()), None);
        assert_eq!(opposition(&json!({"spec": {}}), &us()), None);
    }
}
