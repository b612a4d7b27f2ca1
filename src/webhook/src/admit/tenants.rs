//! Validation of Tenants: what one object can't tell about itself.

use std::collections::{HashMap, HashSet};

use outrigger_api::Tenant;
use outrigger_core::field::FieldError;
use outrigger_core::tenant;
use serde_json::Value;

use super::{Settings, deny_fields};
use crate::caches::Caches;
use crate::review::{Decision, Request};

/// Refuses what is another tenant's already. Two requests at once may both pass; the controller then serves neither.
pub(super) fn validate(caches: &Caches, settings: &Settings, request: &Request) -> Decision {
    let new = match read(&request.object) {
        Ok(tenant) => tenant,
        Err(faults) => {
            // One that was no better before may still lose its finalizers.
            return if faults == read(&request.old_object).err().unwrap_or_default() {
                Decision::allow()
            } else {
                deny_fields(422, &faults)
            };
        }
    };
    let old = read(&request.old_object).ok();
    let mut faults = Vec::new();
    if settings.admin.contains(&new.namespace) {
        faults.push(FieldError::new(
            "spec.namespace",
            format_args!(
                "is {:?}, where the platform's own rules or companions are; choose another",
                new.namespace
            ),
        ));
    }
    taken(caches, &request.object, &new, old.as_ref(), &mut faults);
    let classes = places(&request.object, "deviceClasses");
    for (i, class) in new.policy.device_classes.iter().enumerate() {
        let had = old.as_ref().is_some_and(|old| old.policy.device_classes.contains(class));
        if !had && !caches.is_device_class(class) {
            let at = classes.get(class.as_str()).copied().unwrap_or(i);
            faults.push(FieldError::new(
                format_args!("spec.deviceClasses[{at}]"),
                format_args!("is {class:?}, and there is no such DeviceClass; create it first"),
            ));
        }
    }
    if faults.is_empty() { Decision::allow() } else { deny_fields(422, &faults) }
}

fn read(object: &Value) -> Result<tenant::Tenant, Vec<FieldError>> {
    use serde::Deserialize;
    Tenant::deserialize(object).map_err(|e| vec![FieldError::new("spec", e)])?.compile()
}

/// Where in a list each name stands first: the domain keeps some lists as sets.
fn places<'a>(object: &'a Value, list: &str) -> HashMap<&'a str, usize> {
    let names = object.get("spec").and_then(|spec| spec.get(list)).and_then(Value::as_array);
    let mut places = HashMap::new();
    for (i, name) in names.into_iter().flatten().enumerate() {
        if let Some(name) = name.as_str() {
            places.entry(name).or_insert(i);
        }
    }
    places
}

fn taken(
    caches: &Caches,
    object: &Value,
    new: &tenant::Tenant,
    old: Option<&tenant::Tenant>,
    faults: &mut Vec<FieldError>,
) {
    let id = new.policy.tenant.as_str();
    let of = |path: String, what: &str, value: &str, other: &str| {
        FieldError::new(
            path,
            format_args!("is {value:?}, {what} of tenant {other:?}; take it from that one first"),
        )
    };
    if let Some(owner) = caches.owner(&new.namespace).filter(|owner| owner.as_str() != id) {
        faults.push(of("spec.namespace".to_owned(), "the namespace", &new.namespace, owner.as_str()));
    }
    let hosts = places(object, "hosts");
    let had: HashSet<_> = old.iter().flat_map(|old| &old.identities).collect();
    for (other, cached) in caches.other_tenants(id) {
        let Some(theirs) = &cached.tenant else { continue };
        if theirs.namespace == new.namespace && faults.iter().all(|f| f.path != "spec.namespace") {
            faults.push(of("spec.namespace".to_owned(), "the namespace", &new.namespace, other.as_str()));
        }
        let held: HashSet<_> = theirs.identities.iter().collect();
        for (i, identity) in new.identities.iter().enumerate() {
            if !had.contains(identity) && held.contains(identity) {
                faults.push(of(
                    format!("spec.identities[{i}]"),
                    "an identity",
                    identity.as_str(),
                    other.as_str(),
                ));
            }
        }
        for host in new.hosts.intersection(&theirs.hosts) {
            if !old.is_some_and(|old| old.hosts.contains(host)) {
                let at = hosts.get(host.as_str()).copied().unwrap_or_default();
                faults.push(of(format!("spec.hosts[{at}]"), "a host", host, other.as_str()));
            }
        }
    }
}
