//! Warnings about claims that the API server admits.

use serde_json::Value;

use super::{MAX_DEVICES, is_driver, is_identifier, quoted, subrequests};
use crate::json::{list, text};
use crate::text::{MAX_WARNING, truncate};

/// Most tolerations that the API's documentation allows (`DeviceTolerationsMaxLength`); the API server doesn't count them.
const MAX_TOLERATIONS: usize = 16;

/// Most warnings of one claim: what an API server shows is cut to 4,096 characters.
const MAX_WARNINGS: usize = 16;

/// Parts of a claim's spec that are admitted and can never be allocated, or do nothing: as admission warnings, with paths
/// below the spec.
pub fn warnings(spec: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    let requests = list(spec, "/devices/requests");
    if requests.is_empty() {
        warnings.push("devices.requests: is empty, so no device is asked for".to_owned());
    }
    let (mut least, mut mode_all) = (0_u64, false);
    for (i, request) in requests.iter().enumerate() {
        let path = format!("devices.requests[{i}]");
        if let Some(exactly) = request.get("exactly").filter(|exactly| exactly.is_object()) {
            least = least.saturating_add(devices(exactly));
            mode_all |= is_all(exactly);
            one(exactly, &format!("{path}.exactly"), &mut warnings);
            continue;
        }
        let alternatives = list(request, "/firstAvailable");
        least = least.saturating_add(alternatives.iter().map(devices).min().unwrap_or_default());
        for (j, alternative) in alternatives.iter().enumerate() {
            let path = format!("{path}.firstAvailable[{j}]");
            mode_all |= is_all(alternative);
            let count = devices(alternative);
            if count > MAX_DEVICES && alternatives.len() > 1 {
                warnings.push(format!(
                    "{path}: never chosen: {count} devices, a claim gets {MAX_DEVICES} at most"
                ));
            }
            one(alternative, &path, &mut warnings);
        }
    }
    if least > MAX_DEVICES {
        let many = if mode_all { "at least " } else { "" };
        warnings.push(format!(
            "devices.requests: ask for {many}{least} devices, a claim gets {MAX_DEVICES} at most: never allocated"
        ));
    }
    for (i, constraint) in list(spec, "/devices/constraints").iter().enumerate() {
        let path = format!("devices.constraints[{i}]");
        let has = |key: &str| constraint.get(key).and_then(Value::as_str);
        if has("matchAttribute").is_some() && has("distinctAttribute").is_some() {
            warnings
                .push(format!("{path}: has matchAttribute and distinctAttribute; only the former counts"));
        }
        for key in ["matchAttribute", "distinctAttribute"] {
            if has(key).is_some_and(|name| name.split('/').count() > 2) {
                warnings.push(format!("{path}.{key}: has several slashes, so no device has that attribute"));
            }
        }
    }
    warnings.truncate(MAX_WARNINGS);
    warnings.into_iter().map(|warning| truncate(&warning, MAX_WARNING).into_owned()).collect()
}

fn one(request: &Value, path: &str, warnings: &mut Vec<String>) {
    let tolerations = list(request, "/tolerations");
    if tolerations.len() > MAX_TOLERATIONS {
        let count = tolerations.len();
        warnings.push(format!(
            "{path}.tolerations: are {count}; the API's documentation allows {MAX_TOLERATIONS}, which no API server enforces yet"
        ));
    }
    for (i, toleration) in tolerations.iter().enumerate().take(MAX_TOLERATIONS) {
        if text(toleration, "/key").is_empty() && text(toleration, "/operator") != "Exists" {
            let path = format!("{path}.tolerations[{i}]");
            warnings.push(format!("{path}: has no key; use operator Exists to tolerate every taint"));
        }
    }
    let capacity = request.pointer("/capacity/requests").and_then(Value::as_object);
    for name in capacity.into_iter().flat_map(|capacity| capacity.keys()).take(MAX_WARNINGS) {
        let known = match name.split_once('/') {
            Some((domain, id)) => is_driver(domain) && is_identifier(id),
            None => is_identifier(name),
        };
        if !known {
            warnings.push(format!("{path}.capacity.requests: no device has a capacity {:?}", quoted(name)));
        }
    }
}

/// How many devices a request takes at least. A request for all of a pool has no count, and takes one at least: with none there is
/// nothing to allocate.
fn devices(request: &Value) -> u64 {
    request.get("count").and_then(Value::as_u64).map_or(1, |count| count.max(1))
}

fn is_all(request: &Value) -> bool {
    text(request, "/allocationMode") == "All"
}

/// A field that API servers drop without a word where a feature gate is off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gated {
    /// Its path below the spec.
    pub path: String,
    /// The feature gate.
    pub gate: &'static str,
    /// The first minor version of Kubernetes 1 that has the gate on by default.
    pub since: u32,
}

/// The fields of a claim's spec that older API servers drop (`pkg/api/resourceclaimspec`): the claim is then another one than
/// what was written. Those whose gate is on in every version that has `resource.k8s.io/v1` aren't listed.
pub fn gated(spec: &Value) -> Vec<Gated> {
    const SINCE: u32 = 36;
    let mut found = Vec::new();
    let mut look = |of: &Value, path: &str, key: &str, gate: &'static str| {
        let there = of.get(key).is_some_and(|value| !value.is_null() && value != &Value::Array(Vec::new()));
        if there {
            found.push(Gated { path: format!("{path}.{key}"), gate, since: SINCE });
        }
    };
    for (path, one) in subrequests(spec) {
        look(one, &path, "tolerations", "DRADeviceTaints");
        look(one, &path, "capacity", "DRAConsumableCapacity");
    }
    for (i, constraint) in list(spec, "/devices/constraints").iter().enumerate() {
        let path = format!("devices.constraints[{i}]");
        look(constraint, &path, "distinctAttribute", "DRAConsumableCapacity");
    }
    found
}
