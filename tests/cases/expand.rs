//! Short forms in the files: names, objects to start from, and repetition.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Reads a file's text. Names are replaced first, then
/// - `{$like: NAME, ...}` is the object NAME, the caller's or of the file's `objects`, changed by the rest as a merge patch;
/// - `{$repeat: N, of: X}` is a list of N times X, in which `$I` is 1, 2 and so on;
/// - `{$repeat: N, key: K, of: X}` is a map of that;
/// - `{$text: X, times: N}` is a long text.
pub fn read<T: DeserializeOwned>(text: &str, names: &[(&str, &str)], objects: &Value) -> T {
    let mut names = names.to_vec();
    // Some begin like others.
    names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    let text = names.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value));
    let mut file: Value = serde_yaml::from_str(&text).unwrap_or_else(|e| panic!("{e}"));
    let known = match file.get("objects") {
        Some(Value::Object(own)) => merged(&own.clone().into(), objects),
        _ => objects.clone(),
    };
    file = expand(file, &known);
    serde_path_to_error::deserialize(file).unwrap_or_else(|e| panic!("{e}"))
}

fn expand(value: Value, objects: &Value) -> Value {
    let mut fields = match value {
        Value::Array(list) => return list.into_iter().map(|entry| expand(entry, objects)).collect(),
        Value::Object(fields) => fields,
        other => return other,
    };
    let count = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    if let (Some(text), Some(times)) = (fields.get("$text"), fields.get("times")) {
        return text.as_str().unwrap().repeat(count(times)).into();
    }
    if let (Some(times), Some(of)) = (fields.get("$repeat"), fields.get("of")) {
        let of = expand(of.clone(), objects);
        let all = (1..=count(times)).map(|i| (i, numbered(&of, i)));
        return match fields.get("key") {
            Some(key) => all.map(|(i, of)| (numbered(key, i).as_str().unwrap().to_owned(), of)).collect(),
            None => all.map(|(_, of)| of).collect(),
        };
    }
    // An object that only another layer knows stays a name.
    let like = fields.get("$like").and_then(Value::as_str).and_then(|name| objects.get(name));
    let like = like.map(|object| expand(object.clone(), objects));
    if like.is_some() {
        fields.remove("$like");
    }
    let fields: Map<String, Value> =
        fields.into_iter().map(|(key, value)| (key, expand(value, objects))).collect();
    match like {
        Some(base) => merged(&base, &fields.into()),
        None => fields.into(),
    }
}

fn numbered(value: &Value, i: usize) -> Value {
    match value {
        Value::String(text) if text == "$I" => i.into(),
        Value::String(text) => text.replace("$I", &i.to_string()).into(),
        Value::Array(list) => list.iter().map(|entry| numbered(entry, i)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| (key.clone(), numbered(value, i))).collect()
        }
        other => other.clone(),
    }
}

/// An object changed by a merge patch (RFC 7396); null changes nothing.
pub fn merged(base: &Value, patch: &Value) -> Value {
    let mut new = base.clone();
    if !patch.is_null() {
        json_patch::merge(&mut new, patch);
    }
    new
}

/// Fails where a row that is run still has names that nobody has replaced.
pub(crate) fn complete<'a>(row: &str, values: impl IntoIterator<Item = &'a Value>) {
    for value in values {
        match value {
            Value::String(text) => {
                let name =
                    text.split('$').skip(1).find(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
                assert!(name.is_none(), "{row}: ${} stands for nothing here", name.unwrap_or_default());
            }
            Value::Array(list) => complete(row, list),
            Value::Object(fields) => {
                assert!(!fields.contains_key("$like"), "{row}: {fields:?} is like nothing");
                complete(row, fields.values());
            }
            _ => {}
        }
    }
}
