//! What is kept of a companion Pod: little, because there is one for each match.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use outrigger_core::companion::{Observed, annotations_size, is_owner};
use outrigger_core::ids::{RuleName, TenantId};
use outrigger_core::index::CompanionKey;
use outrigger_core::keys;

/// Whose companion a Pod is, and what is worth knowing of it. `None` for a Pod that is no companion of a tenant's rule.
pub fn observe(pod: &Pod) -> Option<(CompanionKey, Observed)> {
    let metadata = &pod.metadata;
    let owner = metadata
        .owner_references
        .as_deref()?
        .iter()
        .find(|r| is_owner(&r.api_version, &r.kind, r.controller))?;
    let key = CompanionKey { rule: RuleName::new(&owner.name).ok()?, workload: workload(pod)? };
    Some((key, look(pod, &owner.uid)))
}

/// The same of a Pod in the namespace where the companions of admin rules live, and the tenant whose workload it serves.
/// Only the manager can have written what this reads there.
pub fn observe_admin(pod: &Pod) -> Option<(TenantId, CompanionKey, Observed)> {
    let metadata = &pod.metadata;
    let tenant = TenantId::of_namespace(metadata.labels.as_ref()?)?;
    let annotations = metadata.annotations.as_ref()?;
    let rule = RuleName::admin(annotations.get(keys::ADMIN_RULE)?).ok()?;
    let key = CompanionKey { rule, workload: workload(pod)? };
    Some((tenant, key, look(pod, annotations.get(keys::RULE_UID)?)))
}

fn workload(pod: &Pod) -> Option<Arc<str>> {
    Some(pod.metadata.labels.as_ref()?.get(keys::WORKLOAD)?.as_str().into())
}

fn look(pod: &Pod, rule_uid: &str) -> Observed {
    let metadata = &pod.metadata;
    let none = BTreeMap::new();
    let annotations = metadata.annotations.as_ref().unwrap_or(&none);
    let injected: Option<Vec<String>> =
        annotations.get(keys::INJECTED).and_then(|list| serde_json::from_str(list).ok());
    let facts = injected
        .iter()
        .flatten()
        .filter_map(|name| annotations.get(name).map(|value| (name.clone(), value.clone())))
        .collect();
    let status = pod.status.as_ref();
    let condition = |kind: &str| {
        status.and_then(|s| s.conditions.as_deref()).into_iter().flatten().find(|c| c.type_ == kind)
    };
    let ready = condition("Ready").is_some_and(|c| c.status == "True");
    let gates = pod.spec.as_ref().and_then(|s| s.scheduling_gates.as_deref()).unwrap_or_default();
    Observed {
        uid: metadata.uid.clone().unwrap_or_default(),
        rule_uid: rule_uid.to_owned(),
        template_hash: annotations.get(keys::TEMPLATE_HASH).cloned().unwrap_or_default(),
        host: annotations.get(keys::HOST).cloned(),
        annotations: facts,
        annotations_size: annotations_size(annotations),
        injected,
        gated: gates.iter().any(|g| g.name == keys::ADMISSION_GATE),
        unplaced: condition("PodScheduled").is_some_and(|c| c.status == "False"),
        terminating: metadata.deletion_timestamp.is_some(),
        failed: status.and_then(|s| s.phase.as_deref()) == Some("Failed"),
        message: if ready { String::new() } else { why_not_ready(pod) },
        ready,
    }
}

/// The most telling of what the scheduler and the kubelet say of a Pod that isn't ready.
fn why_not_ready(pod: &Pod) -> String {
    let Some(status) = &pod.status else { return String::new() };
    let conditions = status.conditions.as_deref().unwrap_or_default();
    if let Some(unscheduled) = conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status == "False") {
        return unscheduled.message.clone().unwrap_or_default();
    }
    let waiting = status.container_statuses.iter().flatten().find_map(|c| {
        let waiting = c.state.as_ref()?.waiting.as_ref()?;
        Some(format!(
            "container {}: {}{}",
            c.name,
            waiting.reason.as_deref().unwrap_or("Waiting"),
            waiting.message.as_deref().map(|m| format!(": {m}")).unwrap_or_default()
        ))
    });
    waiting.or_else(|| status.message.clone()).unwrap_or_default()
}
