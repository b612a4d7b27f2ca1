//! CustomResourceDefinitions, held against those of this version.

use serde_json::Value;

use super::difference::{Difference, differences};
use super::{EACH, list, shown, subject, text};
use crate::check::{DEFINITION, Finding};

/// Whether a definition is served, and has everything that this version's has. What it has beyond that is a newer version's,
/// which comes before the parts that use it.
pub fn definition(wanted: &Value, found: &Value) -> Vec<Finding> {
    let subject = subject(found);
    let mut findings = Vec::new();
    for kind in ["Established", "NamesAccepted"] {
        let condition = list(found, "/status/conditions").iter().find(|c| text(c, "/type") == kind);
        if condition.is_none_or(|condition| text(condition, "/status") != "True") {
            let why = condition.map_or("", |condition| text(condition, "/message"));
            let message = format!("the API server doesn't say {kind}: {why}");
            findings.push(Finding::new(
                &DEFINITION,
                &subject,
                "status.conditions",
                message.trim_end_matches(": "),
            ));
        }
    }
    if text(wanted, "/spec/scope") != text(found, "/spec/scope") {
        let message = format!("is {}; has to be {}", text(found, "/spec/scope"), text(wanted, "/spec/scope"));
        findings.push(Finding::new(&DEFINITION, &subject, "spec.scope", message));
    }
    for version in list(wanted, "/spec/versions") {
        let name = text(version, "/name");
        let at = list(found, "/spec/versions").iter().position(|other| text(other, "/name") == name);
        let Some(i) = at else {
            let message = format!("has no version {name:?}");
            findings.push(Finding::new(&DEFINITION, &subject, "spec.versions", message));
            continue;
        };
        let other = &list(found, "/spec/versions")[i];
        let path = format!("spec.versions[{i}]");
        for field in ["served", "subresources", "schema"] {
            let (wanted, found) = (version.get(field).map(bare), other.get(field).map(bare));
            let lacking = differences(&format!("{path}.{field}"), wanted.as_ref(), found.as_ref());
            // What is only there, and not wanted, is newer.
            let lacking = lacking.into_iter().filter(|difference| !is_newer(difference));
            findings.extend(lacking.take(EACH).map(|d| {
                let message = format!("is {}; this version's is {}", shown(d.found), shown(d.wanted));
                Finding::new(&DEFINITION, &subject, d.path, message)
            }));
        }
    }
    findings
}

/// Whether something is only added: a field, or values that a field may have.
fn is_newer(difference: &Difference<'_>) -> bool {
    let Some(wanted) = difference.wanted else { return true };
    let all = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let found = all(difference.found);
    difference.path.ends_with(".enum") && all(Some(wanted)).iter().all(|value| found.contains(value))
}

/// A schema without what it says to people.
fn bare(schema: &Value) -> Value {
    match schema {
        Value::Object(map) => {
            // A property may be called "description": that one is an object.
            let kept = map.iter().filter(|(key, value)| key.as_str() != "description" || !value.is_string());
            Value::Object(kept.map(|(key, value)| (key.clone(), bare(value))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(bare).collect()),
        other => other.clone(),
    }
}
