//! What the API server holds a ResourceClaim's spec to (`resource.k8s.io/v1`, as Kubernetes 1.36 validates it), so that
//! it can be said where a claim is written down, long before one is created.
//!
//! CEL expressions are only looked at for their length: whether one compiles, is a boolean and costs too much depends on
//! the API server's own environment, which says so when a claim is created.

mod pod;
mod state;
mod warnings;

pub use pod::pod_faults;
pub use state::{DeviceTrouble, device_status, first_trouble, trouble};
pub use warnings::{Gated, gated, warnings};

use crate::map::HashSet;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::field::{FieldError, FieldErrors, join};
use crate::json::{list, text};
use crate::quantity::Quantity;
use crate::read::Reader;
use crate::syntax::{Form, is_dns_subdomain, is_short_dns_label};
use crate::text::quoted;

/// Most requests of a claim, and most requests that a constraint or a configuration names (`DeviceRequestsMaxSize`).
pub const MAX_REQUESTS: usize = 32;
/// Most devices that one claim can be given (`AllocationResultsMaxSize`).
pub const MAX_DEVICES: u64 = 32;
/// Most alternatives of a request (`FirstAvailableDeviceRequestMaxSize`).
pub const MAX_ALTERNATIVES: usize = 8;
/// Most constraints of a claim (`DeviceConstraintsMaxSize`).
pub const MAX_CONSTRAINTS: usize = 32;
/// Most configurations of a claim (`DeviceConfigMaxSize`).
pub const MAX_CONFIGURATIONS: usize = 32;
/// Most selectors of a request (`DeviceSelectorsMaxSize`).
pub const MAX_SELECTORS: usize = 32;
/// Longest CEL expression, in bytes (`CELSelectorExpressionMaxLength`).
pub const MAX_EXPRESSION: usize = 10 << 10;
/// Largest parameters of a driver, in bytes of JSON (`OpaqueParametersMaxLength`).
pub const MAX_PARAMETERS: usize = 10 << 10;
/// Longest name of a driver and longest domain of an attribute, in bytes (`DriverNameMaxLength`).
pub const MAX_DRIVER: usize = 63;
/// Longest name of an attribute, in bytes (`DeviceMaxIDLength`).
pub const MAX_ID: usize = 32;

/// The same for a rule, which makes claims for workloads: one that asks for nothing, which the API server takes, is a mistake
/// there.
pub fn faults_of_rule(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut faults = faults(spec, path);
    if faults.is_empty() && list(spec, "/devices/requests").is_empty() {
        faults.add(format_args!("{path}.devices.requests"), "is empty: name at least one device request");
    }
    faults
}

/// Everything that the API server would refuse in a ResourceClaim's spec, with its field paths; `path` is where the spec
/// stands. It takes `adminAccess`, which depends on the namespace; tenants may
/// not have it ([`crate::validate`]).
pub fn faults(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut reader = Reader::default();
    let spec = match spec {
        Value::Object(spec) => spec,
        Value::Null => return Vec::new(),
        other => return vec![FieldError::wrong_type(path, other, "an object")],
    };
    let Some(devices) = reader.object(spec, path, "devices") else { return reader.faults };
    let path = join(path, "devices");
    let names = Names::of(devices);
    let requests = reader.objects(devices, &path, "requests", MAX_REQUESTS);
    let mut seen = HashSet::default();
    for (path, request) in requests {
        let name = request_name(&mut reader, request, &path);
        duplicate(&mut reader, &mut seen, name, &path);
        one_request(&mut reader, request, &path);
    }
    for (path, constraint) in reader.objects(devices, &path, "constraints", MAX_CONSTRAINTS) {
        references(&mut reader, constraint, &path, &names);
        one_constraint(&mut reader, constraint, &path);
    }
    for (path, config) in reader.objects(devices, &path, "config", MAX_CONFIGURATIONS) {
        references(&mut reader, config, &path, &names);
        configuration(&mut reader, config, &path);
    }
    reader.faults
}

/// What asks for devices in a claim's spec, each request's `exactly` and its alternatives, with paths below the spec.
pub fn subrequests(spec: &Value) -> Vec<(String, &Value)> {
    let mut all = Vec::new();
    for (i, request) in list(spec, "/devices/requests").iter().enumerate() {
        let path = format!("devices.requests[{i}]");
        let exactly = request.get("exactly").filter(|exactly| !exactly.is_null());
        all.extend(exactly.map(|exactly| (format!("{path}.exactly"), exactly)));
        let alternatives = list(request, "/firstAvailable").iter().enumerate();
        all.extend(alternatives.map(|(j, one)| (format!("{path}.firstAvailable[{j}]"), one)));
    }
    all
}

/// The names of requests that constraints and configurations may refer to, and those of their alternatives.
struct Names<'a>(BTreeMap<&'a str, BTreeSet<&'a str>>);

impl<'a> Names<'a> {
    fn of(devices: &'a Map<String, Value>) -> Self {
        let name = |value: &'a Value| text(value, "/name");
        let requests = devices.get("requests").map_or(&[][..], |requests| list(requests, "")).iter();
        Self(requests.map(|r| (name(r), list(r, "/firstAvailable").iter().map(name).collect())).collect())
    }

    fn has(&self, reference: &str) -> bool {
        match reference.split_once('/') {
            None => self.0.contains_key(reference),
            Some((request, alternative)) => {
                self.0.get(request).is_some_and(|alternatives| alternatives.contains(alternative))
            }
        }
    }
}

fn request_name<'a>(reader: &mut Reader, request: &'a Map<String, Value>, path: &str) -> &'a str {
    let name = reader.text(request, path, "name");
    reader.faults.extend(Form::DnsLabel.fault(format_args!("{path}.name"), name));
    name
}

fn duplicate<'a>(reader: &mut Reader, seen: &mut HashSet<&'a str>, name: &'a str, path: &str) {
    if !seen.insert(name) {
        reader.fault(path, format_args!("is {:?} for the second time; use another name", quoted(name)));
    }
}

fn one_request(reader: &mut Reader, request: &Map<String, Value>, path: &str) {
    // Both are read whatever stands in the other: the API server decodes all of a claim before it judges any of it.
    let before = reader.faults.len();
    let exactly = reader.object(request, path, "exactly");
    let alternatives = reader.objects(request, path, "firstAvailable", MAX_ALTERNATIVES);
    let wrong = reader.faults.len() > before;
    match (exactly, alternatives.is_empty()) {
        (Some(_), false) => reader.fault(path, "has exactly and firstAvailable; use one of them"),
        (Some(exactly), true) => {
            let path = format!("{path}.exactly");
            reader.boolean(exactly, &path, "adminAccess");
            devices_of(reader, exactly, &path);
        }
        (None, true) if !wrong => {
            reader
                .fault(path, "has neither exactly nor firstAvailable; say by one of them what is asked for");
        }
        (None, _) => {
            let mut seen = HashSet::default();
            for (path, alternative) in alternatives {
                let name = request_name(reader, alternative, &path);
                duplicate(reader, &mut seen, name, &path);
                devices_of(reader, alternative, &path);
            }
        }
    }
}

/// What `exactly` and an alternative have in common.
fn devices_of(reader: &mut Reader, request: &Map<String, Value>, path: &str) {
    let class = reader.text(request, path, "deviceClassName");
    if !is_dns_subdomain(class) {
        let is = if class.is_empty() { "is missing".to_owned() } else { format!("is {:?}", quoted(class)) };
        reader.fault(
            format_args!("{path}.deviceClassName"),
            format_args!("{is}; use the name of a DeviceClass"),
        );
    }
    for (path, selector) in reader.objects(request, path, "selectors", MAX_SELECTORS) {
        let Some(cel) = reader.object(selector, &path, "cel") else {
            if selector.get("cel").is_none_or(Value::is_null) {
                reader.fault(format_args!("{path}.cel"), "is missing; write an expression");
            }
            continue;
        };
        let path = format!("{path}.cel");
        let expression = reader.text(cel, &path, "expression");
        let size = expression.len();
        if size > MAX_EXPRESSION {
            reader.fault(
                format_args!("{path}.expression"),
                format_args!("has {size} bytes, at most {MAX_EXPRESSION} are allowed"),
            );
        } else if expression.trim().is_empty() {
            reader.fault(format_args!("{path}.expression"), "is empty; write one that is true or false");
        }
    }
    let mode = reader.text(request, path, "allocationMode");
    let count = reader.integer(request, path, "count");
    match mode {
        // No mode is ExactCount, and no count is 1.
        "" | "ExactCount" if count < 0 => {
            reader.fault(format_args!("{path}.count"), format_args!("is {count}; use 1 or more"));
        }
        "" | "ExactCount" => {}
        "All" if count != 0 => {
            let message = format_args!("is {count}, and allocationMode All takes none; remove one of them");
            reader.fault(format_args!("{path}.count"), message);
        }
        "All" => {}
        other => reader.fault(
            format_args!("{path}.allocationMode"),
            format_args!("is {:?}; use ExactCount or All", quoted(other)),
        ),
    }
    for (path, toleration) in reader.objects(request, path, "tolerations", usize::MAX) {
        one_toleration(reader, toleration, &path);
    }
    capacity(reader, request, path);
}

fn one_toleration(reader: &mut Reader, toleration: &Map<String, Value>, path: &str) {
    let key = reader.text(toleration, path, "key");
    if !key.is_empty() {
        reader.faults.extend(Form::LabelKey.fault(format_args!("{path}.key"), key));
    }
    let value = reader.text(toleration, path, "value");
    match reader.text(toleration, path, "operator") {
        "Exists" if !value.is_empty() => reader.fault(
            format_args!("{path}.value"),
            format_args!("is {:?}, and operator Exists takes none; remove it", quoted(value)),
        ),
        "Exists" => {}
        "" | "Equal" => reader.faults.extend(Form::LabelValue.fault(format_args!("{path}.value"), value)),
        other => reader.fault(
            format_args!("{path}.operator"),
            format_args!("is {:?}; use Exists or Equal", quoted(other)),
        ),
    }
    let effect = reader.text(toleration, path, "effect");
    if !matches!(effect, "" | "NoSchedule" | "NoExecute" | "None") {
        reader.fault(
            format_args!("{path}.effect"),
            format_args!("is {:?}; use NoSchedule, NoExecute, or none", quoted(effect)),
        );
    }
    reader.integer(toleration, path, "tolerationSeconds");
}

fn capacity(reader: &mut Reader, request: &Map<String, Value>, path: &str) {
    let Some(capacity) = reader.object(request, path, "capacity") else { return };
    let path = format!("{path}.capacity");
    let Some(requests) = reader.object(capacity, &path, "requests") else { return };
    for (name, value) in requests {
        if Quantity::of(value).is_none() {
            reader.fault(
                format_args!("{path}.requests[{}]", quoted(name)),
                format_args!("is {}; use a quantity such as 2 or 10Gi", quoted(&value.to_string())),
            );
        }
    }
}

/// The requests that a constraint or a configuration is about.
fn references(reader: &mut Reader, of: &Map<String, Value>, path: &str, names: &Names<'_>) {
    let mut seen = HashSet::default();
    for (path, name) in reader.texts(of, path, "requests", MAX_REQUESTS) {
        if name.split('/').count() > 2 || !name.split('/').all(is_short_dns_label) || !names.has(name) {
            reader.fault(
                &path,
                format_args!("is {:?}; use the name of a request, or REQUEST/ALTERNATIVE", quoted(name)),
            );
        }
        duplicate(reader, &mut seen, name, &path);
    }
}

fn one_constraint(reader: &mut Reader, constraint: &Map<String, Value>, path: &str) {
    let same = reader.optional_text(constraint, path, "matchAttribute");
    let distinct = reader.optional_text(constraint, path, "distinctAttribute");
    let (key, name) = match (same, distinct) {
        // Of both, the API server looks at this one only.
        (Some(name), _) => ("matchAttribute", name),
        (None, Some(name)) => ("distinctAttribute", name),
        (None, None) => {
            reader.fault(path, "has neither matchAttribute nor distinctAttribute; use one of them");
            return;
        }
    };
    if !is_fully_qualified(name) {
        reader.fault(
            format_args!("{path}.{key}"),
            format_args!(
                "is {:?}; use DOMAIN/NAME, the domain a DNS subdomain of at most {MAX_DRIVER} bytes, the name a C identifier \
                 of at most {MAX_ID}",
                quoted(name)
            ),
        );
    }
}

/// Whether the API server takes it for a fully-qualified name. With more than one slash it looks at nothing, see
/// [`warnings`].
fn is_fully_qualified(name: &str) -> bool {
    let mut parts = name.split('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(domain), Some(id), None) => is_driver(domain) && is_identifier(id),
        (_, _, Some(_)) => true,
        _ => false,
    }
}

/// Whether a driver can be called so.
fn is_driver(name: &str) -> bool {
    name.len() <= MAX_DRIVER && is_dns_subdomain(&name.to_lowercase())
}

/// Whether an attribute or a capacity can be called so.
pub(crate) fn is_identifier(id: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    id.len() <= MAX_ID && id.starts_with(first) && id.chars().all(|c| first(c) || c.is_ascii_digit())
}

fn configuration(reader: &mut Reader, config: &Map<String, Value>, path: &str) {
    let Some(opaque) = reader.object(config, path, "opaque") else {
        if config.get("opaque").is_none_or(Value::is_null) {
            reader
                .fault(format_args!("{path}.opaque"), "is missing; say which driver's parameters these are");
        }
        return;
    };
    let path = format!("{path}.opaque");
    let driver = reader.text(opaque, &path, "driver");
    if !is_driver(driver) {
        reader.fault(
            format_args!("{path}.driver"),
            format_args!("is {:?}; use a DNS subdomain of at most {MAX_DRIVER} bytes", quoted(driver)),
        );
    }
    let at = format!("{path}.parameters");
    match opaque.get("parameters") {
        None | Some(Value::Null) => reader.fault(at, "is missing; use an object, also an empty one"),
        Some(parameters) => {
            let size = parameters.to_string().len();
            if size > MAX_PARAMETERS {
                reader.fault(
                    at,
                    format_args!("has {size} bytes of JSON, at most {MAX_PARAMETERS} are allowed"),
                );
            } else if !parameters.is_object() {
                reader.faults.push(FieldError::wrong_type(&at, parameters, "an object"));
            }
        }
    }
}

#[cfg(test)]
mod tests;
