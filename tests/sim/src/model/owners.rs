//! Field managers, of the labels and annotations of namespaces and Nodes only: who changes an entry owns it, also by an apply.

use serde_json::{Map, Value, json};

use super::object;

/// Sets the `managedFields` of an object that this manager has changed from its old state.
pub(super) fn record(old: &Value, new: &mut Value, manager: &str) {
    let mut entries = old["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let mut taken = Map::new();
    for map in ["labels", "annotations"] {
        let of = |object: &Value| object["metadata"][map].as_object().cloned().unwrap_or_default();
        let (before, now) = (of(old), of(new));
        let changed = |key: &str| before.get(key) != now.get(key);
        for entry in &mut entries {
            let Some(owned) = entry["fieldsV1"]["f:metadata"].as_object_mut() else { continue };
            if let Some(fields) = owned.get_mut(&format!("f:{map}")).and_then(Value::as_object_mut) {
                fields.retain(|field, _| !field.strip_prefix("f:").is_some_and(changed));
            }
            owned.retain(|_, fields| *fields != json!({}));
        }
        let mine = now.keys().filter(|key| changed(key)).map(|key| (format!("f:{key}"), json!({})));
        let mine: Map<String, Value> = mine.collect();
        if !mine.is_empty() {
            taken.insert(format!("f:{map}"), Value::Object(mine));
        }
    }
    if !taken.is_empty() {
        entries.push(
            json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": taken}}),
        );
    }
    entries.retain(|entry| entry["fieldsV1"]["f:metadata"] != json!({}));
    if !entries.is_empty() {
        object::set(new, "managedFields", Value::Array(entries));
    }
}
