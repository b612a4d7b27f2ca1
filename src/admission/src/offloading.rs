//! NamespaceOffloadings: which one applies to a Pod, and their own validation, with the messages of Liqo's webhook where it
//! has some.

use std::sync::Arc;

use outrigger_api::NamespaceOffloading;
use outrigger_core::json::{label, text};
use outrigger_core::keys;
use outrigger_core::offloading::{NAME, Offloading, is_reserved};
use serde_json::Value;

use crate::caches::Caches;
use crate::decision::Decision;
use crate::handler::{Admission, CacheStale, Context, Refusal};
use crate::review::Request;

/// The offloading of a Pod's namespace; `None` where the namespace is not offloaded. Returns [`CacheStale`] where the namespace
/// has the label and the cache shows no NamespaceOffloading. A guess could run the Pod in the wrong cluster.
pub(crate) fn of(caches: &Caches, namespace: &str) -> Result<Option<Arc<Offloading>>, CacheStale> {
    if !caches.is_offloaded(namespace) {
        return Ok(None);
    }
    let offloading = caches.offloading(namespace).ok_or_else(|| {
        CacheStale(format!(
            "NamespaceOffloading {NAME} is missing in namespace {namespace}, or is not known yet; the namespace's label \
             {} says that there is one",
            keys::OFFLOADED
        ))
    })?;
    Ok(Some(offloading))
}

/// Validates what the schema can't express: which fields may change, and which changes deserve a warning.
pub(crate) fn validate(_: Context<'_>, request: &mut Request) -> Result<Admission, Refusal> {
    let object = &request.object;
    let skips = |object: &Value| label(object, keys::WEBHOOK_SKIP) == Some("true");
    // The semantics of an objectSelector: an update is validated where either the new or the old object matches.
    if skips(object) && (request.operation != "UPDATE" || skips(&request.old_object)) {
        return Ok(Decision::allow().into());
    }
    if text(object, "/metadata/name") != NAME {
        return Ok(Decision::deny(403, format!("NamespaceOffloading name must match {NAME}")).into());
    }
    let new =
        NamespaceOffloading::read(object).map_err(|error| Decision::deny(422, format!("spec: {error}")))?;
    let decision = match request.operation.as_str() {
        "CREATE" => create(&new, &request.namespace),
        "UPDATE" => update(&new, &request.old_object),
        _ => Decision::allow(),
    };
    Ok(decision.into())
}

fn create(new: &NamespaceOffloading, namespace: &str) -> Decision {
    if new.spec.namespace_mapping_strategy == "SelectedName" && new.spec.remote_namespace_name.is_empty() {
        return Decision::deny(
            403,
            "The RemoteNamespaceName value cannot be empty when using the SelectedName NamespaceMappingStrategy",
        );
    }
    if is_reserved(namespace) {
        return Decision::deny(
            403,
            format!("metadata.namespace: is {namespace:?}, whose Pods are the cluster's own and stay local"),
        );
    }
    selector(new)
}

fn update(new: &NamespaceOffloading, old: &Value) -> Decision {
    let old = match NamespaceOffloading::read(old) {
        Ok(old) => old,
        Err(error) => return Decision::deny(400, format!("oldObject: {error}")),
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
            return Decision::deny(403, format!("The {name} value cannot be modified after creation"));
        }
    }
    // An object that was invalid before may still lose its finalizers.
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
    Decision::warn(warnings)
}

/// Refuses an invalid selector here, where its author sees the message.
fn selector(new: &NamespaceOffloading) -> Decision {
    Decision::by_fields(422, &new.compile().err().unwrap_or_default())
}

#[cfg(test)]
mod tests;
