//! Whether an installation is in order: what a cluster has, held against what is shipped.
//!
//! **In**: objects as an API server gives them, those that are shipped, and what probes and clocks have told, as plain data.
//! **Out**: findings. **Caller**: `outrigger check --live`, which reads the cluster.

pub(crate) mod admission;
pub(crate) mod certificates;
pub(crate) mod definitions;
pub(crate) mod difference;
pub(crate) mod parts;
pub(crate) mod reach;
pub(crate) mod rights;
pub(crate) mod versions;

use serde_json::Value;

use crate::check::findings::{Finding, MISSING, Subject};

/// Characters of a value that a message shows, at most: a rule may be long, and a line has to be read.
const SHOWN: usize = 160;

/// The most findings of one kind about one object that are told one by one.
pub(crate) const EACH: usize = 8;

/// What is known of an object that was asked for by its name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Found<'a> {
    /// It is there.
    There(&'a Value),
    /// It isn't.
    Absent,
    /// It couldn't be read, so nothing may be said of it.
    Unread,
}

/// What an object is called.
pub(crate) fn subject(object: &Value) -> Subject {
    let text = |pointer: &str| text(object, pointer).to_owned();
    Subject { kind: text("/kind"), namespace: text("/metadata/namespace"), name: text("/metadata/name") }
}

/// That an object isn't there.
pub(crate) fn missing(wanted: &Value) -> Finding {
    Finding::new(&MISSING, &subject(wanted), "", "isn't there")
}

/// The text at a place of an object; empty where there is none.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The list at a place of an object; empty where there is none.
pub(crate) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Two values as a message shows them: of long ones the places where they differ.
pub(crate) fn apart(found: Option<&Value>, wanted: Option<&Value>) -> (String, String) {
    let (Some(Value::String(a)), Some(Value::String(b))) = (found, wanted) else {
        return (shown(found), shown(wanted));
    };
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
    // Some of what is the same says where this is.
    let skipped = if same < SHOWN / 2 { 0 } else { same - SHOWN / 4 };
    let rest = |text: &str| {
        let rest: String = text.chars().skip(skipped).collect();
        let dots = if skipped == 0 { "" } else { "... " };
        format!("{:?}", short(&format!("{dots}{rest}")))
    };
    (rest(a), rest(b))
}

/// A value as a message shows it.
pub(crate) fn shown(value: Option<&Value>) -> String {
    let Some(value) = value else { return "absent".to_owned() };
    short(&value.to_string())
}

/// A text as a message shows it: in one line, and not all of a long one.
pub(crate) fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests;
