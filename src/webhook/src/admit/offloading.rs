//! NamespaceOffloadings: which one concerns a Pod, and their own validation, in the words of Liqo's webhook where that has
//! some.

use std::sync::Arc;

use json_patch::Patch;
use outrigger_api::NamespaceOffloading;
use outrigger_core::keys;
use outrigger_core::offloading::{NAME, Offloading, is_reserved};
use serde_json::Value;

use super::{Behind, deny, deny_fields};
use crate::caches::Caches;
use crate::review::{Decision, Request};

/// Whether the object is one that NamespaceOffloadings are validated as.
pub(super) const KIND: (&str, &str, &str) = ("offloading.liqo.io", "v1beta1", "NamespaceOffloading");

/// What a Pod's namespace asks for; nothing where it is not offloaded.
///
/// # Errors
/// [`Behind`] when the namespace is labelled and there is no NamespaceOffloading, yet or any more. To guess would be to run
/// the Pod where nobody wants it.
pub(super) fn of(caches: &Caches, namespace: &str) -> Result<Option<Arc<Offloading>>, Behind> {
    if !caches.is_offloaded(namespace) {
        return Ok(None);
    }
    let cached = caches.offloading(namespace).ok_or_else(|| {
        Behind(format!(
            "NamespaceOffloading {NAME} is missing in namespace {namespace}, or is not known yet; the namespace's label \
             {} says that there is one",
            keys::OFFLOADED
        ))
    })?;
    Ok(Some(cached.offloading))
}

/// What the schema can't tell: what may change, and what has to be said to that.
pub(super) fn validate(request: &Request) -> Decision {
    let object = &request.object;
    let skips = |object: &Value| {
        let label = object.pointer("/metadata/labels").and_then(|labels| labels.get(keys::WEBHOOK_SKIP));
        label.and_then(Value::as_str) == Some("true")
    };
    // As an objectSelector would have it: an update is looked at where either side asks for it.
    if skips(object) && (request.operation != "UPDATE" || skips(&request.old_object)) {
        return Decision::allow();
    }
    if object.pointer("/metadata/name").and_then(Value::as_str) != Some(NAME) {
        return deny(403, format!("NamespaceOffloading name must match {NAME}"));
    }
    let new = match NamespaceOffloading::read(object) {
        Ok(new) => new,
        Err(error) => return deny(422, format!("spec: {error}")),
    };
    match request.operation.as_str() {
        "CREATE" => create(&new, &request.namespace),
        "UPDATE" => update(&new, &request.old_object),
        _ => Decision::allow(),
    }
}

fn create(new: &NamespaceOffloading, namespace: &str) -> Decision {
    if new.spec.namespace_mapping_strategy == "SelectedName" && new.spec.remote_namespace_name.is_empty() {
        return deny(
            403,
            "The RemoteNamespaceName value cannot be empty when using the SelectedName NamespaceMappingStrategy"
                .to_owned(),
        );
    }
    if is_reserved(namespace) {
        return deny(
            403,
            format!("metadata.namespace: is {namespace:?}, whose Pods are the cluster's own and stay local"),
        );
    }
    selector(new)
}

fn update(new: &NamespaceOffloading, old: &Value) -> Decision {
    let old = match NamespaceOffloading::read(old) {
        Ok(old) => old,
        Err(error) => return deny(400, format!("oldObject: {error}")),
    };
    let (new_spec, old_spec) = (&new.spec, &old.spec);
    for (name, changed) in [
        (
            "NamespaceMappingStrategy",
            new_spec.namespace_mapping_strategy != old_spec.namespace_mapping_strategy,
        ),
        ("RemoteNamespaceName", new_spec.remote_namespace_name != old_spec.remote_namespace_name),
    ] {
        if changed {
            return deny(403, format!("The {name} value cannot be modified after creation"));
        }
    }
    // One that was no better before may still lose its finalizers.
    if new_spec.cluster_selector != old_spec.cluster_selector
        && let denied @ Decision::Deny { .. } = selector(new)
    {
        return denied;
    }
    let mut warnings = Vec::new();
    let strategy = &new_spec.pod_offloading_strategy;
    if *strategy != old_spec.pod_offloading_strategy && strategy != "LocalAndRemote" {
        warnings.push(
            "The PodOffloadingStrategy was mutated to a more restrictive setting: existing pods violating this policy \
             might still be running"
                .to_owned(),
        );
    }
    Decision::Allow { patch: Patch(Vec::new()), warnings }
}

/// A selector that no Pod could have is refused here, where its author reads it.
fn selector(new: &NamespaceOffloading) -> Decision {
    match new.compile() {
        Ok(_) => Decision::allow(),
        Err(faults) => deny_fields(422, &faults),
    }
}

#[cfg(test)]
mod tests;
