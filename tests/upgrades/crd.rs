//! What may not change in a CustomResourceDefinition, its schema apart.

use serde_json::Value;

use crate::schema;

/// What the new definitions take away from those who rely on the old ones: where, and what. Empty when nothing.
pub(crate) fn breaks(old: &[Value], new: &[Value]) -> Vec<String> {
    let mut breaks = Vec::new();
    for old in old {
        let name = text(old, "/metadata/name");
        match new.iter().find(|new| text(new, "/metadata/name") == name) {
            Some(new) => definition(name, old, new, &mut breaks),
            None => breaks.push(format!("{name}: is gone")),
        }
    }
    breaks
}

fn definition(name: &str, old: &Value, new: &Value, breaks: &mut Vec<String>) {
    let fields =
        ["group", "scope", "conversion", "names/kind", "names/listKind", "names/plural", "names/singular"];
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
        schema::compare(&format!("{path} "), &of(old), &of(new), breaks);
    }
}

/// Says so when something isn't what it was.
pub(crate) fn same(what: &str, old: Option<&Value>, new: Option<&Value>, breaks: &mut Vec<String>) {
    let shown = |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), Value::to_string);
    if old != new {
        breaks.push(format!("{what} was {} and is {}", shown(old), shown(new)));
    }
}

/// A list's elements; none when there is no list.
pub(crate) fn list(value: Option<&Value>) -> Vec<Value> {
    value.and_then(Value::as_array).cloned().unwrap_or_default()
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
