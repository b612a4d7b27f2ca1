//! Field managers, of the labels and annotations of namespaces, Nodes and rules, and of their spec as a whole: who changes an entry
//! owns it, also by an apply.

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
            // Indexing would add a null where there is none, and an update that changes nothing would be written.
            let Some(Value::Object(owned)) = entry.pointer_mut("/fieldsV1/f:metadata") else { continue };
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
    let mut fields = Map::new();
    if !taken.is_empty() {
        fields.insert("f:metadata".to_owned(), Value::Object(taken));
    }
    if old["spec"] != new["spec"] {
        for owned in entries.iter_mut().filter_map(|entry| entry["fieldsV1"].as_object_mut()) {
            owned.remove("f:spec");
        }
        fields.insert("f:spec".to_owned(), json!({}));
    }
    if !fields.is_empty() {
        entries.push(
            json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": fields}),
        );
    }
    for owned in entries.iter_mut().filter_map(|entry| entry["fieldsV1"].as_object_mut()) {
        owned.retain(|field, owned| field == "f:spec" || *owned != json!({}));
    }
    entries.retain(|entry| entry["fieldsV1"] != json!({}));
    if !entries.is_empty() {
        object::set(new, "managedFields", Value::Array(entries));
    }
}
