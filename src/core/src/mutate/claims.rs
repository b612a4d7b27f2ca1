//! Gives a companion the devices that its rule's `deviceClaims` ask for: claims in the Pod, and their use in containers.
//! And tells of claims that the Pod could never use where it has to run.

use crate::map::HashSet;
use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{NO_NODE, PodContext, Report};
use crate::claim::{self, DeviceClaim, Source};
use crate::field::{self, FieldError};
use crate::json::label;
use crate::keys;
use crate::rule::Rule;
use crate::selector::clash;
use crate::steps::step;
use crate::template::CONTAINERS;
use crate::text::quoted;

/// Most claims of a Pod whose devices are looked at for where they are. Each is compared with all that the Pod asks of nodes.
const MAX_ALLOCATED: usize = 16;

/// Appends the rule's device claims to the Pod and to the containers that get them. What is there already stays as it is.
///
/// # Errors
/// A [`FieldError`] where the Pod isn't of the API's shape, or where another webhook has taken a claim's name.
pub fn apply(pod: &mut Value, facts: &PodContext<'_>, _: &mut Report) -> Result<bool, FieldError> {
    let Some(rule) = facts.rule.filter(|rule| !rule.devices().claims().is_empty()) else { return Ok(false) };
    let mut changed = false;
    for device in rule.devices().claims() {
        let entry = entry(pod, rule, device, facts)?;
        let object = field::as_object_mut(pod, "")?;
        let spec = field::object_mut(object, "", "spec")?;
        changed |= append(spec, &entry)?;
        let devices = rule.devices();
        let named =
            if device.containers.is_empty() { devices.default_containers() } else { &device.containers };
        let names: HashSet<&str> = named.iter().map(String::as_str).collect();
        for list in CONTAINERS {
            if spec.get(list).is_some_and(|list| !list.is_null()) {
                changed |= wire(spec, list, &names, device)?;
            }
        }
    }
    Ok(changed)
}

/// What the Pod's list of claims gets.
fn entry(
    pod: &Value,
    rule: &Rule,
    device: &DeviceClaim,
    facts: &PodContext<'_>,
) -> Result<Value, FieldError> {
    Ok(match &device.source {
        Source::Template { name, .. } => json!({"name": device.name, "resourceClaimTemplateName": name}),
        Source::Rule(of) => {
            let workload = label(pod, keys::WORKLOAD).ok_or_else(|| {
                FieldError::new(
                    format_args!("metadata.labels[{}]", keys::WORKLOAD),
                    "is missing: it tells whose claim the companion shares",
                )
            })?;
            let name = claim::shared_name(rule.name(), of, workload, facts.tenant);
            json!({"name": device.name, "resourceClaimName": name})
        }
    })
}

/// Returns whether the entry was missing.
fn append(spec: &mut Map<String, Value>, entry: &Value) -> Result<bool, FieldError> {
    let claims = field::list_mut(spec, "spec", "resourceClaims")?;
    let same = |own: &Value| {
        step();
        own.get("name") == entry.get("name")
    };
    let Some(at) = claims.iter().position(same) else {
        claims.push(entry.clone());
        return Ok(true);
    };
    let is = |key: &str| {
        let text = |claim: &Value| claim.get(key).and_then(Value::as_str).map(str::to_owned);
        claims.get(at).and_then(text) == text(entry)
    };
    if is("resourceClaimName") && is("resourceClaimTemplateName") {
        return Ok(false);
    }
    Err(FieldError::new(
        format_args!("spec.resourceClaims[{at}]"),
        format_args!(
            "has the name of one of the rule's deviceClaims, and is another claim: {entry} is due; use another name"
        ),
    ))
}

/// Returns whether a container was changed.
fn wire(
    spec: &mut Map<String, Value>,
    list: &str,
    names: &HashSet<&str>,
    device: &DeviceClaim,
) -> Result<bool, FieldError> {
    let mut changed = false;
    for (c, container) in field::list_mut(spec, "spec", list)?.iter_mut().enumerate() {
        step();
        let path = format!("spec.{list}[{c}]");
        let container = field::as_object_mut(container, &path)?;
        if !container.get("name").and_then(Value::as_str).is_some_and(|name| names.contains(name)) {
            continue;
        }
        let resources = field::object_mut(container, &path, "resources")?;
        let claims = field::list_mut(resources, &format!("{path}.resources"), "claims")?;
        // A container that uses the claim already does so in its author's way.
        let is_used = claims.iter().any(|used| {
            step();
            used.get("name").and_then(Value::as_str) == Some(&device.name)
        });
        if is_used {
            continue;
        }
        let mut used = json!({"name": device.name});
        if let Some(request) = &device.request {
            used["request"] = request.as_str().into();
        }
        claims.push(used);
        changed = true;
    }
    Ok(changed)
}

/// What has to be said about the claims of a Pod: that devices which are allocated already are where the Pod may not run, or
/// that it bypasses the scheduler, which alone allocates devices. `allocated` tells the terms of the node selector of a claim's
/// allocation, by the claim's name.
///
/// It is advice: what is known of a claim may be out of date, and the scheduler decides.
pub fn warnings<T: AsRef<[Value]>>(pod: &Value, allocated: impl Fn(&str) -> Option<T>) -> Vec<String> {
    let Some(spec) = pod.get("spec") else { return Vec::new() };
    let claims = spec.get("resourceClaims").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if claims.is_empty() {
        return Vec::new();
    }
    let mut warnings = Vec::new();
    if spec.get("nodeName").and_then(Value::as_str).is_some_and(|node| !node.is_empty()) {
        warnings.push(
            "spec.nodeName: bypasses the scheduler, so the Pod's resource claims are never allocated; use node affinity"
                .to_owned(),
        );
    }
    let mut once = BTreeSet::new();
    let named = claims.iter().filter_map(|claim| claim.get("resourceClaimName")?.as_str());
    let named = named.filter(|name| once.insert(*name));
    for (name, terms) in named.filter_map(|name| Some((name, allocated(name)?))).take(MAX_ALLOCATED) {
        if let Some((own, theirs)) = clash::opposition(pod, terms.as_ref()) {
            warnings.push(format!(
                "{NO_NODE}: it asks for {}, the devices of claim {} are on {}",
                quoted(&own),
                quoted(name),
                quoted(&theirs)
            ));
        }
    }
    warnings
}

#[cfg(test)]
pub(super) mod tests;
