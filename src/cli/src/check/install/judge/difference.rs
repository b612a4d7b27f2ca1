//! What differs between two values, with paths.

use std::collections::BTreeSet;

use serde_json::Value;

/// A place where two values differ.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Difference<'a> {
    /// The place, as findings name it: `spec.rules[0].verbs`.
    pub(crate) path: String,
    /// What is wanted there.
    pub(crate) wanted: Option<&'a Value>,
    /// What is there.
    pub(crate) found: Option<&'a Value>,
}

/// Where `found` isn't as `wanted`, in the order of the paths.
///
/// An empty list, object or text, `false` and `null` are as good as nothing, because API servers leave such fields out.
/// Numbers are compared by what they are, not by how they are written.
pub(crate) fn differences<'a>(
    path: &str,
    wanted: Option<&'a Value>,
    found: Option<&'a Value>,
) -> Vec<Difference<'a>> {
    let mut all = Vec::new();
    compare(path.to_owned(), wanted, found, &mut all);
    all
}

fn compare<'a>(
    path: String,
    wanted: Option<&'a Value>,
    found: Option<&'a Value>,
    all: &mut Vec<Difference<'a>>,
) {
    let (wanted, found) = (wanted.filter(|v| !is_nothing(v)), found.filter(|v| !is_nothing(v)));
    match (wanted, found) {
        (None, None) => {}
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                compare(inside(&path, key), a.get(key), b.get(key), all);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) if !a.iter().chain(b).all(is_plain) => {
            for i in 0..a.len().max(b.len()) {
                compare(format!("{path}[{i}]"), a.get(i), b.get(i), all);
            }
        }
        (Some(a), Some(b)) if is_same(a, b) => {}
        (wanted, found) => all.push(Difference { path, wanted, found }),
    }
}

/// The path of a field. A key with dots in it, such as a label's, stands in brackets.
fn inside(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else if key.contains('.') || key.contains('/') {
        format!("{path}[{key}]")
    } else {
        format!("{path}.{key}")
    }
}

fn is_plain(value: &Value) -> bool {
    !value.is_array() && !value.is_object()
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Number(_) => false,
    }
}

fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        _ => a == b,
    }
}

/// A value whose lists of texts are sorted, for fields in which the order says nothing; of lists of objects the order
/// stays. White space in texts is made one blank: writers of YAML fold long expressions as they like.
pub(crate) fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            Value::Object(map.iter().map(|(key, value)| (key.clone(), sorted(value))).collect())
        }
        Value::Array(list) => {
            let mut list: Vec<Value> = list.iter().map(sorted).collect();
            if list.iter().all(is_plain) {
                list.sort_by_key(ToString::to_string);
            }
            Value::Array(list)
        }
        Value::String(text) => Value::String(text.split_whitespace().collect::<Vec<_>>().join(" ")),
        other => other.clone(),
    }
}
