//! How large a JSON text is as a tree, measured on its bytes before it becomes one.
//!
//! A value of two bytes (`{}`) takes some 70 bytes in a [`serde_json::Value`], so a limit on the bytes of a text says little about
//! the memory that its tree takes. Whoever makes a tree of a text from outside measures the text first.

/// How many values a text may have, and how deep they may be nested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Most bytes.
    pub bytes: usize,
    /// Most values: texts, numbers, booleans, nulls, lists and objects. The keys of objects aren't counted, their values are.
    pub values: usize,
    /// Most lists and objects within each other. serde_json itself ends at 128.
    pub depth: usize,
}

/// What a text has of what is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measured {
    /// Bytes.
    pub bytes: usize,
    /// Values, counted as [`Bounds::values`] says.
    pub values: usize,
    /// Depth of the deepest.
    pub depth: usize,
}

impl Measured {
    /// Bytes that the tree of the text takes at most, about: what the text holds, and for each value the value itself, its place in
    /// the list or map that holds it, and its key.
    pub fn weight(self) -> usize {
        self.bytes.saturating_add(self.values.saturating_mul(VALUE))
    }
}

/// Bytes that a value takes in a tree, its place in the map that holds it and the allocation of its key included. Maps reserve
/// eleven places at once, so an object with one entry takes several times as much as the entry.
pub const VALUE: usize = 384;

/// A text that is beyond its bounds: how much it has, and how much is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Excess {
    /// More bytes than allowed.
    #[error("has {0} bytes of JSON, at most {1} are allowed")]
    Bytes(usize, usize),
    /// More values than allowed.
    #[error("has {0} values (texts, numbers, lists, objects), at most {1} are allowed")]
    Values(usize, usize),
    /// Nested deeper than allowed.
    #[error("is nested {0} levels deep, at most {1} are allowed")]
    Depth(usize, usize),
}

impl Bounds {
    /// Measures a text and compares it with the bounds.
    ///
    /// # Errors
    /// The first bound that the text exceeds: bytes, then depth, then values.
    pub fn check(&self, json: &[u8]) -> Result<Measured, Excess> {
        if json.len() > self.bytes {
            return Err(Excess::Bytes(json.len(), self.bytes));
        }
        let measured = measure(json);
        if measured.depth > self.depth {
            return Err(Excess::Depth(measured.depth, self.depth));
        }
        if measured.values > self.values {
            return Err(Excess::Values(measured.values, self.values));
        }
        Ok(measured)
    }
}

/// Measures a JSON text, in one pass and without an allocation. For what is no JSON the numbers mean nothing: a parser refuses it
/// afterwards, and has made at most as many values as were counted here.
pub fn measure(json: &[u8]) -> Measured {
    let mut scan = Scan { measured: Measured { bytes: json.len(), ..Measured::default() }, depth: 0 };
    let mut at = 0;
    while let Some(&byte) = json.get(at) {
        at = match byte {
            b'"' => scan.text(json, at),
            b'{' | b'[' => scan.open(at),
            b'}' | b']' => scan.close(at),
            b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' => at + 1,
            _ => scan.word(json, at),
        };
    }
    scan.measured
}

struct Scan {
    measured: Measured,
    depth: usize,
}

impl Scan {
    fn open(&mut self, at: usize) -> usize {
        self.measured.values += 1;
        self.depth += 1;
        self.measured.depth = self.measured.depth.max(self.depth);
        at + 1
    }

    fn close(&mut self, at: usize) -> usize {
        self.depth = self.depth.saturating_sub(1);
        at + 1
    }

    /// A text is a value, unless a colon follows: then it is a key.
    fn text(&mut self, json: &[u8], at: usize) -> usize {
        let end = end_of_text(json, at + 1);
        let next = json[end..].iter().find(|byte| !byte.is_ascii_whitespace());
        if next != Some(&b':') {
            self.measured.values += 1;
        }
        end
    }

    /// A number, `true`, `false` or `null`.
    fn word(&mut self, json: &[u8], at: usize) -> usize {
        self.measured.values += 1;
        let rest = &json[at..];
        let length = rest.iter().position(|byte| {
            matches!(byte, b',' | b':' | b'}' | b']' | b'{' | b'[' | b'"') || byte.is_ascii_whitespace()
        });
        at + length.unwrap_or(rest.len()).max(1)
    }
}

/// The place after the quote that ends a text, which begins at `at`.
fn end_of_text(json: &[u8], mut at: usize) -> usize {
    while let Some(&byte) = json.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    json.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// What a tree really has.
    fn counted(value: &Value) -> (usize, usize) {
        let children: Vec<(usize, usize)> = match value {
            Value::Array(list) => list.iter().map(counted).collect(),
            Value::Object(map) => map.values().map(counted).collect(),
            _ => return (1, 0),
        };
        let deepest = children.iter().map(|(_, depth)| *depth).max().unwrap_or_default();
        (1 + children.iter().map(|(values, _)| values).sum::<usize>(), 1 + deepest)
    }

    proptest! {
        #[test]
        fn a_text_has_as_many_values_as_its_tree(value in outrigger_cases::any::json(".*", ".*", 6), pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
            let measured = measure(text.as_bytes());
            prop_assert_eq!((measured.values, measured.depth), counted(&value), "{}", text);
        }

        /// Whatever is no JSON ends, and a parser makes no more of it than was counted.
        #[test]
        fn any_bytes_are_measured(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let measured = measure(&bytes);
            if let Ok(value) = serde_json::from_slice::<Value>(&bytes) {
                prop_assert!(counted(&value).0 <= measured.values);
            }
        }
    }

    #[test]
    fn each_bound_is_reported_with_both_numbers() {
        let bounds = Bounds { bytes: 40, values: 5, depth: 3 };
        let error = |value: Value| bounds.check(value.to_string().as_bytes()).unwrap_err().to_string();
        assert!(bounds.check(br#"{"a": [1, {"b": null}], "c": ""}"#).is_err(), "six values");
        assert!(bounds.check(br#"{"a": [{"b": null}], "c": ""}"#).is_ok());
        assert!(error(json!([1, 2, 3, 4, 5])).starts_with("has 6 values"));
        assert!(error(json!([1, 2, 3, 4, 5])).contains("at most 5"));
        assert_eq!(error(json!([[[[]]]])), "is nested 4 levels deep, at most 3 are allowed");
        assert_eq!(error(json!("x".repeat(40))), "has 42 bytes of JSON, at most 40 are allowed");
        let most = json!("x".repeat(38)).to_string();
        assert_eq!(bounds.check(most.as_bytes()), Ok(Measured { bytes: 40, values: 1, depth: 0 }));
    }

    #[test]
    fn a_tree_weighs_the_text_and_its_values() {
        let measured = measure(br#"{"a": [1]}"#);
        assert_eq!(measured, Measured { bytes: 10, values: 3, depth: 2 });
        assert_eq!(measured.weight(), 10 + 3 * VALUE);
    }

    /// A key that appears twice counts twice, although the tree has it once: a parser makes both.
    #[test]
    fn what_is_overwritten_counts() {
        assert_eq!(measure(br#"{"a":1,"a":2}"#).values, 3);
    }

    #[test]
    fn what_stands_in_a_text_is_no_structure() {
        for (text, values) in [
            (r#"{"a\"b" : "c\\", "d": "[{,\"]"}"#, 3),
            (r#"["\\\"", "\\", 1]"#, 4),
            (r#"{"a\\" : {"b\u0022":[]}}"#, 3),
        ] {
            assert_eq!(serde_json::from_str::<Value>(text).map(|value| counted(&value).0).ok(), Some(values));
            assert_eq!(measure(text.as_bytes()).values, values, "{text}");
        }
    }
}
