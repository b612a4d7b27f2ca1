//! CustomResourceDefinitions, held against those of this version.

use serde_json::Value;

use super::difference::{Difference, differences, sorted};
use super::{EACH, list, shown, subject, text};
use crate::check::findings::{Check, DEFINITION, Finding, NARROWER};

/// Whether a definition is served, has everything that this version's has, and refuses nothing that this version's takes. What
/// it has beyond that is a newer version's, which comes before the parts that use it.
pub(crate) fn definition(wanted: &Value, found: &Value) -> Vec<Finding> {
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
            let all = differences(&format!("{path}.{field}"), wanted.as_ref(), found.as_ref());
            let told = all.into_iter().filter_map(|d| Some((judged(&d)?, d)));
            findings.extend(told.take(EACH).map(|(check, d)| {
                let message = format!("is {}; this version's is {}", shown(d.found), shown(d.wanted));
                Finding::new(check, &subject, d.path, message)
            }));
        }
    }
    findings
}

/// What a difference is: what is valid for this version has to be valid in the cluster, and to be kept. `None`: it is wider, or
/// only added, as a newer version does.
fn judged(difference: &Difference<'_>) -> Option<&'static Check> {
    let Difference { path, wanted, found } = difference;
    let keyword = path.rsplit('.').next().unwrap_or_default();
    let all = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let lacks = |of: Option<&Value>, other| all(of).iter().any(|value| !all(other).contains(value));
    let narrower = |is_so: bool| is_so.then_some(&NARROWER);
    // A property may be called as a keyword is: then it is an object.
    let either = wanted.or(*found);
    let is_plain = either.is_some_and(|value| value.is_number() || value.is_string());
    let is_list = either.is_some_and(Value::is_array);
    let number = |value: Option<&Value>| value.and_then(Value::as_f64);
    match keyword {
        "minimum" | "minLength" | "minItems" | "minProperties" if is_plain => {
            narrower(number(*found).is_some_and(|found| number(*wanted).is_none_or(|wanted| found > wanted)))
        }
        "maximum" | "maxLength" | "maxItems" | "maxProperties" if is_plain => {
            narrower(number(*found).is_some_and(|found| number(*wanted).is_none_or(|wanted| found < wanted)))
        }
        "pattern" if is_plain => narrower(found.is_some()),
        "enum" if is_list && wanted.is_none() => Some(&NARROWER),
        "enum" if is_list && found.is_none() => None,
        "enum" if is_list => lacks(*wanted, *found).then_some(&DEFINITION),
        "required" | VALIDATIONS if is_list => narrower(lacks(*found, *wanted)),
        _ => wanted.is_some().then_some(&DEFINITION),
    }
}

/// Rules in CEL.
const VALIDATIONS: &str = "x-kubernetes-validations";

/// A schema without what it says to people.
fn bare(schema: &Value) -> Value {
    match schema {
        Value::Object(map) => {
            // A property may be called "description": that one is an object.
            let kept = map.iter().filter(|(key, value)| key.as_str() != "description" || !value.is_string());
            let of = |(key, value): (&String, &Value)| match value {
                // Of rules only what they ask for counts, in any order.
                Value::Array(rules) if key == VALIDATIONS => {
                    let rules = rules.iter().map(|rule| text(rule, "/rule").into()).collect();
                    (key.clone(), sorted(&Value::Array(rules)))
                }
                _ => (key.clone(), bare(value)),
            };
            Value::Object(kept.map(of).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(bare).collect()),
        other => other.clone(),
    }
}
