//! How a Pod is changed at admission: steps in a fixed order, each of which changes raw JSON in place, adds only what
//! Outrigger owns, and finds nothing left to do when it runs again.

mod change;
pub mod claims;
pub mod companion;
pub mod isolation;
pub mod machine;
pub mod offloading;

use serde_json::Value;

use crate::field::FieldError;
use crate::host::HostLabels;
use crate::ids::TenantId;
use crate::json::{list, metadata_map, text};
use crate::keys;
use crate::rule::Rule;
use crate::selector;

pub use change::Before;

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
    /// Node labels that name the host of a DPU.
    pub host_labels: &'a HostLabels,
}

/// Results of the steps besides the change itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Admission warnings for whoever made the request. At most 120 characters each are shown whole.
    pub warnings: Vec<String>,
    /// Names of the steps that changed the Pod, in their order.
    pub changed: Vec<&'static str>,
}

/// One step: its name, as metrics, logs and audit annotations call it, and its function, which returns whether it changed the Pod.
pub type Step = (&'static str, fn(&mut Value, &PodContext<'_>, &mut Report) -> Result<bool, FieldError>);

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
    mutate_observed(pod, facts, &mut |_, _, _| ())
}

/// Called after each step with the step's name, whether it succeeded, and the Pod as it is then, so that callers with a clock
/// can measure it, and others can tell what it did.
pub type StepObserver<'a> = &'a mut dyn FnMut(&'static str, bool, &Value);

/// As [`mutate`], with an observer of each step.
pub fn mutate_observed(
    pod: &mut Value,
    facts: &PodContext<'_>,
    observer: StepObserver<'_>,
) -> Result<Report, FieldError> {
    let mut report = Report::default();
    for (name, step) in STEPS {
        let done = step(pod, facts, &mut report);
        observer(name, done.is_ok(), pod);
        if done? {
            report.changed.push(name);
        }
    }
    // A step that knows which parts contradict each other has reported it.
    if !report.warnings.iter().any(|warning| warning.starts_with(NO_NODE))
        && let Some(both) = selector::contradiction(pod)
    {
        report.warnings.push(format!("{NO_NODE}: {both}"));
    }
    Ok(report)
}

/// Whether a Pod is the mirror of a static one. Its kubelet runs what is in the file, whatever the mirror says: a change of it has no
/// effect.
pub fn is_mirror(pod: &Value) -> bool {
    metadata_map(pod, "annotations").contains_key(keys::MIRROR_POD)
}

/// Refuses a Pod whose labels, annotations or scheduling gates are under Outrigger's domain. For requests that don't
/// come from the manager: such keys are facts that others rely on.
pub fn refuse_own_keys(pod: &Value) -> Result<(), FieldError> {
    for map in ["labels", "annotations"] {
        if let Some(key) = metadata_map(pod, map).keys().find(|key| keys::is_own(key)) {
            return Err(FieldError::new(
                format_args!("metadata.{map}[{key}]"),
                format_args!("only Outrigger itself may set keys under {}; remove it", keys::DOMAIN),
            ));
        }
    }
    for (i, gate) in list(pod, "/spec/schedulingGates").iter().enumerate() {
        if keys::is_own(text(gate, "/name")) {
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
