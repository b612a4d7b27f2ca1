//! How a Pod is changed at admission: steps in a fixed order, each of which changes raw JSON in place, adds only what
//! Outrigger owns, and finds nothing left to do when it runs again.

pub mod claims;
pub mod companion;
pub mod isolation;
pub mod machine;
pub mod offloading;

use json_patch::{Patch, PatchOperation, ReplaceOperation};
use serde_json::{Map, Value};

use crate::field::FieldError;
use crate::ids::TenantId;
use crate::keys;
use crate::rule::Rule;
use crate::selector;

/// Context of the Pod's admission request, all of it from watch caches and the verified request.
#[derive(Debug, Clone, Copy, Default)]
pub struct PodContext<'a> {
    /// The tenant of the Pod's namespace, from the namespace's own label; never from the Pod.
    pub tenant: Option<&'a TenantId>,
    /// The rule that the Pod is a companion of. Set only when the request comes from the manager.
    pub rule: Option<&'a Rule>,
    /// The NamespaceOffloading of the Pod's namespace, where the namespace is offloaded.
    pub offloading: Option<offloading::OffloadingContext<'a>>,
    /// The slot that the Pod takes, where it is a guest.
    pub machine: Option<machine::GuestSlot<'a>>,
    /// Node label that names the host of a DPU.
    pub host_label: &'a str,
}

/// Results of the steps besides the change itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Admission warnings for whoever made the request. At most 120 characters each are shown whole.
    pub warnings: Vec<String>,
}

/// One step: its name, as metrics and logs call it, and its function.
pub type Step = (&'static str, fn(&mut Value, &PodContext<'_>, &mut Report) -> Result<(), FieldError>);

/// The steps in their order.
pub const STEPS: &[Step] = &[
    ("machine", machine::apply),
    ("offloading", offloading::apply),
    ("companion", companion::apply),
    ("isolation", isolation::apply),
    ("claims", claims::apply),
];

/// How a warning begins that tells of a contradiction.
const NO_NODE: &str = "no node can match this Pod";

/// Runs all steps on a Pod.
///
/// # Errors
/// The first field that makes it impossible to place the Pod safely; the request has to be denied then. What `pod` holds
/// after an error is of no use.
pub fn mutate(pod: &mut Value, facts: &PodContext<'_>) -> Result<Report, FieldError> {
    mutate_told(pod, facts, &mut |_, _| ())
}

/// Called after each step with the step's name and whether it succeeded, so that callers with a clock can measure it.
pub type StepObserver<'a> = &'a mut dyn FnMut(&'static str, bool);

fn mutate_told(
    pod: &mut Value,
    facts: &PodContext<'_>,
    told: StepObserver<'_>,
) -> Result<Report, FieldError> {
    let mut report = Report::default();
    for (name, step) in STEPS {
        let done = step(pod, facts, &mut report);
        told(name, done.is_ok());
        done?;
    }
    // A step that knows which parts contradict each other has reported it.
    if !report.warnings.iter().any(|warning| warning.starts_with(NO_NODE))
        && let Some(both) = selector::contradiction(pod)
    {
        report.warnings.push(format!("{NO_NODE}: {both}"));
    }
    Ok(report)
}

/// The fields that the steps may change, by parent and key. Everything else in a Pod belongs to others.
const OWNED: [(&str, &str); 5] = [
    ("metadata", "annotations"),
    ("spec", "affinity"),
    ("spec", "tolerations"),
    ("spec", "schedulingGates"),
    ("spec", "resourceClaims"),
];

/// Lists of containers that the steps may change of guests besides.
const OWNED_OF_GUESTS: &[&str] = &["containers"];

/// Runs all steps on a Pod and returns the patch that makes the Pod what it is then. Only what the steps may change is
/// copied and compared: most of a Pod is containers, which the steps change only to give them a slot or devices.
pub fn patch(pod: &mut Value, facts: &PodContext<'_>) -> Result<(Patch, Report), FieldError> {
    patch_told(pod, facts, &mut |_, _| ())
}

/// As [`patch`], and tells of each step.
pub fn patch_told(
    pod: &mut Value,
    facts: &PodContext<'_>,
    told: StepObserver<'_>,
) -> Result<(Patch, Report), FieldError> {
    let containers: &[&str] = match (facts.rule, facts.machine) {
        (Some(rule), _) if !rule.devices().claims().is_empty() => &claims::CONTAINERS,
        (_, Some(_)) => OWNED_OF_GUESTS,
        _ => &[],
    };
    let mut before = owned(pod, containers);
    let report = mutate_told(pod, facts, told)?;
    let mut after = owned(pod, containers);
    let terms = new_terms(&mut before, &mut after);
    let mut patch = json_patch::diff(&before, &after);
    patch.0.extend(terms);
    Ok((patch, report))
}

/// Terms of the required node affinity that are not what they were, taken out of both as one operation. Compared one by
/// one, each would get operations of its own with a path that is longer than most of what changes.
fn new_terms(before: &mut Value, after: &mut Value) -> Option<PatchOperation> {
    let path = selector::POINTER.try_into().ok()?;
    let (old, new) = (before.pointer_mut(selector::POINTER)?, after.pointer_mut(selector::POINTER)?);
    if old == new {
        return None;
    }
    *old = Value::Null;
    Some(PatchOperation::Replace(ReplaceOperation { path, value: new.take() }))
}

/// A copy of what the steps may change, and of these lists of containers, at its place. A parent that is there is there in
/// the copy too: a patch must not create it again.
fn owned(pod: &Value, containers: &[&'static str]) -> Value {
    let mut copy = Map::new();
    let containers = containers.iter().map(|list| ("spec", *list));
    for (parent, key) in OWNED.into_iter().chain(containers) {
        let Some(found) = pod.get(parent) else { continue };
        let Some(object) = found.as_object() else {
            copy.insert(parent.to_owned(), found.clone());
            continue;
        };
        let slot = copy.entry(parent).or_insert_with(|| Value::Object(Map::new()));
        if let (Value::Object(slot), Some(value)) = (slot, object.get(key)) {
            slot.insert(key.to_owned(), value.clone());
        }
    }
    Value::Object(copy)
}

/// Refuses a Pod whose labels, annotations or scheduling gates are under Outrigger's domain. For requests that don't
/// come from the manager: such keys are facts that others rely on.
pub fn refuse_own_keys(pod: &Value) -> Result<(), FieldError> {
    for map in ["labels", "annotations"] {
        let found = pod.get("metadata").and_then(|m| m.get(map)).and_then(Value::as_object);
        if let Some(key) = found.and_then(|map| map.keys().find(|key| keys::is_own(key))) {
            return Err(FieldError::new(
                format_args!("metadata.{map}[{key}]"),
                format_args!("only Outrigger itself may set keys under {}; remove it", keys::DOMAIN),
            ));
        }
    }
    let gates = pod.pointer("/spec/schedulingGates").and_then(Value::as_array);
    for (i, gate) in gates.into_iter().flatten().enumerate() {
        if gate.get("name").and_then(Value::as_str).is_some_and(keys::is_own) {
            return Err(FieldError::new(
                format_args!("spec.schedulingGates[{i}].name"),
                format_args!("only Outrigger itself may set gates under {}; remove it", keys::DOMAIN),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
