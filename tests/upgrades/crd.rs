//! What may not change in a CustomResourceDefinition: whatever was valid stays valid, and means what it meant.
//!
//! `crdify` compares schemas, and takes what it doesn't know for a break. These it doesn't see, so they are compared here:
//! - the definition around the schema: its names, versions that are served, subresources, columns, selectable fields;
//! - properties with `anyOf`, `oneOf`, `allOf` or `not`: of these it sees the last alternative only;
//! - properties that are new where any field could be before.
//!
//! That the API server lets an invalid value be as long as nobody touches it (ratcheting, KEP-4008) is no excuse: a manifest
//! that people keep is applied again some day, and an element of an atomic list is checked again whenever the list changes.

use serde_json::{Value, json};

use crate::upgrades::tools::crdify;

/// What the new definitions take away from those who rely on the old ones: where, and what. Empty when nothing.
pub(crate) fn breaks(old: &[Value], new: &[Value]) -> Vec<String> {
    let mut breaks = Vec::new();
    let (old, new) = (undescribed(old), undescribed(new));
    for old in &old {
        let name = text(old, "/metadata/name");
        match new.iter().find(|new| text(new, "/metadata/name") == name) {
            Some(new) => {
                definition(name, old, new, &mut breaks);
                let whole = |crd: &Value| {
                    list(crd.pointer("/spec/versions")).iter().all(|v| v.get("schema").is_some())
                };
                // crdify panics where a schema is missing.
                if whole(old) && whole(new) {
                    breaks.extend(crdify(old, new).into_iter().map(|found| format!("{name} {found}")));
                }
            }
            None => breaks.push(format!("{name}: is gone")),
        }
    }
    breaks
}

/// The definitions without descriptions and without the messages of rules: `crdify` takes new ones for changes that it doesn't know. Values
/// of maps that have fields of their own are a property `*`, because it takes each change of them for one that it doesn't know.
fn undescribed(definitions: &[Value]) -> Vec<Value> {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                // A property that is called so is an object.
                let has_rule = fields.get("rule").is_some_and(Value::is_string);
                let is_text = |key: &str| key == "description" || has_rule && key == "message";
                fields.retain(|key, value| !(is_text(key) && value.is_string()));
                if fields.get("additionalProperties").is_some_and(|of| of.get("properties").is_some()) {
                    let values = fields.remove("additionalProperties");
                    fields.insert("properties".to_owned(), json!({"*": values}));
                }
                fields.values_mut().for_each(strip);
            }
            Value::Array(elements) => elements.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut definitions = definitions.to_vec();
    definitions.iter_mut().for_each(strip);
    definitions
}

fn definition(name: &str, old: &Value, new: &Value, breaks: &mut Vec<String>) {
    let fields = ["group", "conversion", "names/kind", "names/listKind", "names/plural", "names/singular"];
    for field in fields {
        let pointer = format!("/spec/{field}");
        same(
            &format!("{name}: {}", field.replace('/', ".")),
            old.pointer(&pointer),
            new.pointer(&pointer),
            breaks,
        );
    }
    for field in ["shortNames", "categories"] {
        let list = |of: &Value| list(of.pointer(&format!("/spec/names/{field}")));
        let kept = list(new);
        for gone in list(old).into_iter().filter(|one| !kept.contains(one)) {
            breaks.push(format!("{name}: names.{field}: {gone} is gone"));
        }
    }
    let versions = list(new.pointer("/spec/versions"));
    for old in list(old.pointer("/spec/versions")) {
        let path = format!("{name} {}", text(&old, "/name"));
        match versions.iter().find(|new| new["name"] == old["name"]) {
            Some(new) => version(&path, &old, new, breaks),
            None => breaks
                .push(format!("{path}: the version is gone; objects that are stored in it can't be read")),
        }
    }
}

fn version(path: &str, old: &Value, new: &Value, breaks: &mut Vec<String>) {
    if old["served"] == true && new["served"] != true {
        breaks.push(format!("{path}: is no longer served"));
    } else if old["storage"] == true && new["storage"] != true && new["served"] != true {
        breaks.push(format!("{path}: was what objects are stored in, and is not served"));
    }
    for name in ["status", "scale"] {
        // One that is new counts too: what was written with the object is ignored from then on.
        let of = |version: &Value| version.pointer(&format!("/subresources/{name}")).cloned();
        same(&format!("{path}: subresource {name}"), of(old).as_ref(), of(new).as_ref(), breaks);
    }
    let columns = list(new.get("additionalPrinterColumns"));
    for old in list(old.get("additionalPrinterColumns")) {
        let at = format!("{path}: column {}", text(&old, "/name"));
        match columns.iter().find(|new| new["name"] == old["name"]) {
            Some(new) => same(&format!("{at}: type"), old.get("type"), new.get("type"), breaks),
            None => breaks.push(format!("{at}: is gone")),
        }
    }
    let selectable = list(new.get("selectableFields"));
    for gone in list(old.get("selectableFields")).into_iter().filter(|one| !selectable.contains(one)) {
        breaks.push(format!("{path}: selectable field {}: is gone", text(&gone, "/jsonPath")));
    }
    let schema = "/schema/openAPIV3Schema";
    let null = Value::Null;
    let of = |version: &'_ Value| version.pointer(schema).cloned().unwrap_or_default();
    if of(new) == null && of(old) != null {
        breaks.push(format!("{path}: no longer has a schema"));
    } else {
        unseen(&format!("{path} "), &of(old), &of(new), breaks);
    }
}

/// What `crdify` doesn't see of a schema.
fn unseen(path: &str, old: &Value, new: &Value, breaks: &mut Vec<String>) {
    if ["anyOf", "oneOf", "allOf", "not"].iter().any(|key| old.get(*key).or(new.get(*key)).is_some()) {
        same(path, Some(old), Some(new), breaks);
    }
    let fields = |schema: &Value| schema["properties"].as_object().cloned().unwrap_or_default();
    let (before, after) = (fields(old), fields(new));
    let free = ["x-kubernetes-preserve-unknown-fields", "additionalProperties"]
        .iter()
        .any(|key| old.get(*key).is_some_and(|value| value != false));
    for name in after.keys().filter(|name| free && !before.contains_key(*name)) {
        breaks.push(format!("{path}.{name}: is new where anything could be before"));
    }
    for (name, new) in &after {
        unseen(&format!("{path}.{name}"), before.get(name).unwrap_or(new), new, breaks);
    }
    for (key, sign) in [("items", "[]"), ("additionalProperties", ".*")] {
        if let (Some(old), Some(new)) = (old.get(key), new.get(key)) {
            unseen(&format!("{path}{sign}"), old, new, breaks);
        }
    }
}

/// Says so when something isn't what it was.
fn same(what: &str, old: Option<&Value>, new: Option<&Value>, breaks: &mut Vec<String>) {
    let shown = |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), Value::to_string);
    if old != new {
        breaks.push(format!("{what} was {} and is {}", shown(old), shown(new)));
    }
}

/// A list's elements; none when there is no list.
fn list(value: Option<&Value>) -> Vec<Value> {
    value.and_then(Value::as_array).cloned().unwrap_or_default()
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Each kind of change to a definition, and whether it is found: `changes.yaml`.
#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Changes {
        definition: Value,
        lost: Vec<Change>,
        kept: Vec<Change>,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Change {
        at: String,
        to: Value,
        says: Option<String>,
    }

    fn changes() -> Changes {
        const V1: &str = "/spec/versions/0";
        let spec = format!("{V1}/schema/openAPIV3Schema/properties/spec");
        outrigger_cases::read(include_str!("changes.yaml"), &[("$V1", V1), ("$SPEC", &spec)], &Value::Null)
    }

    /// What is found when the definition is changed.
    fn found(definition: &Value, Change { at, to, .. }: &Change) -> Vec<String> {
        let mut new = definition.clone();
        let (parent, key) = at.rsplit_once('/').unwrap();
        match new.pointer_mut(parent).unwrap_or_else(|| panic!("{at} is nowhere")) {
            Value::Object(fields) if to.is_null() => assert!(fields.remove(key).is_some(), "{at} is nowhere"),
            Value::Object(fields) => drop(fields.insert(key.to_owned(), to.clone())),
            Value::Array(list) if to.is_null() => drop(list.remove(key.parse().unwrap())),
            Value::Array(list) => list[key.parse::<usize>().unwrap()] = to.clone(),
            _ => panic!("{at} is nowhere"),
        }
        breaks(std::slice::from_ref(definition), &[new])
    }

    #[test]
    fn what_is_taken_away_is_found_and_named() {
        let Changes { definition, lost, .. } = changes();
        for change in &lost {
            let (at, found) = (&change.at, found(&definition, change));
            match &change.says {
                Some(says) => assert_eq!(found, [says.as_str()], "{at}"),
                None => {
                    let (_, within) = at.split_once("/spec/properties/").unwrap_or_default();
                    let property = within.split('/').next().unwrap_or_default();
                    let named = |one: &String| one.contains(".spec") && one.contains(property);
                    assert!(!found.is_empty() && found.iter().all(named), "{at}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_added_or_loosened_is_let_through() {
        let Changes { definition, kept, .. } = changes();
        for change in &kept {
            assert_eq!(found(&definition, change), [""; 0], "{}", change.at);
        }
    }

    #[test]
    fn a_version_that_objects_are_stored_in_stays_readable() {
        let mut old = changes().definition;
        old["spec"]["versions"][0]["served"] = Value::from(false);
        let mut new = old.clone();
        new["spec"]["versions"][0]["storage"] = Value::from(false);
        new["spec"]["versions"][1]["storage"] = Value::from(true);
        let expected = "boats.example.org v1: was what objects are stored in, and is not served";
        assert_eq!(breaks(&[old.clone()], &[new.clone()]), [expected]);
        new["spec"]["versions"][0]["served"] = Value::from(true);
        assert!(breaks(&[old], &[new]).is_empty());
    }
}
