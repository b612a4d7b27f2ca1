//! The status of a tenant, computed from the caches.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use outrigger_api::conditions::Status;
use outrigger_core::ids::TenantId;
use outrigger_core::tenant::Tenant;
use outrigger_core::validate;
use serde::Serialize;

use super::namespace;
use crate::conditions::{ConditionValue, conditions};
use crate::state::registry::{Registry, TenantEntry};

/// Names that a message lists.
const SHOWN: usize = 5;

/// What the controller writes of a tenant's status; the stream is its holder's.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ControllerStatus {
    pub(super) observed_generation: Option<i64>,
    pub(super) namespace: Option<String>,
    pub(super) dpus: Option<i64>,
    pub(super) conditions: Vec<Condition>,
}

impl ControllerStatus {
    /// What is written there now.
    pub(super) fn now(entry: &TenantEntry) -> Self {
        let status = entry.object.status.clone().unwrap_or_default();
        Self {
            observed_generation: status.observed_generation,
            namespace: status.namespace,
            dpus: status.dpus,
            conditions: status.conditions,
        }
    }
}

fn fine(reason: &'static str, message: impl Into<String>) -> ConditionValue {
    (Status::True, reason, message.into())
}

fn wrong(reason: &'static str, message: impl Into<String>) -> ConditionValue {
    (Status::False, reason, message.into())
}

/// The status that a tenant should have. `namespace`: what was found of it; `None` where it was not looked for.
pub(super) fn compute(
    registry: &Registry,
    id: &TenantId,
    entry: &TenantEntry,
    namespace: Option<&namespace::State>,
    now: Timestamp,
) -> ControllerStatus {
    let mut told: Vec<(&str, ConditionValue)> = Vec::new();
    let mut dpus = 0;
    match &entry.tenant {
        Err(errors) => told.push(("Accepted", wrong("Invalid", validate::message(errors)))),
        Ok(tenant) => {
            told.push(("Accepted", accepted(registry, id)));
            told.push(("NamespaceReady", namespace_ready(tenant, namespace)));
            let (count, hosts) = hosts_ready(registry, id, tenant);
            dpus = count;
            told.push(("HostsReady", hosts));
            told.push(("WithinLimits", within_limits(registry, entry, tenant)));
        }
    }
    let first = told.iter().find(|(_, (status, ..))| *status != Status::True);
    let ready = match first {
        None => fine("Served", format!("{dpus} DPUs")),
        Some((_, (_, reason, message))) => wrong(reason, message.clone()),
    };
    told.push(("Ready", ready));
    finish(entry, dpus, told, now)
}

pub(super) fn terminating(
    entry: &TenantEntry,
    waiting_for: &str,
    dpus: i64,
    now: Timestamp,
) -> ControllerStatus {
    let told = vec![("Ready", wrong("Terminating", format!("waiting for {waiting_for} to be gone")))];
    finish(entry, dpus, told, now)
}

fn finish(
    entry: &TenantEntry,
    dpus: i64,
    told: Vec<(&str, ConditionValue)>,
    now: Timestamp,
) -> ControllerStatus {
    let generation = entry.object.metadata.generation.unwrap_or_default();
    let before = entry.object.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
    ControllerStatus {
        observed_generation: Some(generation),
        namespace: Some(entry.object.target_namespace()),
        dpus: Some(dpus),
        conditions: conditions(before, generation, now, told),
    }
}

fn accepted(registry: &Registry, id: &TenantId) -> ConditionValue {
    match registry.shared_identities(id).first() {
        None => fine("Valid", "the tenant is served"),
        Some((identity, other)) => wrong(
            "IdentityConflict",
            format!(
                "spec.identities: {identity} is an identity of tenant {other} too, and so neither's; remove it from one"
            ),
        ),
    }
}

fn namespace_ready(tenant: &Tenant, state: Option<&namespace::State>) -> ConditionValue {
    match state {
        Some(namespace::State::Ready) => {
            fine("Exists", format!("namespace {} is the tenant's", tenant.namespace))
        }
        Some(namespace::State::NotOurs(why)) => wrong("NotOurs", format!("spec.namespace: {why}")),
        Some(namespace::State::Terminating) => wrong(
            "Terminating",
            format!("namespace {} is being deleted; it will be created again", tenant.namespace),
        ),
        Some(namespace::State::Preparing) => wrong(
            "Preparing",
            format!(
                "the quota of namespace {} isn't counted yet; just after Outrigger's installation that takes half a minute",
                tenant.namespace
            ),
        ),
        None => (Status::Unknown, "Unknown", "not looked at yet".to_owned()),
    }
}

/// How many DPUs the tenant has, and what is with its hosts.
fn hosts_ready(registry: &Registry, id: &TenantId, tenant: &Tenant) -> (i64, ConditionValue) {
    let dpus = registry.dpus();
    let own = |owner: &Option<String>| owner.as_deref() == Some(id.as_str());
    let count = dpus.iter().filter(|(_, dpu)| own(&dpu.marks.owner)).count();
    let (mut contested, mut moving, mut without) = (Vec::new(), Vec::new(), Vec::new());
    let mut by_host: BTreeMap<&str, Vec<&(String, _)>> = BTreeMap::new();
    for entry in &dpus {
        if let Some(host) = &entry.1.host {
            by_host.entry(host).or_default().push(entry);
        }
    }
    for host in &tenant.hosts {
        let rivals = registry.rivals(host, id);
        if let Some(rival) = rivals.first() {
            contested.push(format!("{host} is claimed by tenant {rival} too"));
        }
        match by_host.get(host.as_str()) {
            None => without.push(host.clone()),
            Some(sitting) if rivals.is_empty() => {
                for (name, dpu) in
                    sitting.iter().filter(|(_, dpu)| !own(&dpu.marks.owner) || dpu.marks.handover.is_some())
                {
                    let from = dpu.marks.owner.as_deref().unwrap_or("nobody");
                    moving.push(format!("{name} in host {host} comes from {from}"));
                }
            }
            Some(_) => {}
        }
    }
    for (name, dpu) in dpus.iter().filter(|(_, dpu)| own(&dpu.marks.owner)) {
        if dpu.host.as_ref().is_none_or(|host| !tenant.hosts.contains(host)) {
            moving.push(format!("{name} is given up: the tenant's Pods on it are going"));
        }
    }
    let told = if !contested.is_empty() {
        wrong(
            "HostConflict",
            format!("spec.hosts: {}; who has a host keeps it, else neither gets it", list(&contested)),
        )
    } else if !moving.is_empty() {
        wrong("HandingOver", list(&moving))
    } else if !without.is_empty() {
        wrong("NoDPU", format!("no DPU's label {} names {}", registry.host_label(), list(&without)))
    } else {
        fine("Served", format!("{count} DPUs in {} hosts", tenant.hosts.len()))
    };
    (i64::try_from(count).unwrap_or(i64::MAX), told)
}

fn within_limits(registry: &Registry, entry: &TenantEntry, tenant: &Tenant) -> ConditionValue {
    let refused =
        entry.object.status.as_ref().and_then(|s| s.stream.as_ref()).and_then(|s| s.refused.clone());
    let mut over: Vec<String> = refused.into_iter().collect();
    over.extend(registry.full(&tenant.namespace));
    if over.is_empty() { fine("Within", "no limit is reached") } else { wrong("LimitReached", list(&over)) }
}

fn list(items: &[String]) -> String {
    let mut text = items[..items.len().min(SHOWN)].join("; ");
    if items.len() > SHOWN {
        text.push_str(&format!("; and {} more", items.len() - SHOWN));
    }
    text
}
