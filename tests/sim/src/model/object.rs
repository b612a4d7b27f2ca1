//! Access to the metadata of objects as JSON.

use serde_json::{Map, Value};

/// A text in `metadata`; empty if there is none.
pub(super) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// The resourceVersion as a number; 0 if there is none.
pub(super) fn version(object: &Value) -> u64 {
    text(object, "resourceVersion").parse().unwrap_or(0)
}

/// Whether the object is being deleted.
pub(super) fn is_leaving(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// What makes an object garbage, or its dependents: its owners, and whether it is being deleted.
pub(super) fn ties(object: &Value) -> (&Value, bool) {
    (&object["metadata"]["ownerReferences"], is_leaving(object))
}

/// The finalizers.
pub(super) fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Sets a field of `metadata`, or removes it with `null`.
pub(super) fn set(object: &mut Value, field: &str, value: Value) {
    let Some(object) = object.as_object_mut() else { return };
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Some(metadata) = metadata.as_object_mut() else { return };
    if value.is_null() {
        metadata.remove(field);
    } else {
        metadata.insert(field.to_owned(), value);
    }
}

/// Copies fields of `metadata`; those that `from` doesn't have are removed.
pub(super) fn copy(from: &Value, to: &mut Value, fields: &[&str]) {
    for field in fields {
        set(to, field, from["metadata"][*field].clone());
    }
}

/// Sets a field of the object, or removes it with `null`.
pub(super) fn put(object: &mut Value, field: &str, value: Value) {
    let Some(object) = object.as_object_mut() else { return };
    if value.is_null() {
        object.remove(field);
    } else {
        object.insert(field.to_owned(), value);
    }
}

/// Removes what the API server doesn't store: fields that are `null`, and empty lists, maps and texts in `metadata`.
pub(super) fn normalize(object: &mut Value) {
    drop_nulls(object);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        metadata.remove("selfLink");
        metadata.retain(|_, value| !is_empty(value));
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Whether two objects are the same but for their metadata and their status.
pub(super) fn same_content(one: &Value, other: &Value) -> bool {
    content(one).eq(content(other))
}

fn content(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(field, _)| !matches!(field.as_str(), "metadata" | "status"))
}
