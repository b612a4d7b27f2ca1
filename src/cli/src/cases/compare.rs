//! What was decided beside what was expected.

use outrigger_admission::Decision;
use serde_json::Value;

use super::Expect;

/// Everything that isn't as expected.
pub(super) fn faults(expect: &Expect, decision: &Decision, object: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let none = Vec::new();
    let (allowed, message, patched, warnings) = match decision {
        Decision::Allow { patch, warnings, .. } => (true, "", !patch.0.is_empty(), warnings),
        Decision::Deny { message, .. } => (false, message.as_str(), false, &none),
    };
    if allowed != expect.allowed {
        let why = if message.is_empty() { String::new() } else { format!(": {message}") };
        faults.push(format!("allowed: is {allowed}, expected {}{why}", expect.allowed));
        // The rest would only repeat it.
        return faults;
    }
    if let Some(wanted) = expect.patched.filter(|wanted| *wanted != patched) {
        faults.push(format!("patched: is {patched}, expected {wanted}"));
    }
    if let Some(part) = expect.message.as_ref().filter(|part| !message.contains(*part)) {
        faults.push(format!("message: has no {part:?}: {message:?}"));
    }
    match &expect.warnings {
        Some(parts) if parts.is_empty() && !warnings.is_empty() => {
            faults.push(format!("warnings: expected none: {warnings:?}"));
        }
        parts => {
            for part in parts.iter().flatten().filter(|part| !warnings.iter().any(|w| w.contains(*part))) {
                faults.push(format!("warnings: none has {part:?}: {warnings:?}"));
            }
        }
    }
    if let Some(wanted) = &expect.pod {
        subset(wanted, object, "pod", &mut faults);
    }
    faults
}

/// The differences of `found` from `wanted`: objects have at least these members, lists exactly these entries, and null is what
/// isn't there.
fn subset(wanted: &Value, found: &Value, path: &str, faults: &mut Vec<String>) {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            for (key, wanted) in wanted {
                let path =
                    if key.contains(['.', '/']) { format!("{path}[{key}]") } else { format!("{path}.{key}") };
                subset(wanted, found.get(key).unwrap_or(&Value::Null), &path, faults);
            }
        }
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            for (i, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                subset(wanted, found, &format!("{path}[{i}]"), faults);
            }
        }
        (wanted, found) if wanted == found => {}
        (wanted, Value::Null) => faults.push(format!("{path}: is absent, expected {wanted}")),
        (wanted, found) => faults.push(format!("{path}: is {found}, expected {wanted}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_subset_is_what_is_asked_for_and_no_more() {
        let found = json!({"a": {"b": 1, "c": [{"d": 2, "e": 3}]}, "x.y/z": "1", "n": null});
        for (wanted, faults) in [
            (json!({}), &[][..]),
            (json!({"a": {"b": 1}}), &[]),
            (json!({"a": {"c": [{"d": 2}]}}), &[]),
            (json!({"none": null, "n": null}), &[]),
            (json!({"a": {"b": 2}}), &["pod.a.b: is 1, expected 2"]),
            (json!({"a": null}), &["pod.a: is {\"b\":1,\"c\":[{\"d\":2,\"e\":3}]}, expected null"]),
            (json!({"a": {"c": []}}), &["pod.a.c: is [{\"d\":2,\"e\":3}], expected []"]),
            (
                json!({"a": {"c": [{"d": 1}]}, "q": 1}),
                &["pod.a.c[0].d: is 2, expected 1", "pod.q: is absent, expected 1"],
            ),
            (json!({"x.y/z": "2"}), &["pod[x.y/z]: is \"1\", expected \"2\""]),
        ] {
            let mut got = Vec::new();
            subset(&wanted, &found, "pod", &mut got);
            assert_eq!(got, faults, "{wanted}");
        }
    }
}
