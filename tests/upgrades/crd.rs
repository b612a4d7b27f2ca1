//! What may not change in a CustomResourceDefinition: whatever was valid stays valid, and means what it meant.
//!
//! `crdify` compares schemas, and takes what it doesn't know for a break. These it doesn't see, so they are compared here:
//! - the definition around the schema: its names, versions that are served, subresources, columns, selectable fields;
//! - properties with `anyOf`, `oneOf`, `allOf` or `not`: of these it sees the last alternative only;
//! - properties that are new where any field could be before.
//!
//! That the API server lets an invalid value be as long as nobody touches it (ratcheting, KEP-4008) is no excuse: a manifest
//! that people keep is applied again some day, and an element of an atomic list is checked again whenever the list changes.

use serde_json::Value;

use crate::tools::crdify;

/// What the new definitions take away from those who rely on the old ones: where, and what. Empty when nothing.
pub(crate) fn breaks(old: &[Value], new: &[Value]) -> Vec<String> {
    let mut breaks = Vec::new();
    for old in old {
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
        breaks.push(format!("{path}: is not served any more"));
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
        breaks.push(format!("{path}: has no schema any more"));
    } else {
        unseen(&format!("{path} "), &of(old), &of(new), breaks);
    }
}

/// What `crdify` doesn't see of a schema.
fn unseen(path: &str, old: &Value, new: &Value, breaks: &mut Vec<String>) {
    if ["anyOf", "oneOf", "allOf", "not"].iter().any(|key| old.get(*key).or(new.get(*key)).is_some()) {
        let described = |schema: &Value| {
            let mut schema = schema.clone();
            schema.as_object_mut().map(|fields| fields.remove("description"));
            schema
        };
        same(path, Some(&described(old)), Some(&described(new)), breaks);
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

/// Each kind of change to a definition, and whether it is found.
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A definition with something of everything.
    fn definition() -> Value {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "boats.example.org"},
            "spec": {
                "group": "example.org", "scope": "Namespaced",
                "names": {"kind": "Boat", "listKind": "BoatList", "plural": "boats", "singular": "boat",
                    "shortNames": ["bt"], "categories": ["all"]},
                "versions": [
                    {"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                    "additionalPrinterColumns": [{"name": "Sails", "type": "integer", "jsonPath": ".spec.sails"}],
                    "selectableFields": [{"jsonPath": ".spec.name"}],
                    "schema": {"openAPIV3Schema":
                        {"type": "object", "required": ["spec"], "properties": {"spec": spec()}}}},
                    {"name": "v0", "served": false, "storage": false, "schema": {"openAPIV3Schema": {"type": "object"}}},
                ],
            },
        })
    }

    fn spec() -> Value {
        let crew = json!({"type": "array", "maxItems": 4, "minItems": 1, "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "properties": {"name": {"type": "string"}}}});
        let labels = json!({"type": "object", "maxProperties": 3, "x-kubernetes-map-type": "granular",
            "additionalProperties": {"type": "string", "maxLength": 5}});
        json!({
            "type": "object", "description": "d", "required": ["name"],
            "x-kubernetes-validations": [{"rule": "self.sails < 9 || self.name == 'big'"}],
            "properties": {
                "name": {"type": "string", "maxLength": 9, "minLength": 2, "pattern": "^[a-z]+$"},
                "rig": {"type": "string", "enum": ["sloop", "ketch"], "default": "sloop", "nullable": true},
                "sails": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 9},
                "crew": crew,
                "labels": labels,
                "cargo": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "draft": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
            },
        })
    }

    const V1: &str = "/spec/versions/0";
    const SPEC: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";

    /// The definition with the value at a pointer replaced, added, or with `Null` removed.
    fn changed(at: &str, to: &Value) -> Value {
        let mut new = definition();
        let (parent, key) = at.rsplit_once('/').unwrap();
        let parent = new.pointer_mut(parent).unwrap_or_else(|| panic!("{at} is nowhere"));
        match parent {
            Value::Object(fields) if to.is_null() => assert!(fields.remove(key).is_some(), "{at} is nowhere"),
            Value::Object(fields) => drop(fields.insert(key.to_owned(), to.clone())),
            Value::Array(list) if to.is_null() => drop(list.remove(key.parse().unwrap())),
            Value::Array(list) => list[key.parse::<usize>().unwrap()] = to.clone(),
            _ => panic!("{at} is nowhere"),
        }
        new
    }

    fn found(at: &str, to: &Value) -> Vec<String> {
        breaks(&[definition()], &[changed(at, to)])
    }

    #[test]
    fn what_is_taken_away_is_found_and_named() {
        for (at, to, expected) in [
            ("/metadata/name", json!("ships.example.org"), "boats.example.org: is gone"),
            ("/spec/group", json!("x.org"), "boats.example.org: group was \"example.org\" and is \"x.org\""),
            (
                "/spec/scope",
                json!("Cluster"),
                "boats.example.org scope changed : \"Namespaced\" -> \"Cluster\"",
            ),
            ("/spec/names/kind", json!("Ship"), "boats.example.org: names.kind was \"Boat\" and is \"Ship\""),
            ("/spec/names/shortNames", Value::Null, "boats.example.org: names.shortNames: \"bt\" is gone"),
            ("/spec/names/categories", json!(["x"]), "boats.example.org: names.categories: \"all\" is gone"),
            (
                V1,
                Value::Null,
                "boats.example.org v1: the version is gone; objects that are stored in it can't be read",
            ),
        ] {
            assert_eq!(found(at, &to), [expected], "{at}");
        }
        for (at, to, expected) in [
            ("served", json!(false), "is not served any more"),
            ("subresources", Value::Null, "subresource status was {} and is absent"),
            ("subresources/scale", json!({}), "subresource scale was absent and is {}"),
            ("additionalPrinterColumns/0/name", json!("Masts"), "column Sails: is gone"),
            (
                "additionalPrinterColumns/0/type",
                json!("string"),
                "column Sails: type was \"integer\" and is \"string\"",
            ),
            ("selectableFields", json!([]), "selectable field .spec.name: is gone"),
            ("schema", Value::Null, "has no schema any more"),
        ] {
            let expected = format!("boats.example.org v1: {expected}");
            assert_eq!(found(&format!("{V1}/{at}"), &to), [expected], "{at}");
        }
    }

    #[test]
    fn a_version_that_objects_are_stored_in_stays_readable() {
        let mut old = definition();
        old["spec"]["versions"][0]["served"] = json!(false);
        let mut new = old.clone();
        new["spec"]["versions"][0]["storage"] = json!(false);
        new["spec"]["versions"][1]["storage"] = json!(true);
        let expected = "boats.example.org v1: was what objects are stored in, and is not served";
        assert_eq!(breaks(&[old.clone()], &[new.clone()]), [expected]);
        new["spec"]["versions"][0]["served"] = json!(true);
        assert!(breaks(&[old], &[new]).is_empty());
    }

    #[test]
    fn what_a_schema_takes_away_is_found_at_its_path() {
        for (at, to) in [
            ("properties/sails", Value::Null),
            ("properties/sails/type", json!("number")),
            ("properties/sails/format", json!("int64")),
            ("properties/sails/format", Value::Null),
            ("properties/sails/minimum", json!(2)),
            ("properties/sails/maximum", json!(8)),
            ("properties/sails/multipleOf", json!(2)),
            ("properties/name/minLength", json!(3)),
            ("properties/name/maxLength", json!(8)),
            ("properties/name/pattern", json!("^a")),
            ("properties/rig/pattern", json!("^a")),
            ("properties/rig/maxLength", json!(99)),
            ("properties/rig/enum", json!(["ketch", "yawl"])),
            ("properties/name/enum", json!(["a"])),
            ("properties/rig/default", json!("ketch")),
            ("properties/rig/default", Value::Null),
            ("properties/name/default", json!("x")),
            ("properties/rig/nullable", Value::Null),
            ("required", json!(["name", "rig"])),
            ("properties/crew/items/required", json!(["name"])),
            ("properties/crew/minItems", json!(2)),
            ("properties/crew/maxItems", json!(3)),
            ("properties/crew/items", Value::Null),
            ("properties/crew/items/properties/name", Value::Null),
            ("properties/crew/x-kubernetes-list-type", json!("atomic")),
            ("properties/crew/x-kubernetes-list-map-keys", json!(["id"])),
            ("properties/labels/x-kubernetes-map-type", json!("atomic")),
            ("properties/labels/minProperties", json!(1)),
            ("properties/labels/maxProperties", json!(2)),
            ("properties/labels/additionalProperties", Value::Null),
            ("properties/labels/additionalProperties/maxLength", json!(4)),
            ("properties/cargo/x-kubernetes-preserve-unknown-fields", Value::Null),
            ("properties/cargo/additionalProperties", json!({"type": "integer"})),
            ("properties/cargo/properties", json!({"tons": {"type": "integer"}})),
            ("properties/cargo/x-kubernetes-embedded-resource", json!(true)),
            ("properties/draft/x-kubernetes-int-or-string", Value::Null),
            ("properties/name/not", json!({"enum": ["a"]})),
            ("properties/draft/anyOf", json!([{"type": "string"}])),
            ("x-kubernetes-validations", json!([{"rule": "self.sails > 1"}])),
        ] {
            let found = found(&format!("{SPEC}/{at}"), &to);
            let property = at.strip_prefix("properties/").and_then(|rest| rest.split('/').next());
            let named = |one: &String| one.contains(".spec") && one.contains(property.unwrap_or_default());
            assert!(!found.is_empty() && found.iter().all(named), "{at}: {found:?}");
        }
    }

    #[test]
    fn what_is_added_or_loosened_is_let_through() {
        let column = json!([{"name": "Name", "type": "string", "jsonPath": ".spec.name"},
            {"name": "Sails", "type": "integer", "jsonPath": ".status.sails"}]);
        let list = json!(["bt", "b"]);
        for (at, to) in
            [("/spec/names/shortNames", list), (&format!("{V1}/additionalPrinterColumns"), column)]
        {
            assert_eq!(found(at, &to), [""; 0], "{at}");
        }
        for (at, to) in [
            ("description", json!("other")),
            ("properties/keel", json!({"type": "string", "maxLength": 3, "default": "fin"})),
            ("properties/crew/items/properties/rank", json!({"type": "string"})),
            ("required", json!([])),
            ("properties/rig/enum", json!(["sloop", "ketch", "yawl"])),
            ("properties/name/maxLength", json!(10)),
            ("properties/name/minLength", Value::Null),
            ("properties/sails/minimum", json!(0)),
            ("properties/sails/maximum", json!(9.5)),
        ] {
            assert_eq!(found(&format!("{SPEC}/{at}"), &to), [""; 0], "{at}");
        }
    }
}
