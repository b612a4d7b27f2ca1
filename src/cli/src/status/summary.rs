//! Rows and counts of plain objects.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use outrigger_core::companion::Observed;
use outrigger_core::host::HostLabels;
use outrigger_core::json::{list, text};
use outrigger_core::keys;
use outrigger_core::reason::Cause;
use outrigger_runtime::expiry::Validity;
use outrigger_runtime::pod::Pod;
use outrigger_runtime::probe;
use serde_json::Value;

use super::files::Files;
use super::report::{CertificateRow, DpuRow, LeaderRow, Policies, RuleRow, TenantRow};
use crate::companion::of_pod;
use crate::condition;
use crate::explain::TENANT_CONDITIONS;

/// The policies that are shipped.
const POLICIES: &str = include_str!("../../../../webhooks/policies.yaml");

fn number(value: &Value, pointer: &str) -> i64 {
    value.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

/// Reason and message of the first of an object's conditions that isn't True. Later conditions follow from earlier ones.
fn problem(object: &Value, kinds: &[&str]) -> (String, String) {
    let said = |condition, part| text(condition, part).to_owned();
    let first = condition::untrue(object, kinds).next();
    first.map_or_else(Default::default, |wrong| (said(wrong, "/reason"), said(wrong, "/message")))
}

pub(crate) fn tenant(object: &Value) -> TenantRow {
    let ready = condition::named(object, "Ready").map_or("Unknown", |condition| text(condition, "/status"));
    let (reason, message) = problem(object, &TENANT_CONDITIONS);
    TenantRow {
        name: text(object, "/metadata/name").to_owned(),
        ready: ready.to_owned(),
        reason,
        message,
        enforcement: text(object, "/status/enforcement").to_owned(),
        dpus: number(object, "/status/dpus"),
        connected: object.pointer("/status/stream/connected").and_then(Value::as_bool),
        since: text(object, "/status/stream/since").to_owned(),
        no_manager_since: String::new(),
        workloads: object.pointer("/status/stream/workloads").and_then(Value::as_i64),
    }
}

/// How long after its end a Lease counts as expired, in seconds: its times are those of another machine's clock.
const CLOCKS: i64 = 30;

/// What the managers' Lease says at a time in seconds of Unix time; `None` if it has never been renewed.
pub(crate) fn leader(lease: &Value, now: i64) -> Option<LeaderRow> {
    let renewed = text(lease, "/spec/renewTime").to_owned();
    let at: Timestamp = renewed.parse().ok()?;
    let lasts = number(lease, "/spec/leaseDurationSeconds").max(0);
    let expired = now.saturating_sub(at.as_second()) > lasts.saturating_add(CLOCKS);
    // Managers write fractions of seconds, which say nothing to people.
    let renewed = Timestamp::from_second(at.as_second()).map_or(renewed, |at| at.to_string());
    Some(LeaderRow { holder: text(lease, "/spec/holderIdentity").to_owned(), renewed, expired })
}

/// How many companions a rule's workloads should have. Rules with one companion on each DPU say it, those of the platform for each tenant.
fn wanted(object: &Value) -> i64 {
    let said = |of: &Value, field: &str| of.pointer(field).and_then(Value::as_i64);
    let of_tenant = |tenant: &Value| said(tenant, "/wanted").unwrap_or_else(|| number(tenant, "/matched"));
    let tenants = object.pointer("/status/tenants").and_then(Value::as_object);
    let of_tenants = tenants.map(|tenants| tenants.values().map(of_tenant).sum());
    said(object, "/status/wanted").or(of_tenants).unwrap_or_else(|| number(object, "/status/matched"))
}

/// A WorkloadRule, or an AdminWorkloadRule.
pub(crate) fn rule(object: &Value) -> RuleRow {
    let (mut reason, mut message) = problem(object, &["Accepted", "Synced", "Ready"]);
    if list(object, "/status/conditions").is_empty() {
        Cause::NoStatus.as_str().clone_into(&mut reason);
        message = format!("{}: {}", Cause::NoStatus.meaning(), Cause::NoStatus.platform_remedy());
    }
    RuleRow {
        kind: text(object, "/kind").to_owned(),
        namespace: text(object, "/metadata/namespace").to_owned(),
        name: text(object, "/metadata/name").to_owned(),
        matched: number(object, "/status/matched"),
        wanted: wanted(object),
        created: number(object, "/status/created"),
        ready: number(object, "/status/ready"),
        reason,
        message,
    }
}

/// The state of a companion in a word.
pub(crate) fn state(observed: &Observed) -> &'static str {
    match observed {
        o if o.terminating => "Terminating",
        o if o.failed => "Failed",
        o if o.gated => "NotAdmitted",
        o if o.ready => "Ready",
        o if o.unplaced => "Unschedulable",
        _ => "Starting",
    }
}

/// How many companions there are, by namespace and state.
pub(crate) type Counts = BTreeMap<String, BTreeMap<&'static str, usize>>;

/// Counts a companion under its namespace and state.
pub(crate) fn count(namespace: &str, state: &'static str, counts: &mut Counts) {
    *counts.entry(namespace.to_owned()).or_default().entry(state).or_default() += 1;
}

/// Counts a companion. Other Pods aren't counted.
pub(crate) fn companion(pod: &Pod, admin_namespace: &str, counts: &mut Counts) {
    let Some((_, _, observed)) = of_pod(pod, admin_namespace) else { return };
    count(pod.metadata.namespace.as_deref().unwrap_or_default(), state(&observed), counts);
}

impl DpuRow {
    /// What is counted of one DPU. `None`: the Node isn't one.
    pub(crate) fn of(node: &Node, host_labels: &HostLabels) -> Option<Self> {
        let labels = node.labels();
        let tenant = labels.get(keys::NODE_TENANT);
        if tenant.is_none() && !host_labels.keys().any(|key| labels.contains_key(key)) {
            return None;
        }
        let status = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        let spec = node.spec.as_ref();
        let mut taints = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
        Some(Self {
            tenant: tenant.cloned().unwrap_or_default(),
            dpus: 1,
            ready: status.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True").into(),
            cordoned: spec.is_some_and(|spec| spec.unschedulable == Some(true)).into(),
            handed_over: taints.any(|taint| taint.key == keys::HANDOVER).into(),
        })
    }

    /// Adds it to the row of its owner.
    pub(crate) fn count(&self, rows: &mut BTreeMap<String, DpuRow>) {
        let row = rows.entry(self.tenant.clone()).or_default();
        row.tenant.clone_from(&self.tenant);
        row.dpus += self.dpus;
        row.ready += self.ready;
        row.cordoned += self.cordoned;
        row.handed_over += self.handed_over;
    }
}

/// Compares the shipped policies with the names of the policies and bindings in the API, and with files, if it is known whether the API
/// server has loaded them.
pub(crate) fn policies(api: (&[String], &[String]), files: Option<(&Files, bool)>) -> Policies {
    let line = |line: &'static str| line.strip_prefix("  name: ");
    let shipped: BTreeSet<&str> = POLICIES.lines().filter_map(line).collect();
    let loaded = files.filter(|(_, loaded)| *loaded);
    // A binding in the API never binds a policy of a file.
    let mut sources = vec![api];
    sources.extend(loaded.map(|(files, _)| (&files.policies[..], &files.bindings[..])));
    let exists = |name: &str| {
        let has = |all: &[String]| all.iter().any(|other| other == name);
        sources.iter().any(|(policies, bindings)| has(policies) && has(bindings))
    };
    let missing = shipped.iter().filter(|name| !exists(name)).map(|name| (*name).to_owned()).collect();
    Policies { shipped: shipped.len(), missing, files_loaded: files.map(|(_, loaded)| loaded) }
}

/// The certificate, or the CAs, in a PEM text, at a time in seconds of Unix time. Of several CAs the one that ends last counts.
pub(crate) fn certificate(
    part: &'static str,
    what: &'static str,
    object: String,
    pem: &[u8],
    now: i64,
) -> Result<CertificateRow, String> {
    let all = probe::certificates(pem).map_err(|error| format!("{object}: {error:#}"))?;
    let mut validities = all.iter().filter_map(|certificate| Validity::of(certificate).ok());
    let validity =
        if what == "CA" { validities.max_by_key(|validity| validity.not_after) } else { validities.next() };
    let validity = validity.ok_or_else(|| format!("{object}: has no certificate"))?;
    let state = match now {
        now if now > validity.not_after => "Expired",
        now if now >= validity.warning() => "Expires",
        _ => "Valid",
    };
    let at = Timestamp::from_second(validity.not_after).map_err(|error| format!("{object}: {error}"))?;
    Ok(CertificateRow { part, what, object, not_after: at.to_string(), state })
}

#[cfg(test)]
mod tests;
