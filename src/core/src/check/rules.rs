//! Rules, tenants' and the platform's.

use serde_json::Value;

use super::{API_REFUSES, DANGLING, Finding, NEVER_MATCHES, NO_NODE, PLACEMENT, Subject, devices};
use crate::device;
use crate::lint::{self, Around, Doubt};
use crate::rule::Rule;

/// What is doubtful about a rule that is valid.
pub fn doubts(subject: &Subject, rule: &Rule, around: &Around<'_>) -> Vec<Finding> {
    let finding = |(doubt, message): (Doubt, String)| {
        let (check, path) = match doubt {
            Doubt::Reference => (&DANGLING, "spec.template"),
            Doubt::Placement => (&PLACEMENT, "spec.template.spec"),
            Doubt::AnyHost => (&PLACEMENT, "spec.deviceHostAttribute"),
            Doubt::NoNode => (&NO_NODE, "spec.template.spec"),
            Doubt::NoWorkload => (&NEVER_MATCHES, "spec.workloadTerms"),
        };
        let prefix = format!("{path}: ");
        let short = message.strip_prefix(&prefix).or_else(|| message.strip_prefix("template: "));
        Finding::new(check, subject, path, short.unwrap_or(&message))
    };
    lint::doubts(rule, around).into_iter().map(finding).collect()
}

/// What the API server will say of a rule's claims, and of how its template's containers use claims. `spec` is the rule's.
pub fn claims(subject: &Subject, spec: &Value) -> Vec<Finding> {
    let template = spec.get("template").unwrap_or(&Value::Null);
    let inner = template.get("spec").unwrap_or(&Value::Null);
    let added = spec.get("deviceClaims").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut findings = Vec::new();
    if template.get("kind").and_then(Value::as_str) == Some("ResourceClaim") {
        findings.extend(devices::spec(subject, inner, "spec.template.spec"));
    } else if added.is_empty() {
        // Where the rule adds claims, containers may use what isn't in the template.
        findings.extend(Finding::of_faults(
            &API_REFUSES,
            subject,
            device::pod_faults(inner, "spec.template.spec"),
        ));
    }
    for (i, claim) in added.iter().enumerate() {
        // One that is another rule's is judged there.
        if let Some(claim) = claim.get("spec") {
            findings.extend(devices::spec(subject, claim, &format!("spec.deviceClaims[{i}].spec")));
        }
    }
    findings
}
