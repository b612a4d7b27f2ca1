//! Fields of an object, read as the API server's decoder reads them: null is absent, and a wrong type is a fault.

use std::fmt;

use serde_json::{Map, Value};

use crate::field::{self, FieldError, FieldErrors, join};
use crate::json::EMPTY;

/// Reads fields, and collects what is wrong.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// What was wrong so far, in the order of the fields.
    pub(crate) faults: Vec<FieldError>,
}

impl Reader {
    /// Adds a fault.
    pub(crate) fn fault(&mut self, path: impl fmt::Display, message: impl fmt::Display) {
        self.faults.add(path, message);
    }

    /// An object, `None` where it is absent.
    pub(crate) fn object<'a>(
        &mut self,
        parent: &'a Map<String, Value>,
        path: &str,
        key: &str,
    ) -> Option<&'a Map<String, Value>> {
        self.typed(parent, path, key, "an object", Value::as_object)
    }

    /// A text, empty where it is absent.
    pub(crate) fn text<'a>(&mut self, parent: &'a Map<String, Value>, path: &str, key: &str) -> &'a str {
        self.optional_text(parent, path, key).unwrap_or_default()
    }

    /// A text, `None` where it is absent.
    pub(crate) fn optional_text<'a>(
        &mut self,
        parent: &'a Map<String, Value>,
        path: &str,
        key: &str,
    ) -> Option<&'a str> {
        self.typed(parent, path, key, "a string", Value::as_str)
    }

    /// An integer of 64 bits, 0 where it is absent.
    pub(crate) fn integer(&mut self, parent: &Map<String, Value>, path: &str, key: &str) -> i64 {
        self.typed(parent, path, key, "an integer of 64 bits", Value::as_i64).unwrap_or_default()
    }

    /// A boolean, false where it is absent.
    pub(crate) fn boolean(&mut self, parent: &Map<String, Value>, path: &str, key: &str) -> bool {
        self.typed(parent, path, key, "a boolean", Value::as_bool).unwrap_or_default()
    }

    /// The objects of a list, with their paths; none of them where there are more than `max`, which is a fault by itself.
    pub(crate) fn objects<'a>(
        &mut self,
        parent: &'a Map<String, Value>,
        path: &str,
        key: &str,
        max: usize,
    ) -> Vec<(String, &'a Map<String, Value>)> {
        let null = Some(&*EMPTY);
        self.list(parent, path, key, max, "an object", |v| if v.is_null() { null } else { v.as_object() })
    }

    /// The texts of a list, with their paths; none of them where there are more than `max`.
    pub(crate) fn texts<'a>(
        &mut self,
        parent: &'a Map<String, Value>,
        path: &str,
        key: &str,
        max: usize,
    ) -> Vec<(String, &'a str)> {
        self.list(parent, path, key, max, "a string", |v| if v.is_null() { Some("") } else { v.as_str() })
    }

    fn list<'a, T>(
        &mut self,
        parent: &'a Map<String, Value>,
        path: &str,
        key: &str,
        max: usize,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Vec<(String, T)> {
        let list = self.typed(parent, path, key, "a list", Value::as_array).map_or(&[][..], Vec::as_slice);
        let path = join(path, key);
        if list.len() > max {
            // Saying more of a list that is too long could fill memory.
            self.fault(path, format_args!("has {} entries, at most {max} are allowed", list.len()));
            return Vec::new();
        }
        let mut entries = Vec::with_capacity(list.len());
        for (i, value) in list.iter().enumerate() {
            let path = format!("{path}[{i}]");
            match read(value) {
                Some(entry) => entries.push((path, entry)),
                None => self.faults.push(FieldError::wrong_type(&path, value, wanted)),
            }
        }
        entries
    }

    fn typed<'a, T>(
        &mut self,
        parent: &'a Map<String, Value>,
        path: &str,
        key: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Option<T> {
        field::typed(parent, path, key, wanted, read).unwrap_or_else(|fault| {
            self.faults.push(fault);
            None
        })
    }
}
