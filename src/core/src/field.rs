//! Raw JSON objects, read and written with field paths: what a type would do, without losing the fields that a type
//! doesn't know. A function that looks for a type fails where the field holds another one.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::text::quoted;

/// What is wrong with one field of an object, in the way the API server says it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, thiserror::Error)]
#[error("{path}: {message}")]
pub struct FieldError {
    /// Path of the field, `spec.affinity.nodeAffinity`.
    pub path: String,
    /// What it holds, what it should hold, and what to do.
    pub message: String,
    /// The check that has found it, if the tenant's level of enforcement decides whether that refuses the object
    /// ([`crate::validate::Protects::OwnPods`]).
    #[serde(skip)]
    pub governed: Option<&'static str>,
}

impl FieldError {
    /// An error about the field at `path`.
    pub fn new(path: impl fmt::Display, message: impl fmt::Display) -> Self {
        Self { path: path.to_string(), message: message.to_string(), governed: None }
    }

    /// An error about the field at `path`, which holds `value`. An empty value isn't quoted.
    pub fn of_value(path: impl fmt::Display, value: &str, message: impl fmt::Display) -> Self {
        match value {
            "" => Self::new(path, message),
            value => Self::new(path, format_args!("{:?}: {message}", quoted(value))),
        }
    }

    /// The same error of an object that is at `path`.
    pub fn below(self, path: &str) -> Self {
        let at = match (path, self.path.as_str()) {
            ("", own) => own.to_owned(),
            (path, "") => path.to_owned(),
            (path, own) => format!("{path}.{own}"),
        };
        Self { path: at, ..self }
    }

    /// That the field holds a value of another type than `wanted`, which comes with its article.
    pub fn wrong_type(path: &str, value: &Value, wanted: &str) -> Self {
        Self::new(path, format_args!("must be {wanted}, is {}", kind(value)))
    }
}

/// Validation errors, collected in the order of the fields.
pub trait FieldErrors {
    /// Adds an error, as [`FieldError::new`] makes it.
    fn add(&mut self, path: impl fmt::Display, message: impl fmt::Display);

    /// Adds an error, as [`FieldError::of_value`] makes it.
    fn refuse(&mut self, path: impl fmt::Display, value: &str, message: impl fmt::Display);
}

impl FieldErrors for Vec<FieldError> {
    fn add(&mut self, path: impl fmt::Display, message: impl fmt::Display) {
        self.push(FieldError::new(path, message));
    }

    fn refuse(&mut self, path: impl fmt::Display, value: &str, message: impl fmt::Display) {
        self.push(FieldError::of_value(path, value, message));
    }
}

/// The JSON type of a value, with its article.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// `parent.key`, or `key` at the top.
pub fn join(parent: &str, key: &str) -> String {
    if parent.is_empty() { key.to_owned() } else { format!("{parent}.{key}") }
}

/// What `read` makes of the field at `key`, or `None` where the field is absent or null. `wanted` names the type that `read`
/// takes, with its article.
pub(crate) fn typed<'a, T>(
    parent: &'a Map<String, Value>,
    path: &str,
    key: &str,
    wanted: &str,
    read: impl Fn(&'a Value) -> Option<T>,
) -> Result<Option<T>, FieldError> {
    let Some(value) = parent.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
    read(value).map(Some).ok_or_else(|| FieldError::wrong_type(&join(path, key), value, wanted))
}

/// An object at `key`, or `None` where it is absent or null.
pub fn object<'a>(
    parent: &'a Map<String, Value>,
    path: &str,
    key: &str,
) -> Result<Option<&'a Map<String, Value>>, FieldError> {
    typed(parent, path, key, "an object", Value::as_object)
}

/// A list at `key`, empty where it is absent or null.
pub fn list<'a>(parent: &'a Map<String, Value>, path: &str, key: &str) -> Result<&'a [Value], FieldError> {
    Ok(typed(parent, path, key, "a list", Value::as_array)?.map_or(&[], Vec::as_slice))
}

/// A text at `key`, or `None` where it is absent or null.
pub fn text<'a>(
    parent: &'a Map<String, Value>,
    path: &str,
    key: &str,
) -> Result<Option<&'a str>, FieldError> {
    typed(parent, path, key, "a string", Value::as_str)
}

/// The object itself.
pub fn as_object<'a>(value: &'a Value, path: &str) -> Result<&'a Map<String, Value>, FieldError> {
    value.as_object().ok_or_else(|| FieldError::wrong_type(path, value, "an object"))
}

/// The object itself, to write into.
pub fn as_object_mut<'a>(value: &'a mut Value, path: &str) -> Result<&'a mut Map<String, Value>, FieldError> {
    match value {
        Value::Object(map) => Ok(map),
        other => Err(FieldError::wrong_type(path, other, "an object")),
    }
}

/// The object at `key`, made where it is absent or null.
pub fn object_mut<'a>(
    parent: &'a mut Map<String, Value>,
    path: &str,
    key: &str,
) -> Result<&'a mut Map<String, Value>, FieldError> {
    let slot = parent.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = Value::Object(Map::new());
    }
    // The path is only made where it is needed: this runs for every Pod.
    match slot {
        Value::Object(map) => Ok(map),
        other => Err(FieldError::wrong_type(&join(path, key), other, "an object")),
    }
}

/// The list at `key`, made where it is absent or null.
pub fn list_mut<'a>(
    parent: &'a mut Map<String, Value>,
    path: &str,
    key: &str,
) -> Result<&'a mut Vec<Value>, FieldError> {
    let slot = parent.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = Value::Array(Vec::new());
    }
    match slot {
        Value::Array(list) => Ok(list),
        other => Err(FieldError::wrong_type(&join(path, key), other, "a list")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn null_is_absent_and_a_wrong_type_is_an_error_with_its_path() {
        let mut pod = json!({"spec": {"affinity": null, "tolerations": "x"}});
        let pod = pod.as_object_mut().unwrap();
        let spec = object_mut(pod, "", "spec").unwrap();
        assert_eq!(object(spec, "spec", "affinity").unwrap(), None);
        object_mut(spec, "spec", "affinity").unwrap().insert("a".into(), json!(1));
        assert_eq!(
            list_mut(spec, "spec", "tolerations").unwrap_err().to_string(),
            "spec.tolerations: must be a list, is a string"
        );
        assert_eq!(spec["affinity"], json!({"a": 1}));
    }

    #[test]
    fn an_error_names_the_path_from_the_outermost_object_and_quotes_the_value() {
        let error = |path: &str| FieldError::new(path, "is wrong");
        for (own, above, path) in [("b", "a", "a.b"), ("", "a", "a"), ("b", "", "b"), ("", "", "")] {
            assert_eq!(error(own).below(above).path, path, "{own:?} below {above:?}");
        }
        assert_eq!(FieldError::of_value("a", "v", "is wrong").to_string(), "a: \"v\": is wrong");
        assert_eq!(FieldError::of_value("a", "", "is wrong"), error("a"), "an empty value isn't quoted");
    }
}
