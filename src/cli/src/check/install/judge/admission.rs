//! What the API server asks us about, and what it sees to by itself: webhook configurations, policies, bindings.
//!
//! Whatever isn't as shipped and decides who is asked about what is an error, in either direction: a selector that is
//! narrower leaves something out, a wider one keeps the cluster from starting. How the webhook is reached, labels and
//! annotations are the installation's own.

use serde_json::Value;

use super::difference::{differences, sorted};
use super::{EACH, apart, list, short, shown, subject, text};
use crate::check::findings::{ADMISSION, ADMISSION_TIMEOUT, Finding, POLICY_TYPES, Subject};

/// What decides about an entry, with what an API server takes where nothing is said.
const FIELDS: [(&str, Option<&str>); 9] = [
    ("admissionReviewVersions", None),
    ("failurePolicy", Some("Fail")),
    ("matchConditions", None),
    ("matchPolicy", Some("Equivalent")),
    ("namespaceSelector", None),
    ("objectSelector", None),
    ("reinvocationPolicy", Some("Never")),
    ("rules", None),
    ("sideEffects", None),
];

/// Holds a webhook configuration against the one that is shipped. Entries that somebody added are his own.
pub(crate) fn configuration(wanted: &Value, found: &Value) -> Vec<Finding> {
    let subject = subject(found);
    let mut findings = Vec::new();
    for entry in list(wanted, "/webhooks") {
        let name = text(entry, "/name");
        match list(found, "/webhooks").iter().enumerate().find(|(_, other)| text(other, "/name") == name) {
            None => {
                let message = format!("has no entry {name:?}: what it is for isn't asked about");
                findings.push(Finding::new(&ADMISSION, &subject, "webhooks", message));
            }
            Some((i, other)) => findings.extend(self::entry(&subject, i, entry, other)),
        }
    }
    findings
}

fn entry(subject: &Subject, i: usize, wanted: &Value, found: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    let at = format!("webhooks[{i}]");
    for (field, default) in FIELDS {
        let default = default.map(Value::from);
        let of = |entry: &Value| entry.get(field).map(sorted).or_else(|| default.clone());
        let (wanted, found) = (of(wanted), of(found));
        findings.extend(told(subject, &format!("{at}.{field}"), wanted.as_ref(), found.as_ref()));
    }
    if path(wanted) != path(found) {
        let message = format!("calls {:?} of the webhook; shipped is {:?}", path(found), path(wanted));
        findings.push(Finding::new(&ADMISSION, subject, format!("{at}.clientConfig"), message));
    }
    let seconds = |entry: &Value| entry.get("timeoutSeconds").and_then(Value::as_i64).unwrap_or(10);
    if seconds(wanted) != seconds(found) {
        let message = format!("is {}; shipped is {}", seconds(found), seconds(wanted));
        findings.push(Finding::new(&ADMISSION_TIMEOUT, subject, format!("{at}.timeoutSeconds"), message));
    }
    findings
}

/// The path that an entry calls, by a Service or a URL.
fn path(entry: &Value) -> &str {
    let url = text(entry, "/clientConfig/url");
    let Some((_, rest)) = url.split_once("://") else { return text(entry, "/clientConfig/service/path") };
    rest.find('/').map_or("/", |start| rest[start..].split('?').next().unwrap_or_default())
}

/// Holds a policy against the one that is shipped, and tells what the API server says of its expressions.
pub(crate) fn policy(wanted: &Value, found: &Value) -> Vec<Finding> {
    let subject = subject(found);
    let (wanted, judged) = (wanted.get("spec").map(sorted), found.get("spec").map(sorted));
    let mut findings = told(&subject, "spec", wanted.as_ref(), judged.as_ref());
    for warning in list(found, "/status/typeChecking/expressionWarnings").iter().take(EACH) {
        let message = short(text(warning, "/warning"));
        findings.push(Finding::new(&POLICY_TYPES, &subject, text(warning, "/fieldRef"), message));
    }
    findings
}

/// Holds the binding of a policy against the one that is shipped. It may do more than deny: warn, or write down.
pub(crate) fn binding(wanted: &Value, found: &Value) -> Vec<Finding> {
    const ACTIONS: &str = "validationActions";
    let subject = subject(found);
    let spec = |object: &Value| {
        let mut spec = object.get("spec").map(sorted);
        let actions = spec.as_mut().and_then(Value::as_object_mut).and_then(|spec| spec.remove(ACTIONS));
        (spec, actions.unwrap_or_default())
    };
    let ((wanted, needed), (judged, actions)) = (spec(wanted), spec(found));
    let mut findings = told(&subject, "spec", wanted.as_ref(), judged.as_ref());
    let all = list(&actions, "");
    if let Some(lacking) = list(&needed, "").iter().find(|action| !all.contains(action)) {
        let message = format!("is {}, without {lacking}: the policy refuses nothing", shown(Some(&actions)));
        findings.push(Finding::new(&ADMISSION, &subject, format!("spec.{ACTIONS}"), message));
    }
    findings
}

fn told(subject: &Subject, path: &str, wanted: Option<&Value>, found: Option<&Value>) -> Vec<Finding> {
    let told = |d: super::difference::Difference<'_>| {
        let (found, wanted) = apart(d.found, d.wanted);
        Finding::new(&ADMISSION, subject, d.path, format!("is {found}; shipped is {wanted}"))
    };
    differences(path, wanted, found).into_iter().take(EACH).map(told).collect()
}
