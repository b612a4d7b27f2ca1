//! SARIF 2.1.0 (OASIS), as much of it as code scanners read.

use serde_json::{Value, json};

use super::Report;
use crate::check::findings::{CHECKS, Check, Finding};

const SCHEMA: &str = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json";

/// One log with one run.
pub(super) fn log(report: &Report) -> Value {
    let rule = |check: &&Check| {
        let mut rule = json!({"id": check.id, "shortDescription": {"text": check.summary},
            "help": {"text": check.help}, "defaultConfiguration": {"level": check.severity.as_str()}});
        if let Some(reason) = check.reason {
            rule["properties"] = json!({"reason": reason.as_str()});
        }
        rule
    };
    let notes: Vec<Value> =
        report.notes.iter().map(|note| json!({"level": "note", "message": {"text": note}})).collect();
    let driver = json!({"name": "outrigger", "semanticVersion": env!("CARGO_PKG_VERSION"),
        "rules": CHECKS.iter().map(rule).collect::<Vec<_>>()});
    json!({"$schema": SCHEMA, "version": "2.1.0", "runs": [{
        "tool": {"driver": driver},
        // Not all could be looked at, and all that could was.
        "invocations": [{"executionSuccessful": true, "toolExecutionNotifications": notes}],
        "results": report.findings.iter().map(|finding| result(finding, report)).collect::<Vec<_>>()}]})
}

fn result(finding: &Finding, report: &Report) -> Value {
    let Finding { check, subject, path, .. } = finding;
    let name = if path.is_empty() { subject.to_string() } else { format!("{subject} {path}") };
    let mut location = json!({"logicalLocations": [{"fullyQualifiedName": name, "kind": "object"}]});
    if let Some(file) = report.files.get(subject) {
        location["physicalLocation"] = json!({"artifactLocation": {"uri": uri(file)}});
    }
    let text = format!("{subject}: {}", finding.text());
    json!({"ruleId": check.id, "ruleIndex": CHECKS.iter().position(|known| known.id == check.id),
        "level": check.severity.as_str(), "message": {"text": text}, "locations": [location]})
}

/// A path as a relative or absolute URI reference (RFC 3986).
fn uri(file: &str) -> String {
    let file = file.strip_prefix("./").unwrap_or(file);
    let mut uri = if file.starts_with('/') { "file://".to_owned() } else { String::new() };
    for byte in file.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                uri.push(char::from(byte));
            }
            other => uri.push_str(&format!("%{other:02X}")),
        }
    }
    uri
}
