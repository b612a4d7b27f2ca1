//! Outrigger's own labels, annotations and gates, and finalizers.

use serde_json::{Map, Value};

use super::{ValidationContext, entries, text};
use crate::field::{FieldError, FieldErrors};
use crate::json::metadata_map;
use crate::keys;
use crate::steps::step;
use crate::text::quoted;

/// Finalizers that Kubernetes' own controllers put on Pods and take off again. Where one never goes, a hand-over takes it
/// away.
const FINALIZERS: [&str; 3] = ["batch.kubernetes.io/job-tracking", "foregroundDeletion", "orphan"];

/// A finalizer keeps a Pod, and with it its DPU, from being given back.
pub(super) fn finalizers(pod: &Value, _: &ValidationContext<'_>, faults: &mut Vec<FieldError>) {
    let Some(metadata) = pod.get("metadata") else { return };
    for (path, finalizer) in entries(metadata, "metadata", "finalizers") {
        step();
        let name = finalizer.as_str().unwrap_or_default();
        if !FINALIZERS.contains(&name) {
            faults.add(
                path,
                format_args!("is {:?}, which could keep the Pod from ever going; remove it", quoted(name)),
            );
        }
    }
}

/// Labels and annotations under our domain are facts that others rely on, and our gate is what keeps a Pod that wasn't
/// isolated from being scheduled: only the manager changes them. `old` is null at creation.
pub(super) fn unchanged(pod: &Value, old: &Value, manager: bool, faults: &mut Vec<FieldError>) {
    if manager {
        return;
    }
    for map in ["labels", "annotations"] {
        let get = |pod: &'_ Value| -> Map<String, Value> {
            let own = metadata_map(pod, map).iter().filter(|(key, _)| keys::is_own(key));
            own.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        let (now, before) = (get(pod), get(old));
        for key in now.keys().chain(before.keys().filter(|key| !now.contains_key(*key))) {
            let (new, old) = (now.get(key), before.get(key));
            if new != old {
                faults.add(
                    format_args!("metadata.{map}[{}]", quoted(key)),
                    format_args!(
                        "{}; only Outrigger itself may set keys under {}",
                        change(old, new),
                        keys::DOMAIN
                    ),
                );
            }
        }
    }
    let gates = |pod: &Value| -> Vec<String> {
        let all = pod.get("spec").map(|spec| {
            entries(spec, "spec", "schedulingGates")
                .filter_map(|(_, gate)| text(gate, "name").map(str::to_owned))
        });
        let mut own: Vec<String> = all.into_iter().flatten().filter(|name| keys::is_own(name)).collect();
        own.sort();
        own
    };
    let (now, before) = (gates(pod), gates(old));
    if now != before {
        faults.add(
            "spec.schedulingGates",
            format_args!(
                "changes from {} to {}; only Outrigger itself may set gates under {}",
                quoted(&format!("{before:?}")),
                quoted(&format!("{now:?}")),
                keys::DOMAIN
            ),
        );
    }
}

fn change(old: Option<&Value>, new: Option<&Value>) -> String {
    let show = |value: &Value| quoted(&value.to_string()).into_owned();
    match (old, new) {
        (None, Some(new)) => format!("is added as {}", show(new)),
        (Some(old), None) => format!("is removed, was {}", show(old)),
        (old, new) => format!(
            "changes from {} to {}",
            show(old.unwrap_or(&Value::Null)),
            show(new.unwrap_or(&Value::Null))
        ),
    }
}
