//! Field managers, of the labels of namespaces and Nodes only: who changes a label owns it, also by an apply.

use serde_json::{Map, Value, json};

use super::object;

/// Sets the `managedFields` of an object that this manager has changed from its old state.
pub(super) fn record(old: &Value, new: &mut Value, manager: &str) {
    let labels = |object: &Value| object["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    let (before, now) = (labels(old), labels(new));
    let mut entries = old["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let changed = |label: &str| before.get(label) != now.get(label);
    for entry in &mut entries {
        if let Some(owned) = entry.pointer_mut("/fieldsV1/f:metadata/f:labels").and_then(Value::as_object_mut)
        {
            owned.retain(|field, _| !field.strip_prefix("f:").is_some_and(changed));
        }
    }
    let taken: Map<String, Value> =
        now.keys().filter(|label| changed(label)).map(|label| (format!("f:{label}"), json!({}))).collect();
    if !taken.is_empty() {
        entries.push(
            json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:labels": taken}}}),
        );
    }
    entries.retain(|entry| entry["fieldsV1"]["f:metadata"]["f:labels"] != json!({}));
    if !entries.is_empty() {
        object::set(new, "managedFields", Value::Array(entries));
    }
}
