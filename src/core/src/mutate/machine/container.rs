//! Which container of a guest gets its slot. Other webhooks insert, remove and reorder containers between two calls, so a
//! container is known by its name and by what it has, never by its place.

use serde_json::{Map, Value};

use super::short;
use crate::field::{self, FieldError};
use crate::keys;
use crate::steps::step;

/// Names of the containers that common injectors add beside a Pod's own. Native sidecars are init containers, which get no slot
/// in any case.
const SIDECARS: [&str; 16] = [
    "azwi-proxy",             // Azure Workload Identity
    "consul-dataplane",       // Consul
    "daprd",                  // Dapr
    "datadog-agent-injected", // Datadog
    "envoy",                  // AWS App Mesh, Open Service Mesh
    "envoy-sidecar",          // Consul before 1.0
    "gke-gcsfuse-sidecar",    // Cloud Storage FUSE
    "istio-proxy",            // Istio
    "jaeger-agent",           // Jaeger
    "kuma-sidecar",           // Kuma
    "linkerd-proxy",          // Linkerd
    "nginx-mesh-sidecar",     // NGINX Service Mesh
    "otc-container",          // OpenTelemetry
    "queue-proxy",            // Knative
    "vault-agent",            // Vault
    "xray-daemon",            // AWS App Mesh
];

/// The labels by which the guest's creator names the container, as Imperator's code calls it and as its design does.
const LABELS: [&str; 2] = [keys::INJECTING_CONTAINER, keys::INJECT_RESOURCE_CONTAINER];

/// The index of the container that gets the slot's resources in this list: the one that got them in an earlier call, by our
/// annotation; the one that a label names; the only one that has the whole slot; the Pod's default container, by kubectl's
/// annotation; else the first that no injector is known to add.
///
/// # Errors
/// A [`FieldError`] where a label or kubectl's annotation names no container, or where two of the names contradict each other.
pub(super) fn choose(
    metadata: &Map<String, Value>,
    containers: &[Value],
    is_whole: impl Fn(&Value) -> bool,
) -> Result<usize, FieldError> {
    let find = |named: &str| containers.iter().position(|container| name(container) == Some(named));
    let annotation = |key| text(metadata, "annotations", key);
    let labelled = labelled(metadata)?;
    let by_label =
        labelled.map(|(key, name)| found(find(name), &format!("labels[{key}]"), name)).transpose()?;
    let record = annotation(keys::INJECTED_CONTAINER)?;
    let by_record = record.and_then(find);
    if let (Some((key, label)), Some(i), Some(j)) = (labelled, by_label, by_record)
        && i != j
    {
        return Err(FieldError::new(
            format_args!("metadata.labels[{key}]"),
            format_args!(
                "is {:?}, but container {:?} has the slot already, as the annotation {} says; remove the annotation, and the \
                 slot's resources from that container",
                short(label),
                short(record.unwrap_or_default()),
                keys::INJECTED_CONTAINER
            ),
        ));
    }
    if let Some(i) = by_record.or(by_label) {
        return Ok(i);
    }
    let mut whole = containers.iter().enumerate().filter(|(_, container)| {
        step();
        is_whole(container)
    });
    if let (Some((i, _)), None) = (whole.next(), whole.next()) {
        return Ok(i);
    }
    if let Some(name) = annotation(keys::DEFAULT_CONTAINER)? {
        return found(find(name), &format!("annotations[{}]", keys::DEFAULT_CONTAINER), name);
    }
    let is_own = |container| !name(container).is_some_and(|name| SIDECARS.contains(&name));
    Ok(containers.iter().position(is_own).unwrap_or_default())
}

/// The label that names the container, and the name.
fn labelled(metadata: &Map<String, Value>) -> Result<Option<(&'static str, &str)>, FieldError> {
    let mut named: Option<(&'static str, &str)> = None;
    for key in LABELS {
        match (named, text(metadata, "labels", key)?) {
            (_, None) => {}
            (None, Some(name)) => named = Some((key, name)),
            (Some((other, first)), Some(name)) if first != name => {
                let (first, name) = (short(first), short(name));
                let message =
                    format!("is {name:?}, but {other} is {first:?}; name one container, by one of both");
                return Err(FieldError::new(format_args!("metadata.labels[{key}]"), message));
            }
            _ => {}
        }
    }
    Ok(named)
}

fn found(index: Option<usize>, key: &str, name: &str) -> Result<usize, FieldError> {
    index.ok_or_else(|| {
        FieldError::new(
            format_args!("metadata.{key}"),
            format_args!(
                "is {:?}, and none of spec.containers has that name; name the one that gets the slot's resources",
                short(name)
            ),
        )
    })
}

/// A label or annotation that isn't empty.
fn text<'a>(metadata: &'a Map<String, Value>, map: &str, key: &str) -> Result<Option<&'a str>, FieldError> {
    let Some(entries) = field::object(metadata, "metadata", map)? else { return Ok(None) };
    Ok(entries.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()))
}

/// A container's name.
pub(super) fn name(container: &Value) -> Option<&str> {
    container.get("name").and_then(Value::as_str)
}

#[cfg(test)]
mod tests;
