//! What somebody applied to an object by server-side apply, by the fields that `metadata.managedFields` names (`FieldsV1`:
//! `f:` a field, `k:` an entry of a list by its keys, `v:` one by its value, `i:` one by its index, `.` the thing itself).

use std::collections::BTreeSet;

use outrigger_core::json::{list, text};
use serde_json::{Map, Value, json};

/// An object as far as it was applied, and who applied it; `None` where nobody did. What admission changed in a field afterwards is no
/// longer the applier's, and is missing.
pub(super) fn applied(object: &Value) -> Option<(Value, String)> {
    let entries = list(object, "/metadata/managedFields").iter();
    let applies =
        entries.filter(|entry| entry["operation"] == "Apply" && text(entry, "/subresource").is_empty());
    let mut managers = BTreeSet::new();
    let mut fields = Value::Object(Map::new());
    for entry in applies {
        managers.insert(text(entry, "/manager"));
        unite(&mut fields, &entry["fieldsV1"]);
    }
    let fields = fields.as_object().filter(|fields| !fields.is_empty())?;
    let mut picked = pick(object, fields)?;
    // Whoever applies has to name the object, and owns none of this.
    for key in ["apiVersion", "kind"] {
        picked[key] = object[key].clone();
    }
    for key in ["name", "namespace"] {
        picked["metadata"][key] = object["metadata"][key].clone();
    }
    Some((picked, managers.into_iter().collect::<Vec<_>>().join(", ")))
}

/// Adds the fields of another set.
fn unite(fields: &mut Value, more: &Value) {
    let (Some(fields), Some(more)) = (fields.as_object_mut(), more.as_object()) else { return };
    for (key, below) in more.iter().filter(|(_, below)| below.is_object()) {
        unite(fields.entry(key.clone()).or_insert_with(|| json!({})), below);
    }
}

/// The part of a value that the fields name; the whole where they name nothing below it.
fn pick(value: &Value, fields: &Map<String, Value>) -> Option<Value> {
    if fields.is_empty() {
        return Some(value.clone());
    }
    let below = |value: &Value, fields: &Value| pick(value, fields.as_object()?);
    match value {
        Value::Object(object) => {
            let named = fields.iter().filter_map(|(key, fields)| {
                let name = key.strip_prefix("f:")?;
                Some((name.to_owned(), below(object.get(name)?, fields)?))
            });
            Some(Value::Object(named.collect()))
        }
        Value::Array(items) => {
            let named = items.iter().enumerate().filter_map(|(index, item)| {
                let (_, fields) = fields.iter().find(|(key, _)| is_entry(key, item, index))?;
                below(item, fields)
            });
            Some(Value::Array(named.collect()))
        }
        other => Some(other.clone()),
    }
}

/// Whether a key of the fields of a list names this item of it.
fn is_entry(key: &str, item: &Value, index: usize) -> bool {
    let parsed = |text: &str| serde_json::from_str::<Value>(text).ok();
    match key.split_at_checked(2) {
        Some(("k:", keys)) => parsed(keys).is_some_and(|keys| {
            keys.as_object().is_some_and(|keys| keys.iter().all(|(key, value)| item.get(key) == Some(value)))
        }),
        Some(("v:", value)) => parsed(value).as_ref() == Some(item),
        Some(("i:", number)) => number.parse() == Ok(index),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_applied_is_found_without_what_others_added() {
        let fields = json!({
            "f:metadata": {"f:labels": {"f:app": {}}, "f:finalizers": {".": {}, "v:\"a/b\"": {}}},
            "f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:name": {}, "f:image": {},
                "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}},
                "f:args": {}}}}});
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "finalizers": ["x/y", "a/b"],
                "labels": {"app": "web", "added": "later"},
                "managedFields": [
                    {"manager": "webhook", "operation": "Update", "fieldsV1": {"f:spec": {"f:tolerations": {}}}},
                    {"manager": "kubelet", "operation": "Apply", "subresource": "status",
                        "fieldsV1": {"f:status": {"f:phase": {}}}},
                    {"manager": "flux", "operation": "Apply", "fieldsV1": fields},
                    {"manager": "team", "operation": "Apply",
                        "fieldsV1": {"f:spec": {"f:priorityClassName": {}, "f:gone": {}}}}]},
            "spec": {"priorityClassName": "high", "tolerations": [{"operator": "Exists"}], "restartPolicy": "Always",
                "containers": [{"name": "sidecar", "image": "s"}, {"name": "c", "image": "i", "args": ["a", "b"],
                    "imagePullPolicy": "Always", "ports": [{"containerPort": 80, "protocol": "TCP"},
                        {"containerPort": 81, "protocol": "TCP"}]}]},
            "status": {"phase": "Running"}});
        let (applied, by) = applied(&pod).unwrap();
        assert_eq!(by, "flux, team");
        let expected = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "n", "finalizers": ["a/b"], "labels": {"app": "web"}},
            "spec": {"priorityClassName": "high",
                "containers": [{"name": "c", "image": "i", "args": ["a", "b"], "ports": [{"containerPort": 80}]}]}});
        assert_eq!(applied, expected);
    }

    #[test]
    fn fields_of_another_shape_name_nothing() {
        assert!(applied(&json!({"metadata": {}})).is_none());
        let of = |fields: Value| {
            let entry = json!({"manager": "m", "operation": "Apply", "fieldsV1": fields});
            let pod = json!({"kind": "Pod", "metadata": {"name": "p", "managedFields": [entry]},
                "spec": {"containers": [{"name": "c"}], "nodeName": "n"}});
            applied(&pod).map(|(applied, _)| applied["spec"].clone())
        };
        assert_eq!(
            of(json!({"f:spec": {"f:containers": {"k:[7]": {}, "k:{": {}, "x": {}, "i:x": {}}}})),
            Some(json!({"containers": []}))
        );
        assert_eq!(
            of(json!({"f:spec": {"f:containers": {"i:0": {}}, "f:nodeName": {"f:x": {}}}})),
            Some(json!({"containers": [{"name": "c"}], "nodeName": "n"}))
        );
        assert_eq!([of(json!({"f:spec": 7})), of(json!({})), of(Value::Null)], [None, None, None]);
    }
}
