//! What else of the cluster a Pod may name.

use serde_json::Value;

use super::{ValidationContext, entries, reserved, text};
use crate::claim::{Source, own_shared_name};
use crate::field::{FieldError, FieldErrors};
use crate::json::label;
use crate::keys;
use crate::steps::step;
use crate::text::quoted;

/// The service account that every namespace has, and that has no rights of its own.
const DEFAULT_ACCOUNT: &str = "default";

/// The identity of the Pod at the API server, and at others who trust its tokens and certificates.
pub(super) fn accounts(pod: &Value, facts: &ValidationContext<'_>, faults: &mut Vec<FieldError>) {
    let spec = &pod["spec"];
    // `serviceAccount` is the old name of the same field; the API server keeps them equal.
    for key in ["serviceAccountName", "serviceAccount"] {
        if let Some(name) = text(spec, key)
            && name != DEFAULT_ACCOUNT
            && !facts.policy.service_accounts.contains(name)
        {
            let remedy = "or have it allowed by the Tenant's spec.serviceAccounts";
            let message = format!("is {:?}; use {DEFAULT_ACCOUNT:?}, {remedy}", quoted(name));
            faults.add(format_args!("spec.{key}"), message);
        }
    }
    for (path, volume) in entries(spec, "spec", "volumes") {
        let Some(projected) = volume.get("projected") else { continue };
        for (path, source) in entries(projected, &format!("{path}.projected"), "sources") {
            // Without audience it is the token that the API server mounts by itself.
            if let Some(audience) =
                source.get("serviceAccountToken").and_then(|token| text(token, "audience"))
            {
                faults.add(
                    format_args!("{path}.serviceAccountToken.audience"),
                    format_args!(
                        "is {:?}: a tenant's Pod gets no tokens for others than the API server; remove it",
                        quoted(audience)
                    ),
                );
            }
            // A signer of the platform may certify more than the Pod's tenant: that it is an agent, for example.
            if let Some(certificate) = source.get("podCertificate").filter(|source| !source.is_null()) {
                let signer = text(certificate, "signerName").unwrap_or_default();
                faults.add(
                    format_args!("{path}.podCertificate.signerName"),
                    format_args!(
                        "is {:?}: a tenant's Pod gets no certificate of a signer of the platform; remove it",
                        quoted(signer)
                    ),
                );
            }
        }
    }
}

/// Classes that give a Pod more than others have: priority takes DPU room from the platform's own Pods, and a runtime may
/// be less of a sandbox.
pub(super) fn classes(pod: &Value, facts: &ValidationContext<'_>, faults: &mut Vec<FieldError>) {
    let policy = facts.policy;
    for (key, usual, allowed, list) in [
        ("priorityClassName", facts.default_priority_class, &policy.priority_classes, "priorityClasses"),
        ("runtimeClassName", None, &policy.runtime_classes, "runtimeClasses"),
    ] {
        let name = text(&pod["spec"], key).filter(|name| usual != Some(*name) && !allowed.contains(*name));
        faults.extend(name.map(|name| {
            let remedy = format!("remove it, or have it allowed by the Tenant's spec.{list}");
            FieldError::new(format_args!("spec.{key}"), format_args!("is {:?}; {remedy}", quoted(name)))
        }));
    }
}

/// A claim that was made for one workload is no other's, also when it is named before it is there: the names of companions
/// and of their claims can be predicted.
pub(super) fn claims(pod: &Value, facts: &ValidationContext<'_>, faults: &mut Vec<FieldError>) {
    let own = label(pod, keys::WORKLOAD);
    for (path, claim) in entries(&pod["spec"], "spec", "resourceClaims") {
        step();
        let Some(name) = text(claim, "resourceClaimName") else { continue };
        let whose = if let Some(workload) = facts.claims.get(name) {
            if own == Some(workload) {
                continue;
            }
            format!("which was made for workload {workload:?} alone")
        } else if is_of_own_pod(name, facts) {
            continue;
        } else if let Some(pod) = facts.pod_claims.get(name) {
            made_for(pod)
        } else if reserved::is_of_companion(name)
            && !own.is_some_and(|own| reserved::is_for(name, own) || is_shared(name, own, facts))
        {
            "a name as only claims for one workload have it; use a claim with another name".to_owned()
        } else {
            continue;
        };
        faults.add(format_args!("{path}.resourceClaimName"), format_args!("is {:?}, {whose}", quoted(name)));
    }
}

/// A claim that Kubernetes made for one Pod is no other's. Those of companions are in [`claims`]; the Pods here are the tenant's own,
/// in one namespace, and each of them could ask for such a device.
pub(super) fn pod_claims(pod: &Value, facts: &ValidationContext<'_>, faults: &mut Vec<FieldError>) {
    for (path, claim) in entries(&pod["spec"], "spec", "resourceClaims") {
        step();
        let Some(name) = text(claim, "resourceClaimName").filter(|name| is_of_own_pod(name, facts)) else {
            continue;
        };
        let Some(pod) = facts.pod_claims.get(name) else { continue };
        faults.add(
            format_args!("{path}.resourceClaimName"),
            format_args!("is {:?}, {}", quoted(name), made_for(pod)),
        );
    }
}

/// Whether Kubernetes made the claim of this name for a Pod that is no companion.
fn is_of_own_pod(name: &str, facts: &ValidationContext<'_>) -> bool {
    let made_for = facts.pod_claims.get(name).filter(|_| !facts.claims.contains_key(name));
    made_for.is_some_and(|pod| reserved::is_of_pod(name, pod))
}

fn made_for(pod: &str) -> String {
    format!("which was made for Pod {pod:?} alone")
}

/// Whether the Pod's rule lets its companion for this workload use the claim of this name (`fromRule`). The claim's name need
/// not tell its rule, and it may not be there yet.
fn is_shared(name: &str, workload: &str, facts: &ValidationContext<'_>) -> bool {
    let mut claims = facts.rule.into_iter().flat_map(|rule| rule.devices().claims());
    claims.any(|claim| {
        step();
        matches!(&claim.source, Source::Rule(of) if own_shared_name(of, workload) == name)
    })
}

/// Devices that a container asks for by the name of a resource (KEP-5004): the scheduler makes a claim of it. Where several
/// classes stand behind one resource, the scheduler chooses.
pub(super) fn device_classes(pod: &Value, facts: &ValidationContext<'_>, faults: &mut Vec<FieldError>) {
    let allowed = |class: &str| facts.policy.device_classes.contains(class);
    for list in ["initContainers", "containers"] {
        for (path, container) in entries(&pod["spec"], "spec", list) {
            let Some(resources) = container.get("resources") else { continue };
            for of in ["limits", "requests"] {
                for name in resources.get(of).and_then(Value::as_object).into_iter().flat_map(|r| r.keys()) {
                    let implied = name.strip_prefix(keys::DEVICE_CLASS_RESOURCE);
                    let behind = facts.device_resources.get(name).into_iter().flatten().map(String::as_str);
                    let Some(class) = implied.into_iter().chain(behind).find(|class| !allowed(class)) else {
                        continue;
                    };
                    let remedy = "have it allowed by the Tenant's spec.deviceClasses";
                    faults.add(
                        format_args!("{path}.resources.{of}[{}]", quoted(name)),
                        format_args!("asks for a device of class {:?}; {remedy}", quoted(class)),
                    );
                }
            }
        }
    }
}

/// Only the manager says what is a rule's companion. Whoever owns a Pod decides when it goes.
pub(super) fn owners(pod: &Value, facts: &ValidationContext<'_>, faults: &mut Vec<FieldError>) {
    if facts.manager {
        return;
    }
    let Some(metadata) = pod.get("metadata") else { return };
    for (path, owner) in entries(metadata, "metadata", "ownerReferences") {
        let group = text(owner, "apiVersion").and_then(|v| v.split_once('/')).map_or("", |(group, _)| group);
        if group == keys::WORKLOAD_GROUP || keys::is_own(&format!("{group}/")) {
            let name = text(owner, "name").unwrap_or_default();
            let kind = text(owner, "kind").unwrap_or_default();
            faults.add(
                path,
                format_args!(
                    "is {} {:?}: only Outrigger makes companions; remove it",
                    quoted(kind),
                    quoted(name)
                ),
            );
        }
    }
}
