//! Devices for companions, by Kubernetes' Dynamic Resource Allocation (`resource.k8s.io/v1`).
//!
//! A rule asks for devices in two ways. Its template may be a ResourceClaim: then that is the companion, one for each
//! workload. Or its template is a Pod and the rule has `deviceClaims`: then each companion Pod is given claims, either ones
//! of its own, which Kubernetes makes from a ResourceClaimTemplate that the manager owns, or that of another rule for the
//! same workload, so that several companions share a device.

use serde_json::{Map, Value, json};

use crate::ids::RuleName;
use crate::json::Json;

mod compile;
mod objects;

pub use compile::{DeviceClaimSpec, DevicesSpec, MAX_BYTES, MAX_CLAIMS, MAX_CONTAINERS};
pub use objects::{Template, own_shared_name, templates};

pub(crate) use compile::{RuleParts, compile};
pub(crate) use objects::shared_name;

/// `apiVersion` of ResourceClaims.
pub const API_VERSION: &str = "resource.k8s.io/v1";

/// What a rule says of devices, checked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Devices {
    claims: Vec<DeviceClaim>,
    default_containers: Vec<String>,
    host_attribute: Option<Attribute>,
}

impl Devices {
    /// The claims that each companion Pod is given.
    pub fn claims(&self) -> &[DeviceClaim] {
        &self.claims
    }

    /// The containers that get a claim which names none: those of the template, and not what other webhooks put beside them.
    pub fn default_containers(&self) -> &[String] {
        &self.default_containers
    }

    /// The attribute of devices that names their host.
    pub fn host_attribute(&self) -> Option<&Attribute> {
        self.host_attribute.as_ref()
    }

    /// The same without the specs of claims.
    pub(crate) fn without_specs(mut self) -> Self {
        for claim in &mut self.claims {
            if let Source::Template { spec, .. } = &mut claim.source {
                *spec = Json::default();
            }
        }
        self
    }

    /// The values that decide a companion, as they are written; `None` where there are none.
    pub(crate) fn fingerprint(&self) -> Option<Value> {
        self.values(|name, _| name)
    }

    /// The same by what the specs of claims mean.
    pub(crate) fn content(&self) -> Option<Value> {
        self.values(|_, content| content)
    }

    fn values(&self, of_template: impl for<'a> Fn(&'a str, &'a str) -> &'a str) -> Option<Value> {
        if *self == Self::default() {
            return None;
        }
        let claim = |claim: &DeviceClaim| {
            let (template, rule) = match &claim.source {
                Source::Template { name, content, .. } => (Some(of_template(name, content)), None),
                Source::Rule(rule) => (None, Some(rule.as_str())),
            };
            json!([claim.name, template, rule, claim.containers, claim.request])
        };
        let claims: Vec<Value> = self.claims.iter().map(claim).collect();
        Some(json!([claims, self.host_attribute.as_ref().map(ToString::to_string)]))
    }
}

/// A claim that each companion Pod is given.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceClaim {
    /// Its name within the Pod (`spec.resourceClaims[].name`).
    pub name: String,
    /// Where it comes from.
    pub source: Source,
    /// The containers that get its devices; empty: all.
    pub containers: Vec<String>,
    /// The request in it whose devices they get; all where absent.
    pub request: Option<String>,
}

/// Where a Pod's claim comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// Kubernetes makes one for the Pod, from a ResourceClaimTemplate.
    Template {
        /// The template's name. It depends on the spec, because templates can't be changed, and on the rule's uid: that of a
        /// rule which is gone may still be there.
        name: String,
        /// The name that it would have if the spec were written without anything that the API server doesn't store.
        content: String,
        /// The claim's spec.
        spec: Json,
    },
    /// It is the companion of another rule for the same workload.
    Rule(RuleName),
}

/// A device's attribute by its full name, `<domain>/<identifier>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    domain: String,
    id: String,
}

impl std::fmt::Display for Attribute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.domain, self.id)
    }
}

impl Attribute {
    /// The CEL expression that holds for devices whose attribute is this text. One that lacks the attribute doesn't match:
    /// without the default it would be an error, and that ends the search for devices.
    fn is(&self, text: &str) -> String {
        // A JSON string is a CEL string: both know the same escapes.
        let text = Value::from(text);
        format!(
            "device.attributes[{}].?{}.orValue(\"\") == {text}",
            Value::from(self.domain.as_str()),
            self.id
        )
    }
}

/// The spec of a claim that is a companion: the template's, where each request also asks for the host.
pub(crate) fn spec(template: &Value, attribute: Option<&Attribute>, host: Option<&str>) -> Value {
    let mut spec = template.get("spec").cloned().unwrap_or_default();
    let (Some(attribute), Some(host)) = (attribute, host) else { return spec };
    let selector = json!({"cel": {"expression": attribute.is(host)}});
    for wanted in requests_mut(&mut spec) {
        let selectors = wanted.entry("selectors").or_insert(Value::Null);
        match selectors {
            Value::Array(all) => all.push(selector.clone()),
            other => *other = json!([selector]),
        }
    }
    spec
}

/// What asks for devices in a claim: each request's `exactly`, or its alternatives.
fn requests_mut(spec: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
    let requests = spec.pointer_mut("/devices/requests").and_then(Value::as_array_mut);
    requests.into_iter().flatten().filter_map(Value::as_object_mut).flat_map(|request| {
        request.iter_mut().flat_map(|(key, value)| match (key.as_str(), value) {
            ("exactly", Value::Object(exactly)) => vec![exactly],
            ("firstAvailable", Value::Array(all)) => {
                all.iter_mut().filter_map(Value::as_object_mut).collect()
            }
            _ => Vec::new(),
        })
    })
}

#[cfg(test)]
mod tests;
