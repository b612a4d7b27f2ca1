//! Makes a companion out of the Pod that the manager created from a template: places it, gives it the facts that its
//! rule asks for, and takes off the gate that kept it from being scheduled until then.

use serde_json::{Map, Value};

use super::{PodContext, Report};
use crate::companion::injected_list;
use crate::field::{self, FieldError};
use crate::selector::{self, product};
use crate::workload::Workload;
use crate::{fault, keys};

/// Applies the rule's dpuSelectionPolicy and injections.
///
/// The workload travels in an annotation that this step takes out again, so when another webhook causes a second round
/// the facts are in place and stay; the placement, which that webhook may have changed, is merged in again.
///
/// # Errors
/// A [`FieldError`] where the Pod isn't of the API's shape, or lacks what the manager always puts in.
pub fn apply(pod: &mut Value, facts: &PodContext<'_>, _: &mut Report) -> Result<bool, FieldError> {
    let Some(rule) = facts.rule else { return Ok(false) };
    let object = field::as_object_mut(pod, "")?;
    let metadata = field::object_mut(object, "", "metadata")?;
    let annotations = field::object_mut(metadata, "metadata", "annotations")?;

    let mut changed = false;
    if let Some(transport) = annotations.remove(keys::WORKLOAD) {
        let already_done = annotations.contains_key(keys::INJECTED);
        if already_done {
            // A rule may inject the whole workload under the very key it travels in. Then this is the result of an
            // earlier round and no cargo.
            annotations.insert(keys::WORKLOAD.to_owned(), transport);
        } else {
            inject(annotations, &transport, rule)?;
            changed = true;
        }
    }
    let required = |annotations: &Map<String, Value>, key: &str, needs: &str| {
        let value = field::text(annotations, "metadata.annotations", key)?.filter(|value| !value.is_empty());
        value.map(str::to_owned).ok_or_else(|| {
            FieldError::new(
                format_args!("metadata.annotations[{key}]"),
                format_args!(
                    "is missing: a companion with dpuSelectionPolicy {} needs {needs}",
                    rule.policy().as_str()
                ),
            )
        })
    };
    if rule.policy().is_by_host() {
        let host = required(annotations, keys::HOST, "its workload's node")?;
        let dpu =
            rule.policy().is_on_all().then(|| required(annotations, keys::DPU, "its DPU")).transpose()?;
        changed |= product::and(pod, &facts.host_labels.terms(&host))?;
        if let Some(dpu) = dpu.filter(|_| !fault("companion-runs-on-any-dpu-of-its-host")) {
            // The name and not the label `kubernetes.io/hostname`, which a kubelet may change on its own Node.
            changed |= product::and(pod, &[selector::node_named(&dpu)])?;
        }
    }
    changed |= product::and(pod, &rule.policy().terms())?;
    Ok(remove_gate(pod)? || changed)
}

fn inject(
    annotations: &mut Map<String, Value>,
    transport: &Value,
    rule: &crate::rule::Rule,
) -> Result<(), FieldError> {
    let path = || format!("metadata.annotations[{}]", keys::WORKLOAD);
    let text = transport.as_str().ok_or_else(|| FieldError::new(path(), "must be a string"))?;
    let workload: Workload = serde_json::from_str(text)
        .map_err(|e| FieldError::new(path(), format_args!("is no workload as JSON: {e}")))?;
    let injected = rule.injected(&workload);
    annotations.insert(keys::INJECTED.to_owned(), injected_list(&injected).into());
    annotations.extend(injected.into_iter().map(|(name, value)| (name, value.into())));
    Ok(())
}

/// Returns whether the gate was there.
fn remove_gate(pod: &mut Value) -> Result<bool, FieldError> {
    let spec = field::object_mut(field::as_object_mut(pod, "")?, "", "spec")?;
    let gates = field::list(spec, "spec", "schedulingGates")?;
    let is_ours = |gate: &Value| gate.get("name").and_then(Value::as_str) == Some(keys::ADMISSION_GATE);
    if !gates.iter().any(is_ours) {
        return Ok(false);
    }
    let gates = field::list_mut(spec, "spec", "schedulingGates")?;
    gates.retain(|gate| !is_ours(gate));
    if gates.is_empty() {
        spec.remove("schedulingGates");
    }
    Ok(true)
}
