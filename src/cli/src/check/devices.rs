//! Device claims: ResourceClaims, their templates, and claims of rules.

use std::collections::BTreeSet;

use outrigger_core::device;
use outrigger_core::json::text;
use serde_json::Value;

use super::findings::{API_REFUSES, DROPPED_FIELD, Finding, NEVER_ALLOCATED, NO_CLASS, Subject};

/// Judges a claim's spec, which is at `path`, as API server and scheduler will.
pub(crate) fn spec(subject: &Subject, spec: &Value, path: &str) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        Finding::of_faults(&API_REFUSES, subject, device::faults(spec, path)).collect();
    if !findings.is_empty() {
        return findings;
    }
    for warning in device::warnings(spec) {
        // They begin with the path below the spec.
        let (below, words) = warning.split_once(": ").unwrap_or(("devices", &warning));
        findings.push(Finding::new(&NEVER_ALLOCATED, subject, format_args!("{path}.{below}"), words));
    }
    for field in device::gated(spec) {
        let message =
            format!("is dropped where {} is off: by default before Kubernetes 1.{}", field.gate, field.since);
        findings.push(Finding::new(&DROPPED_FIELD, subject, format_args!("{path}.{}", field.path), message));
    }
    findings
}

/// Requests for classes that don't exist. `classes`: the names of those that do.
pub(crate) fn classes(subject: &Subject, spec: &Value, path: &str, classes: &BTreeSet<&str>) -> Vec<Finding> {
    let missing = |(below, request): (String, &Value)| {
        let class = text(request, "/deviceClassName");
        (!class.is_empty() && !classes.contains(class)).then(|| {
            let path = format!("{path}.{below}.deviceClassName");
            Finding::new(&NO_CLASS, subject, path, format_args!("is {class:?}, which doesn't exist"))
        })
    };
    device::subrequests(spec).into_iter().filter_map(missing).collect()
}
