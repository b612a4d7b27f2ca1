//! Finds the field that makes an object too large, without a value tree.

use std::borrow::Cow;
use std::fmt;

use outrigger_core::bounds::measure;
use outrigger_core::text::quoted;
use serde::Deserializer;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Maximum number of fields in a path. Each step reads at most what the step before has read.
const DEPTH: usize = 8;

/// Maximum size of a review that is searched, in bytes: it is read once for each field of the path.
const MAX_BYTES: usize = 1 << 20;

/// The path, in the object of a review, of the innermost field that has more than half of the object's values; `None` where there is
/// none, the review is longer than [`MAX_BYTES`], or it can't be read.
pub(super) fn field(review: &[u8]) -> Option<String> {
    if review.len() > MAX_BYTES {
        return None;
    }
    let mut json: &RawValue = serde_json::from_slice(review).ok()?;
    for wanted in ["request", "object"] {
        json = Members::of(json, Some(wanted))?.best?.json;
    }
    let half = measure(json.get().as_bytes()).values / 2;
    let mut path = String::new();
    for _ in 0..DEPTH {
        let Some(Member { name, json: inner, .. }) =
            Members::of(json, None).and_then(|members| members.best).filter(|best| best.values > half)
        else {
            break;
        };
        path.push_str(&name);
        json = inner;
    }
    Some(path.trim_start_matches('.').to_owned()).filter(|path| !path.is_empty())
}

/// A member of an object or of a list.
struct Member<'de> {
    /// `.key` or `[0]`.
    name: String,
    json: &'de RawValue,
    values: usize,
}

/// The largest member, or the one of this key.
struct Members<'de, 'k> {
    key: Option<&'k str>,
    best: Option<Member<'de>>,
}

impl<'de, 'k> Members<'de, 'k> {
    fn of(json: &'de RawValue, key: Option<&'k str>) -> Option<Self> {
        let members = Members { key, best: None };
        serde_json::Deserializer::from_str(json.get()).deserialize_any(members).ok()
    }

    fn see(&mut self, json: &'de RawValue, name: impl FnOnce() -> String) {
        let values = measure(json.get().as_bytes()).values;
        if self.best.as_ref().is_none_or(|best| best.values < values) {
            self.best = Some(Member { name: name(), json, values });
        }
    }
}

impl<'de> Visitor<'de> for Members<'de, '_> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or a list")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some((key, json)) = map.next_entry::<Cow<'de, str>, &'de RawValue>()? {
            if self.key.is_none_or(|wanted| wanted == key) {
                self.see(json, || format!(".{}", quoted(&key)));
            }
        }
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Self, A::Error> {
        let mut at = 0_usize;
        while let Some(json) = list.next_element::<&'de RawValue>()? {
            self.see(json, || format!("[{at}]"));
            at += 1;
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::field;

    fn of(object: &Value) -> Option<String> {
        let old = json!({"spec": {"old": vec![0; 9000]}});
        field(json!({"request": {"uid": "u", "object": object, "oldObject": old}}).to_string().as_bytes())
    }

    #[test]
    fn the_field_that_has_most_values_is_named() {
        let many = vec![json!({"a": 0}); 500];
        for (object, path) in [
            (
                json!({"spec": {"template": {"junk": many, "spec": {"x": [1, 2]}}}}),
                Some("spec.template.junk"),
            ),
            (json!({"spec": {"containers": [{}, {"env": many}]}}), Some("spec.containers[1].env")),
            // Half of it each.
            (json!({"spec": {"a": many, "b": many}}), Some("spec")),
            (json!({"a": many, "b": many}), None),
            (json!({}), None),
            (json!(null), None),
            (json!({"x".repeat(500): many}), Some(&*("x".repeat(79) + "…"))),
        ] {
            assert_eq!(of(&object).as_deref(), path, "{object}");
        }
        let review = |text: &str| json!({"request": {"object": {"a": text, "b": many}}}).to_string();
        let longest = super::MAX_BYTES - review("").len();
        assert_eq!(field(review(&"x".repeat(longest)).as_bytes()).as_deref(), Some("b"));
        assert_eq!(field(review(&"x".repeat(longest + 1)).as_bytes()), None, "it is too long");
        for broken in ["", "{", "[]", r#"{"request":[1]}"#, r#"{"request":{"object":{"a":[1,"#] {
            assert_eq!(field(broken.as_bytes()), None, "{broken}");
        }
    }

    #[test]
    fn a_path_ends_somewhere() {
        let mut deep = json!(vec![0; 100]);
        for _ in 0..90 {
            deep = json!({"a": deep});
        }
        assert_eq!(of(&deep).unwrap(), "a.a.a.a.a.a.a.a");
    }
}
