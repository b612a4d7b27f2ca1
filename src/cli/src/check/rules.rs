//! Rules, tenants' and the platform's.

use outrigger_core::claim::Source;
use outrigger_core::device;
use outrigger_core::json::list;
use outrigger_core::lint::{self, Doubt, LintContext};
use outrigger_core::rule::Rule;
use outrigger_core::template::{self, Kind};
use serde_json::{Value, json};

use super::devices;
use super::findings::{
    API_REFUSES, DANGLING, FROM_RULE, Finding, NEVER_MATCHES, NO_NODE, PLACEMENT, QUOTES, Subject, UNSENT,
};

/// What is doubtful about a rule that is valid.
pub(crate) fn doubts(subject: &Subject, rule: &Rule, around: &LintContext<'_>) -> Vec<Finding> {
    let finding = |(doubt, message): (Doubt, String)| {
        let (check, path) = match doubt {
            Doubt::Reference => (&DANGLING, "spec.template"),
            Doubt::Quotes => (&QUOTES, "spec.template"),
            Doubt::Placement => (&PLACEMENT, "spec.template.spec"),
            Doubt::AnyHost => (&PLACEMENT, "spec.deviceHostAttribute"),
            Doubt::NoNode => (&NO_NODE, "spec.template.spec"),
            Doubt::NoWorkload => (&NEVER_MATCHES, "spec.workloadTerms"),
        };
        let prefix = format!("{path}: ");
        let short = message.strip_prefix(&prefix).or_else(|| message.strip_prefix("template: "));
        Finding::new(check, subject, path, short.unwrap_or(&message))
    };
    lint::doubts(rule, around).into_iter().map(finding).chain(unsent(subject, rule)).collect()
}

/// Annotations that a rule of the platform names: no agent sends them by default, and then they are unknown.
fn unsent(subject: &Subject, rule: &Rule) -> Option<Finding> {
    let keys: Vec<&str> = rule.annotation_keys().into_iter().filter(|_| rule.name().is_admin()).collect();
    let message = format!(
        "names {}: where a tenant's agent doesn't send them, they are unknown, and workloads of which they decide have a companion",
        keys.join(", ")
    );
    (!keys.is_empty()).then(|| Finding::new(&UNSENT, subject, "spec", message))
}

/// What the API server will say of a rule's claims, and of how its template's containers use claims. `spec` is the rule's.
pub(crate) fn claims(subject: &Subject, spec: &Value) -> Vec<Finding> {
    let template = &spec["template"];
    let mut findings = Vec::new();
    if template::kind(template) == Kind::Pod {
        let pod = with_claims(&template["spec"], list(spec, "/deviceClaims"));
        let faults = device::pod_faults(&pod, "spec.template.spec");
        findings.extend(Finding::of_faults(&API_REFUSES, subject, faults));
    }
    for (path, claim) in claims_of(spec) {
        findings.extend(devices::spec(subject, claim, &path));
    }
    findings
}

/// The specs of claims in a rule's spec, with their paths. A claim of another rule is examined there.
pub(crate) fn claims_of(spec: &Value) -> Vec<(String, &Value)> {
    let own = Some(&spec["template"]).filter(|template| template::kind(template) == Kind::Claim);
    let own = own.map(|template| ("spec.template.spec".to_owned(), &template["spec"]));
    let added = list(spec, "/deviceClaims").iter().enumerate();
    let added =
        added.filter_map(|(i, claim)| Some((format!("spec.deviceClaims[{i}].spec"), claim.get("spec")?)));
    own.into_iter().chain(added).collect()
}

/// A template's spec with the claims that the rule adds: its containers may use these too. Names that are no names, or are
/// taken, admission refuses.
fn with_claims(inner: &Value, added: &[Value]) -> Value {
    let mut spec = inner.clone();
    let Some(map) = spec.as_object_mut().filter(|_| !added.is_empty()) else { return spec };
    let claims = map.entry("resourceClaims").or_insert(Value::Null);
    if claims.is_null() {
        *claims = json!([]);
    }
    // A warning that is no list is reported unchanged.
    let Some(claims) = claims.as_array_mut() else { return spec };
    let known = claims.len();
    for name in added.iter().filter_map(|claim| claim.get("name").and_then(Value::as_str)) {
        let taken =
            claims.iter().take(known).any(|own| own.get("name").and_then(Value::as_str) == Some(name));
        if !taken {
            claims.push(json!({"name": name, "resourceClaimName": "added"}));
        }
    }
    spec
}

/// Claims that a rule shares from a rule that makes none: its companions wait for them. `other`: the spec of the rule of that
/// name, of the same kind and in the same namespace.
pub(crate) fn shared<'a>(
    subject: &Subject,
    rule: &Rule,
    other: impl Fn(&str) -> Option<&'a Value>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (i, claim) in rule.devices().claims().iter().enumerate() {
        let Source::Rule(name) = &claim.source else { continue };
        let name = name.as_str();
        let message = match other(name) {
            None => format!("is {name:?}, and there is no {} {name} in its namespace", subject.kind),
            Some(spec) if template::kind(&spec["template"]) != Kind::Claim => {
                format!("is {name:?}, whose template is no ResourceClaim")
            }
            Some(_) => continue,
        };
        findings.push(Finding::new(
            &FROM_RULE,
            subject,
            format_args!("spec.deviceClaims[{i}].fromRule"),
            message,
        ));
    }
    findings
}
