//! The custom resources, from the schemas of their definitions.

use anyhow::Context;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion,
};
use outrigger_core::json::list;
use serde_json::Value;

use super::Page;
use super::markdown::{cell, code, table};

/// A page for each resource.
pub(super) fn pages() -> anyhow::Result<Vec<Page>> {
    outrigger_api::crds().iter().map(page).collect()
}

fn page(crd: &CustomResourceDefinition) -> anyhow::Result<Page> {
    let names = &crd.spec.names;
    let version = crd.spec.versions.first().context("a definition without version")?;
    let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
    let schema = serde_json::to_value(schema.context("a definition without schema")?)?;
    let about = schema["description"].as_str().unwrap_or_default();
    let api = format!("{}/{}", crd.spec.group, version.name);

    let mut text = format!("{about}\n\n");
    let mut facts = vec![
        ["apiVersion".to_owned(), code(&api)],
        ["kind".to_owned(), code(&names.kind)],
        ["scope".to_owned(), crd.spec.scope.clone()],
        ["kubectl get".to_owned(), called(crd)],
    ];
    if version.subresources.as_ref().is_some_and(|sub| sub.status.is_some()) {
        facts.push(["subresources".to_owned(), code("status")]);
    }
    if let Some(columns) = columns(version) {
        facts.push(["columns".to_owned(), columns]);
    }
    text += &table(["", ""], &facts);

    for part in ["spec", "status"] {
        let schema = &schema["properties"][part];
        let mut fields = Fields::default();
        fields.below(part, schema);
        if fields.rows.is_empty() {
            continue;
        }
        text += &format!("\n## {part}\n\n");
        if let Some(about) = schema["description"].as_str() {
            text += &format!("{}\n\n", paragraphs(about));
        }
        text += &table(["field", "type", "limits", "meaning"], &fields.rows);
        if !fields.rules.is_empty() {
            text +=
                &format!("\nWhat has to hold besides, or the API server refuses the object ({part}):\n\n");
            text += &table(["at", "rule (CEL)", "else it says"], &fields.rules);
        }
    }
    Ok(Page::new(&names.kind.to_lowercase(), &names.kind, &cell(about), text))
}

/// The names that kubectl knows it by.
fn called(crd: &CustomResourceDefinition) -> String {
    let names = &crd.spec.names;
    let short = names.short_names.iter().flatten();
    let categories = names.categories.iter().flatten();
    let all: Vec<String> =
        std::iter::once(&names.plural).chain(short).chain(categories).map(|name| code(name)).collect();
    all.join(", ")
}

fn columns(version: &CustomResourceDefinitionVersion) -> Option<String> {
    let columns = version.additional_printer_columns.as_ref()?;
    let name = |wide: bool| {
        let of = columns.iter().filter(move |column| (column.priority.unwrap_or_default() > 0) == wide);
        of.map(|column| column.name.clone()).collect::<Vec<_>>().join(", ")
    };
    let (narrow, wide) = (name(false), name(true));
    Some(if wide.is_empty() { narrow } else { format!("{narrow}; with `-o wide` {wide}") })
}

fn paragraphs(text: &str) -> String {
    text.split("\n\n").map(cell).collect::<Vec<_>>().join("\n\n")
}

/// The rows of a part of a schema.
#[derive(Default)]
struct Fields {
    rows: Vec<[String; 4]>,
    rules: Vec<[String; 3]>,
}

impl Fields {
    /// Everything below a field that has a row already, and the rules that it must keep itself.
    fn below(&mut self, path: &str, schema: &Value) {
        for rule in list(schema, "/x-kubernetes-validations") {
            let text = |key: &str| rule[key].as_str().unwrap_or_default();
            let at = format!("{path}{}", text("fieldPath"));
            let said = if text("message").is_empty() {
                code(text("messageExpression"))
            } else {
                cell(text("message"))
            };
            self.rules.push([code(&at), code(&text("rule").replace('\n', " ")), said]);
        }
        if let Some(properties) = schema["properties"].as_object() {
            for (name, property) in properties {
                let required = list(schema, "/required").iter().any(|one| one == name.as_str());
                self.field(&format!("{path}.{name}"), property, required);
            }
        }
        if schema["items"].is_object() {
            self.below(&format!("{path}[]"), &schema["items"]);
        }
        if schema["additionalProperties"].is_object() {
            self.below(&format!("{path}.*"), &schema["additionalProperties"]);
        }
    }

    fn field(&mut self, path: &str, schema: &Value, required: bool) {
        let about = schema["description"].as_str().or_else(|| schema["items"]["description"].as_str());
        self.rows.push([
            code(path),
            kind(schema),
            limits(schema, required).join("; "),
            cell(about.unwrap_or_default()),
        ]);
        self.below(path, schema);
    }
}

/// The type of a field, in words.
fn kind(schema: &Value) -> String {
    if schema["x-kubernetes-int-or-string"] == true {
        return "integer or string".to_owned();
    }
    match schema["type"].as_str() {
        Some("array") => format!("list of {}", kind(&schema["items"])),
        Some("object") if schema["additionalProperties"].is_object() => {
            format!("map to {}", kind(&schema["additionalProperties"]))
        }
        Some("string") if schema["format"] == "date-time" => "time".to_owned(),
        Some(kind) => kind.to_owned(),
        None => "any".to_owned(),
    }
}

/// What a value of the field must keep to by itself, and what it is when it is left out.
fn limits(schema: &Value, required: bool) -> Vec<String> {
    let mut limits = Vec::new();
    if required {
        limits.push("required".to_owned());
    }
    if let Some(default) = schema.get("default").filter(|default| !default.is_null()) {
        let default = match default.as_str() {
            Some(text) if !text.is_empty() => text.to_owned(),
            _ => default.to_string(),
        };
        limits.push(format!("default {}", code(&default)));
    }
    limits.extend(of_value(schema));
    limits.extend(of_value(&schema["items"]).into_iter().map(|limit| format!("each {limit}")));
    if schema["x-kubernetes-list-type"] == "map" {
        let keys: Vec<String> =
            list(schema, "/x-kubernetes-list-map-keys").iter().filter_map(Value::as_str).map(code).collect();
        limits.push(format!("no two with the same {}", keys.join(", ")));
    } else if schema["x-kubernetes-list-type"] == "set" {
        limits.push("nothing twice".to_owned());
    }
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        limits.push("further fields are kept".to_owned());
    }
    limits
}

fn of_value(schema: &Value) -> Vec<String> {
    let mut limits = Vec::new();
    let values: Vec<String> = list(schema, "/enum").iter().filter_map(Value::as_str).map(code).collect();
    if !values.is_empty() {
        limits.push(format!("one of {}", values.join(", ")));
    }
    for (least, most, of) in [
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " entries"),
        ("minProperties", "maxProperties", " entries"),
        ("minimum", "maximum", ""),
    ] {
        // A schema's bounds are floating-point numbers; those of Outrigger's kinds are integers.
        let bound = |key: &str| schema[key].as_f64().map(|bound| bound.to_string());
        limits.extend(match (bound(least), bound(most)) {
            (Some(least), Some(most)) => Some(format!("{least} to {most}{of}")),
            (Some(least), None) => Some(format!("at least {least}{of}")),
            (None, Some(most)) => Some(format!("at most {most}{of}")),
            (None, None) => None,
        });
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        limits.push(format!("like {}", code(pattern)));
    }
    limits
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_reported_with_all_that_holds_for_them() {
        let schema = json!({
            "required": ["terms"],
            "x-kubernetes-validations": [{"rule": "a || b", "message": "needs a", "fieldPath": ".a"}],
            "properties": {
                "terms": {"type": "array", "minItems": 1, "description": "Terms.\nORed.",
                    "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["key"],
                    "items": {"type": "object", "properties": {
                        "key": {"type": "string", "maxLength": 63, "pattern": "a|b"}}}},
                "policy": {"type": "string", "enum": ["A", "B"], "default": "A"},
                "share": {"x-kubernetes-int-or-string": true},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            }
        });
        let mut fields = Fields::default();
        fields.below("spec", &schema);
        let rows: Vec<String> = fields.rows.iter().map(|row| row.join(" # ")).collect();
        assert_eq!(
            rows,
            [
                "`spec.labels` # map to string #  # ",
                "`spec.policy` # string # default `A`; one of `A`, `B` # ",
                "`spec.share` # integer or string #  # ",
                "`spec.terms` # list of object # required; at least 1 entries; no two with the same `key` # Terms. ORed.",
                "`spec.terms[].key` # string # at most 63 characters; like `a\\|b` # ",
            ]
        );
        assert_eq!(fields.rules, [["`spec.a`", "`a \\|\\| b`", "needs a"]]);
    }

    /// Every field has a description.
    #[test]
    fn each_field_of_ours_has_a_meaning() {
        for page in pages().unwrap() {
            for line in page.text.lines().filter(|line| line.starts_with("| `spec.")) {
                // A rule on several fields has three cells, a field four.
                let bare = line.ends_with("|  |");
                assert!(!bare, "{}: {line}", page.title);
            }
        }
    }
}
