//! Which faults of an object were there before an update. A fault is the same where it says the same of the same thing: not where it
//! stands at the same place of a list, because other clients insert and remove entries.

use serde_json::Value;

use crate::field::FieldError;
use crate::map::HashMap;
use crate::steps::step;

/// Lists of a Pod whose entries are known by their names, and may change otherwise. Entries of all other lists are what they contain.
const NAMED: [&str; 4] = ["containers", "initContainers", "ephemeralContainers", "volumes"];

/// The faults of `object` that are not faults of `old`. A fault that was there once excuses one, not two: a list may hold the same
/// thing again.
pub fn added(faults: &[FieldError], object: &Value, before: &[FieldError], old: &Value) -> Vec<FieldError> {
    let mut excused: HashMap<Identity<'_>, usize> = HashMap::default();
    for fault in before {
        step();
        *excused.entry(Identity::of(fault, old)).or_default() += 1;
    }
    let mut added = Vec::new();
    for fault in faults {
        step();
        match excused.get_mut(&Identity::of(fault, object)).filter(|count| **count > 0) {
            Some(count) => *count -= 1,
            None => added.push(fault.clone()),
        }
    }
    added
}

/// What tells a fault from others.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Identity<'a> {
    path: Vec<Part<'a>>,
    message: &'a str,
}

/// A step of a path.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Part<'a> {
    /// A field, or a key of a map.
    Field(&'a str),
    /// The entry of a list that has this name.
    Named(&'a str),
    /// The entry of a list with this content.
    Entry(&'a Value),
}

impl<'a> Identity<'a> {
    fn of(fault: &'a FieldError, object: &'a Value) -> Self {
        Self { path: parts(&fault.path, object), message: &fault.message }
    }
}

/// The steps of a path, with what the object has in place of the indexes.
fn parts<'a>(path: &'a str, object: &'a Value) -> Vec<Part<'a>> {
    let (mut parts, mut at, mut list, mut rest) = (Vec::new(), Some(object), "", path);
    while !rest.is_empty() {
        let entry = index(rest).and_then(|(i, after)| Some((at?.as_array()?.get(i)?, after)));
        if let Some((entry, after)) = entry {
            let name = entry.get("name").and_then(Value::as_str).filter(|_| NAMED.contains(&list));
            parts.push(name.map_or(Part::Entry(entry), Part::Named));
            (at, rest) = (Some(entry), after.trim_start_matches('.'));
            continue;
        }
        // A key of a map may have any characters in it, and nothing follows it.
        let end =
            if rest.starts_with('[') { rest.len() } else { rest.find(['.', '[']).unwrap_or(rest.len()) };
        let (field, after) = rest.split_at(end);
        parts.push(Part::Field(field));
        at = at.and_then(|at| at.get(field));
        (list, rest) = (field, after.trim_start_matches('.'));
    }
    parts
}

/// The index with which a path begins, and the rest of the path.
fn index(path: &str) -> Option<(usize, &str)> {
    let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
    Some((index.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_is_what_it_leads_to() {
        let object = json!({"spec": {"containers": [{"name": "a"}, {"name": "b", "ports": [{"p": 1}, {"p": 2}]}],
            "tolerations": [{"name": "x", "y": 1}]}});
        let port = json!({"p": 2});
        let toleration = json!({"name": "x", "y": 1});
        let (field, named) = (Part::Field, Part::Named);
        for (path, expected) in [
            ("", vec![]),
            ("spec.x", vec![field("spec"), field("x")]),
            (
                "spec.containers[1].ports[1].hostPort",
                vec![
                    field("spec"),
                    field("containers"),
                    named("b"),
                    field("ports"),
                    Part::Entry(&port),
                    field("hostPort"),
                ],
            ),
            ("spec.tolerations[0]", vec![field("spec"), field("tolerations"), Part::Entry(&toleration)]),
            (
                "spec.containers[0].requests[a.b/c[0].d]",
                vec![
                    field("spec"),
                    field("containers"),
                    named("a"),
                    field("requests"),
                    field("[a.b/c[0].d]"),
                ],
            ),
            ("spec.tolerations[7]", vec![field("spec"), field("tolerations"), field("[7]")]),
            ("spec.containers[x", vec![field("spec"), field("containers"), field("[x")]),
        ] {
            assert_eq!(parts(path, &object), expected, "{path}");
        }
    }
}
