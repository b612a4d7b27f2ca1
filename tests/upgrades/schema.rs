//! What may not change in a schema: whatever was valid stays valid, and means what it meant.
//!
//! That the API server lets an invalid value be as long as nobody touches it (ratcheting, KEP-4008) is no excuse here: a
//! manifest that people keep is applied anew some day, and an element of an atomic list is judged again whenever the list
//! changes.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::crd::{list, same};

/// Adds what the new schema takes away. The path ends where the schema's value is.
pub(crate) fn compare(path: &str, old: &Value, new: &Value, breaks: &mut Vec<String>) {
    let keys = |of: &Value| {
        of.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect::<BTreeSet<_>>()
    };
    for key in keys(old).union(&keys(new)) {
        keyword(path, key, old, new, breaks);
    }
}

fn keyword(path: &str, key: &str, old_schema: &Value, new_schema: &Value, breaks: &mut Vec<String>) {
    let (old, new) = (old_schema.get(key), new_schema.get(key));
    let at = format!("{path}: {key}");
    match key {
        "description" | "title" | "example" | "externalDocs" => {}
        // A default gives old objects another meaning. That of an object may gain fields, as the object itself may.
        "default" => match (old.and_then(Value::as_object), new.and_then(Value::as_object)) {
            (Some(old), Some(new)) => {
                old.iter().for_each(|(field, value)| {
                    same(&format!("{at}.{field}"), Some(value), new.get(field), breaks);
                });
            }
            _ => same(&at, old, new, breaks),
        },
        // Neither way: who reads is told of another type too.
        "type"
        | "format"
        | "x-kubernetes-list-type"
        | "x-kubernetes-list-map-keys"
        | "x-kubernetes-map-type"
        | "x-kubernetes-int-or-string"
        | "x-kubernetes-embedded-resource" => same(&at, old, new, breaks),
        "nullable" | "x-kubernetes-preserve-unknown-fields" => {
            let is = |value: Option<&Value>| value == Some(&Value::Bool(true));
            if is(old) && !is(new) {
                breaks.push(format!("{at} is not true any more"));
            }
        }
        "properties" => properties(path, old_schema, new_schema, breaks),
        "items" => child(&format!("{path}[]"), old, new, breaks),
        "additionalProperties" => {
            let anything = old_schema["x-kubernetes-preserve-unknown-fields"] == true;
            additional(path, old, new, anything, breaks);
        }
        "required" => {
            let before = list(old);
            for name in list(new).into_iter().filter(|name| !before.contains(name)) {
                breaks.push(format!("{at}: {name} is new"));
            }
        }
        "enum" => {
            let after = list(new);
            match (old, new) {
                (None, Some(_)) => breaks.push(format!("{at} is new")),
                (Some(_), Some(_)) => {
                    for value in list(old).into_iter().filter(|value| !after.contains(value)) {
                        breaks.push(format!("{at}: {value} is gone"));
                    }
                }
                _ => {}
            }
        }
        "minimum" | "minLength" | "minItems" | "minProperties" => {
            bound(&at, old, new, |old, new| new > old, breaks);
        }
        "maximum" | "maxLength" | "maxItems" | "maxProperties" => {
            bound(&at, old, new, |old, new| new < old, breaks);
        }
        // Nothing compares these; so they may only go.
        "pattern" | "multipleOf" | "exclusiveMinimum" | "exclusiveMaximum" | "uniqueItems" | "not"
        | "allOf" | "anyOf" | "oneOf" => {
            same(&at, new.and(old), new, breaks);
        }
        "x-kubernetes-validations" => validations(path, old_schema, new_schema, breaks),
        _ if old != new => breaks.push(format!("{at} has changed, and this test doesn't know what it means")),
        _ => {}
    }
}

fn properties(path: &str, old_schema: &Value, new_schema: &Value, breaks: &mut Vec<String>) {
    let of = |schema: &Value| schema["properties"].as_object().cloned().unwrap_or_default();
    let (before, after) = (of(old_schema), of(new_schema));
    for (name, old) in &before {
        child(&format!("{path}.{name}"), Some(old), after.get(name), breaks);
    }
    let free = ["x-kubernetes-preserve-unknown-fields", "additionalProperties"]
        .iter()
        .any(|key| old_schema.get(*key).is_some_and(|value| value != false));
    for name in after.keys().filter(|name| free && !before.contains_key(*name)) {
        breaks.push(format!("{path}.{name}: is new where anything could be before"));
    }
}

fn child(path: &str, old: Option<&Value>, new: Option<&Value>, breaks: &mut Vec<String>) {
    match (old, new) {
        (Some(old), Some(new)) => compare(path, old, new, breaks),
        (Some(_), None) => breaks.push(format!("{path}: is gone")),
        (None, _) => breaks.push(format!("{path}: has a schema where it had none")),
    }
}

fn additional(
    path: &str,
    old: Option<&Value>,
    new: Option<&Value>,
    anything: bool,
    breaks: &mut Vec<String>,
) {
    let at = format!("{path}.*");
    match (old, new) {
        (Some(old), Some(new)) if old.is_object() && new.is_object() => compare(&at, old, new, breaks),
        (Some(Value::Bool(true)), Some(Value::Object(_))) | (None, Some(Value::Object(_)))
            if anything || old.is_some() =>
        {
            breaks.push(format!("{at}: has a schema where it had none"));
        }
        (Some(old), None | Some(Value::Bool(false))) if old != false => breaks.push(format!("{at}: is gone")),
        _ => {}
    }
}

fn bound(
    at: &str,
    old: Option<&Value>,
    new: Option<&Value>,
    tighter: impl Fn(f64, f64) -> bool,
    breaks: &mut Vec<String>,
) {
    let number = |value: Option<&Value>| value.and_then(Value::as_f64);
    match (number(old), number(new)) {
        (Some(before), Some(after)) if tighter(before, after) => same(at, old, new, breaks),
        (None, Some(_)) => same(at, old, new, breaks),
        _ => {}
    }
}

/// A rule that is new must hold for everything that there may be: it is about a property that is new as well and says so at
/// its beginning, or it looks at what was there and says what holds for that.
fn validations(path: &str, old_schema: &Value, new_schema: &Value, breaks: &mut Vec<String>) {
    let of = |schema: &Value| list(schema.get("x-kubernetes-validations"));
    let before = of(old_schema);
    for new in of(new_schema) {
        let rule = new["rule"].as_str().unwrap_or_default();
        let known = before
            .iter()
            .any(|old| old["rule"] == new["rule"] && old["optionalOldSelf"] == new["optionalOldSelf"]);
        let ratchets = new["optionalOldSelf"] == true && rule.contains("oldSelf");
        if !known && !ratchets && !about_new(rule, old_schema, new_schema) {
            breaks.push(format!("{path}: rule {rule:?} is new, and what exists may not fulfil it"));
        }
    }
}

/// Whether a rule is `!has(self.x) || ...`, and x is a property that wasn't there before.
fn about_new(rule: &str, old_schema: &Value, new_schema: &Value) -> bool {
    let Some((name, rest)) = rule.strip_prefix("!has(self.").and_then(|rest| rest.split_once(')')) else {
        return false;
    };
    let has = |schema: &Value| schema["properties"].get(name).is_some();
    // `a || b ? c : d` is `(a || b) ? c : d`.
    rest.trim_start().starts_with("||") && !rest.contains('?') && has(new_schema) && !has(old_schema)
}
