//! Label and field selectors.

use serde_json::Value;

use super::kinds::ModelKind;
use super::refusal::Refusal;

/// Which objects a list or a watch shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<Field>,
}

/// The path of a field, whether it has to have a value or to have another one, and the value.
type Field = (String, bool, String);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    Exists(String, bool),
    /// The label's value is one of these, or it isn't.
    In(String, Vec<String>, bool),
}

impl Selector {
    /// Parses the selectors of a request.
    pub(super) fn parse(kind: &ModelKind, labels: &str, fields: &str) -> Result<Self, Refusal> {
        let labels = split(labels).into_iter().map(requirement).collect::<Result<_, _>>()?;
        let fields = split(fields)
            .into_iter()
            .map(|term| {
                let (field, equal, value) = equation(term)
                    .ok_or_else(|| Refusal::new(400, format!("invalid field selector: '{term}'")))?;
                if !kind.selectable(field) {
                    return Err(Refusal::new(400, format!("field label not supported: {field}")));
                }
                Ok((field.to_owned(), equal, value.to_owned()))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { labels, fields })
    }

    /// Whether it selects every object.
    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether the API server looks at an object at all: it finds an object by its name, and on the first page of a list the Pods of
    /// a Node, without reading others.
    pub(super) fn reads(&self, object: &Value, first_page: bool) -> bool {
        let indexed = |path: &str| path == "metadata.name" || (first_page && path == "spec.nodeName");
        self.fields
            .iter()
            .filter(|(path, equal, _)| *equal && indexed(path))
            .all(|field| holds(object, field))
    }

    /// Whether it selects this object.
    pub(super) fn selects(&self, object: &Value) -> bool {
        let label = |key: &str| object["metadata"]["labels"].get(key).and_then(Value::as_str);
        self.labels.iter().all(|requirement| match requirement {
            Requirement::Exists(key, wanted) => label(key).is_some() == *wanted,
            Requirement::In(key, values, wanted) => {
                label(key).is_some_and(|label| values.iter().any(|value| value == label)) == *wanted
            }
        }) && self.fields.iter().all(|field| holds(object, field))
    }
}

/// Whether an object meets a requirement of a field selector.
fn holds(object: &Value, (path, equal, value): &Field) -> bool {
    let found = path.split('.').try_fold(object, |at, step| at.get(step)).and_then(Value::as_str);
    (found.unwrap_or_default() == value) == *equal
}

/// Splits at commas outside parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let terms = text.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    terms.map(str::trim).filter(|term| !term.is_empty()).collect()
}

/// `key=value`, `key==value` or `key!=value`: key, whether they are equal, and value.
fn equation(term: &str) -> Option<(&str, bool, &str)> {
    let at = term.find(['=', '!'])?;
    let (key, rest) = term.split_at(at);
    let (equal, value) = match rest.strip_prefix("!=") {
        Some(value) => (false, value),
        None => (true, rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?),
    };
    Some((key.trim(), equal, value.trim()))
}

fn requirement(term: &str) -> Result<Requirement, Refusal> {
    let wrong = || Refusal::new(400, format!("unable to parse requirement: {term}"));
    if let Some(key) = term.strip_prefix('!') {
        return Ok(Requirement::Exists(key.trim().to_owned(), false));
    }
    if let Some((key, equal, value)) = equation(term) {
        return Ok(Requirement::In(key.to_owned(), vec![value.to_owned()], equal));
    }
    let Some((key, rest)) = term.split_once(char::is_whitespace) else {
        return Ok(Requirement::Exists(term.to_owned(), true));
    };
    let (operator, values) = rest.trim().split_once('(').ok_or_else(wrong)?;
    let values = values.strip_suffix(')').ok_or_else(wrong)?;
    let values = values.split(',').map(|value| value.trim().to_owned()).collect();
    match operator.trim() {
        "in" => Ok(Requirement::In(key.to_owned(), values, true)),
        "notin" => Ok(Requirement::In(key.to_owned(), values, false)),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::kinds::PODS;

    fn selects(labels: &str, fields: &str) -> bool {
        let pod =
            json!({"metadata": {"name": "a", "labels": {"x": "1", "y": ""}}, "spec": {"nodeName": "n"}});
        Selector::parse(&PODS, labels, fields).unwrap().selects(&pod)
    }

    #[test]
    fn labels_select_by_equality_sets_and_existence() {
        for yes in ["", "x", "x=1", "x==1,y", "!z", "z!=1", "x in (2, 1)", "x notin (2,3),y=", "z notin (1)"]
        {
            assert!(selects(yes, ""), "{yes}");
        }
        for no in ["z", "x=2", "!x", "x!=1", "x in (2,3)", "x notin (1)", "z in (1)", "z=", "x,z"] {
            assert!(!selects(no, ""), "{no}");
        }
        assert!(Selector::parse(&PODS, "x within (1)", "").is_err());
    }

    #[test]
    fn fields_select_by_equality_and_unknown_ones_are_refused() {
        assert!(selects("", "metadata.name=a,spec.nodeName=n,status.phase!=Failed"));
        assert!(!selects("", "spec.nodeName=m"));
        assert!(selects("", "status.phase="));
        assert_eq!(Selector::parse(&PODS, "", "spec.hostname=x").unwrap_err().code, 400);
    }
}
