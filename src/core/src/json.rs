//! Free-form JSON that is kept as text.
//!
//! A tree takes many times the memory of its text, and the parts of a rule that are free-form (its template, the specs of its
//! device claims) are kept for as long as the rule is there, but looked into only now and then. So the text is kept, and whoever
//! looks into it makes a tree for that time.

use std::sync::{Arc, LazyLock};

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Error as _, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::bounds::{Bounds, Excess};

/// What such a part may have. etcd takes 1.5 MiB an object, and a companion carries its workload besides its template. A Pod with 64
/// containers of 50 variables each has about 12,000 values, and Kubernetes' own kinds are nested less than 20 levels deep.
pub const BOUNDS: Bounds = Bounds { bytes: 512 * 1024, values: 20_000, depth: 64 };

/// A JSON value as text: compact, with sorted keys, so that equal values have equal texts. Clones share it.
///
/// A value beyond [`BOUNDS`] isn't kept at all, only by how much it exceeds them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Json(Result<Arc<str>, Excess>);

impl Default for Json {
    /// null.
    fn default() -> Self {
        Self(Ok("null".into()))
    }
}

impl Json {
    /// Reads a text.
    ///
    /// # Errors
    /// It is no JSON. A text beyond [`BOUNDS`] is no error here: see [`Self::excess`].
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        match BOUNDS.check(text.as_bytes()) {
            Ok(_) => serde_json::from_str::<Value>(text).map(Self::from),
            Err(excess) => Ok(Self(Err(excess))),
        }
    }

    /// The value as a tree; null when it is beyond [`BOUNDS`].
    pub fn tree(&self) -> Value {
        let text = self.0.as_deref().ok();
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// The text; empty when the value is beyond [`BOUNDS`].
    pub fn text(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// By how much the value is beyond [`BOUNDS`].
    pub fn excess(&self) -> Option<Excess> {
        self.0.as_ref().err().copied()
    }
}

/// The string at a JSON pointer (RFC 6901) of a value; empty where there is none.
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The array at a JSON pointer of a value; empty where there is none.
pub fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// What an absent object is read as.
pub(crate) static EMPTY: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);

/// The map `labels` or `annotations` of an object's metadata; empty where there is none.
pub fn metadata_map<'a>(object: &'a Value, map: &str) -> &'a Map<String, Value> {
    let map = object.get("metadata").and_then(|metadata| metadata.get(map));
    map.and_then(Value::as_object).unwrap_or(&EMPTY)
}

/// Returns the value of a label of an object, or `None` if the object lacks the label or its value is not a string.
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    metadata_map(object, "labels").get(key)?.as_str()
}

/// Returns the value of an annotation of an object, or `None` if the object lacks the annotation or its value is not a string.
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    metadata_map(object, "annotations").get(key)?.as_str()
}

impl From<Value> for Json {
    fn from(value: Value) -> Self {
        let text = value.to_string();
        Self(BOUNDS.check(text.as_bytes()).map(|_| text.into()))
    }
}

impl Serialize for Json {
    /// # Errors
    /// The value is beyond [`BOUNDS`], so that nobody writes it back without what it had.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(_) => self.tree().serialize(serializer),
            Err(excess) => Err(S::Error::custom(excess)),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Self::read(raw.get()).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_number_is_the_same_after_it_was_read_again() {
        for number in ["8.059102547051436e+276", "8.579260954752026e-153", "0.1", "-3.9203096997059984e+153"]
        {
            let kept = Json::read(number).unwrap();
            assert_eq!(kept.text(), number);
            assert_eq!(Json::from(kept.tree()), kept);
        }
    }

    #[test]
    fn equal_values_have_equal_texts() {
        let read = |text: &str| Json::read(text).unwrap();
        assert_eq!(read(r#"{"b": 1,  "a": [ ]}"#), json!({"a": [], "b": 1}).into());
        assert_eq!(read(r#"{"b": 1,  "a": [ ]}"#).text(), r#"{"a":[],"b":1}"#);
        assert_ne!(read("1"), read("2"));
        assert!(Json::read("{").is_err());
        assert_eq!(Json::default().tree(), Value::Null);
    }

    #[test]
    fn from_text_and_from_a_tree_it_is_read_alike() {
        #[derive(serde::Deserialize, serde::Serialize, Debug, PartialEq)]
        struct Holder {
            free: Json,
        }
        let value = json!({"free": {"x": [1, {"y": null}]}});
        let from_tree: Holder = serde_json::from_value(value.clone()).unwrap();
        let from_text: Holder = serde_json::from_str(&value.to_string()).unwrap();
        assert_eq!(from_tree, from_text);
        assert_eq!(serde_json::to_value(&from_tree).unwrap(), value);
    }

    #[test]
    fn labels_and_annotations_are_read_from_any_value() {
        let object = json!({"metadata": {"labels": {"a/b": "c", "n": 1}, "annotations": {"d": "e"}}});
        assert_eq!(
            (label(&object, "a/b"), label(&object, "n"), label(&object, "d")),
            (Some("c"), None, None)
        );
        assert_eq!((annotation(&object, "d"), annotation(&object, "a/b")), (Some("e"), None));
        for other in [json!({"metadata": {"labels": []}}), json!({"metadata": 1}), json!([]), Value::Null] {
            assert!(metadata_map(&other, "labels").is_empty(), "{other}");
        }
    }

    #[test]
    fn what_is_beyond_the_bounds_is_reported_and_not_kept() {
        let many = format!("[{}1]", r#"{"a":0},"#.repeat(15_000));
        let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
        let long = format!("\"{}\"", "x".repeat(BOUNDS.bytes));
        for (text, excess) in [(&many, "30002 values"), (&deep, "10000 levels"), (&long, "524290 bytes")] {
            let json: Json = serde_json::from_str(text).unwrap();
            assert!(json.excess().unwrap().to_string().contains(excess), "{:?}", json.excess());
            assert_eq!((json.text(), json.tree()), ("", Value::Null));
            serde_json::to_string(&json).unwrap_err();
        }
        let most = format!("[{}]", vec!["0"; BOUNDS.values - 1].join(","));
        assert_eq!(Json::read(&most).unwrap().excess(), None);
    }
}
