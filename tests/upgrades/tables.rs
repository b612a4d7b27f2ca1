//! Each kind of change to a definition, and whether it is found.

use serde_json::{Value, json};

use crate::crd::breaks;

/// A definition with something of everything.
fn definition() -> Value {
    json!({
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
        ("/spec/scope", json!("Cluster"), "boats.example.org: scope was \"Namespaced\" and is \"Cluster\""),
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
fn what_a_schema_takes_away_is_found_and_named() {
    for (at, to, expected) in [
        ("properties/sails", Value::Null, ".sails: is gone"),
        ("properties/sails/type", json!("number"), ".sails: type was \"integer\" and is \"number\""),
        ("properties/sails/format", json!("int64"), ".sails: format was \"int32\" and is \"int64\""),
        ("properties/sails/format", Value::Null, ".sails: format was \"int32\" and is absent"),
        ("properties/sails/minimum", json!(2), ".sails: minimum was 1 and is 2"),
        ("properties/sails/maximum", json!(8), ".sails: maximum was 9 and is 8"),
        ("properties/sails/multipleOf", json!(2), ".sails: multipleOf was absent and is 2"),
        ("properties/name/minLength", json!(3), ".name: minLength was 2 and is 3"),
        ("properties/name/maxLength", json!(8), ".name: maxLength was 9 and is 8"),
        ("properties/name/pattern", json!("^a"), ".name: pattern was \"^[a-z]+$\" and is \"^a\""),
        ("properties/rig/pattern", json!("^a"), ".rig: pattern was absent and is \"^a\""),
        ("properties/rig/maxLength", json!(99), ".rig: maxLength was absent and is 99"),
        ("properties/rig/enum", json!(["ketch", "yawl"]), ".rig: enum: \"sloop\" is gone"),
        ("properties/name/enum", json!(["a"]), ".name: enum is new"),
        ("properties/rig/default", json!("ketch"), ".rig: default was \"sloop\" and is \"ketch\""),
        ("properties/rig/default", Value::Null, ".rig: default was \"sloop\" and is absent"),
        ("properties/name/default", json!("x"), ".name: default was absent and is \"x\""),
        ("properties/rig/nullable", Value::Null, ".rig: nullable is not true any more"),
        ("required", json!(["name", "rig"]), ": required: \"rig\" is new"),
        ("properties/crew/items/required", json!(["name"]), ".crew[]: required: \"name\" is new"),
        ("properties/crew/minItems", json!(2), ".crew: minItems was 1 and is 2"),
        ("properties/crew/maxItems", json!(3), ".crew: maxItems was 4 and is 3"),
        ("properties/crew/items", Value::Null, ".crew[]: is gone"),
        ("properties/crew/items/properties/name", Value::Null, ".crew[].name: is gone"),
        (
            "properties/crew/x-kubernetes-list-type",
            json!("atomic"),
            ".crew: x-kubernetes-list-type was \"map\" and is \"atomic\"",
        ),
        (
            "properties/crew/x-kubernetes-list-map-keys",
            json!(["id"]),
            ".crew: x-kubernetes-list-map-keys was [\"name\"] and is [\"id\"]",
        ),
        (
            "properties/labels/x-kubernetes-map-type",
            json!("atomic"),
            ".labels: x-kubernetes-map-type was \"granular\" and is \"atomic\"",
        ),
        ("properties/labels/minProperties", json!(1), ".labels: minProperties was absent and is 1"),
        ("properties/labels/maxProperties", json!(2), ".labels: maxProperties was 3 and is 2"),
        ("properties/labels/additionalProperties", Value::Null, ".labels.*: is gone"),
        ("properties/labels/additionalProperties/maxLength", json!(4), ".labels.*: maxLength was 5 and is 4"),
        (
            "properties/cargo/x-kubernetes-preserve-unknown-fields",
            Value::Null,
            ".cargo: x-kubernetes-preserve-unknown-fields is not true any more",
        ),
        (
            "properties/cargo/additionalProperties",
            json!({"type": "integer"}),
            ".cargo.*: has a schema where it had none",
        ),
        (
            "properties/cargo/properties",
            json!({"tons": {"type": "integer"}}),
            ".cargo.tons: is new where anything could be before",
        ),
        (
            "properties/cargo/x-kubernetes-embedded-resource",
            json!(true),
            ".cargo: x-kubernetes-embedded-resource was absent and is true",
        ),
        (
            "properties/draft/x-kubernetes-int-or-string",
            Value::Null,
            ".draft: x-kubernetes-int-or-string was true and is absent",
        ),
        ("properties/name/not", json!({"enum": ["a"]}), ".name: not was absent and is {\"enum\":[\"a\"]}"),
        (
            "properties/draft/anyOf",
            json!([{"type": "string"}]),
            ".draft: anyOf was [{\"type\":\"integer\"},{\"type\":\"string\"}] and is [{\"type\":\"string\"}]",
        ),
        (
            "properties/name/x-kubernetes-new",
            json!(1),
            ".name: x-kubernetes-new has changed, and this test doesn't know what it means",
        ),
    ] {
        assert_eq!(
            found(&format!("{SPEC}/{at}"), &to),
            [format!("boats.example.org v1 .spec{expected}")],
            "{at}"
        );
    }
}

#[test]
fn a_rule_that_is_new_has_to_hold_for_what_exists() {
    let with = |rule: Value| {
        let mut new = definition();
        let spec = new.pointer_mut(SPEC).unwrap();
        spec["properties"]["keel"] = json!({"type": "string"});
        spec["x-kubernetes-validations"].as_array_mut().unwrap().push(rule);
        breaks(&[definition()], &[new])
    };
    for rule in [
        json!({"rule": "self.sails > 1"}),
        // It says what it was, and not what holds when there was nothing: that is the API server's to guess.
        json!({"rule": "self.sails >= oldSelf.sails"}),
        json!({"rule": "self.sails > 1", "optionalOldSelf": true}),
        // About something that was there before.
        json!({"rule": "!has(self.rig) || self.rig == 'sloop'"}),
        json!({"rule": "!has(self.rudder) || self.sails > 1"}),
        json!({"rule": "!has(self.keel) || self.sails > 1 ? self.sails > 2 : true"}),
        json!({"rule": "!has(self.keel) && self.sails > 1"}),
    ] {
        let text = rule["rule"].as_str().unwrap();
        let expected =
            format!("boats.example.org v1 .spec: rule {text:?} is new, and what exists may not fulfil it");
        assert_eq!(with(rule.clone()), [expected]);
    }
    for rule in [
        json!({"rule": "!has(self.keel) || self.sails > 1 && self.rig == 'ketch'"}),
        json!({"rule": "!oldSelf.hasValue() ? self.sails > 1 : true", "optionalOldSelf": true}),
    ] {
        assert!(with(rule.clone()).is_empty(), "{rule}");
    }
}

#[test]
fn what_is_added_or_loosened_is_let_through() {
    for (at, to) in [("/spec/names/shortNames", json!(["bt", "b"])), ("/spec/versions/1/served", json!(true))]
    {
        assert_eq!(found(at, &to), [""; 0], "{at}");
    }
    let column = json!([{"name": "Name", "type": "string", "jsonPath": ".spec.name"},
        {"name": "Sails", "type": "integer", "jsonPath": ".status.sails"}]);
    assert_eq!(found(&format!("{V1}/additionalPrinterColumns"), &column), [""; 0]);
    for (at, to) in [
        ("description", json!("other")),
        ("properties/keel", json!({"type": "string", "maxLength": 3, "default": "fin"})),
        ("properties/crew/items/properties/rank", json!({"type": "string"})),
        ("required", json!([])),
        ("x-kubernetes-validations", json!([])),
        ("x-kubernetes-validations/0/message", json!("too many sails")),
        ("properties/rig/enum", json!(["sloop", "ketch", "yawl"])),
        ("properties/rig/enum", Value::Null),
        ("properties/name/nullable", json!(true)),
        ("properties/name/pattern", Value::Null),
        ("properties/name/maxLength", json!(10)),
        ("properties/name/minLength", Value::Null),
        ("properties/sails/minimum", json!(0)),
        ("properties/sails/maximum", json!(9.5)),
        ("properties/crew/x-kubernetes-preserve-unknown-fields", json!(true)),
        ("properties/draft/anyOf", Value::Null),
    ] {
        assert_eq!(found(&format!("{SPEC}/{at}"), &to), [""; 0], "{at}");
    }
}
