//! The report of `outrigger status`. docs/status.md describes its structure, which is stable.

use std::collections::BTreeMap;

use serde::Serialize;

/// All of it. A part that isn't visible, or that the cluster doesn't have, is absent.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// What couldn't be read, and why.
    pub(super) not_visible: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) installation: Option<InstallationStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tenants: Option<Vec<TenantRow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rules: Option<Vec<RuleRow>>,
    /// How many companions there are, by tenant's namespace and state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) companions: Option<BTreeMap<String, BTreeMap<&'static str, usize>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dpus: Option<Vec<DpuRow>>,
    pub(super) certificates: Vec<CertificateRow>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InstallationStatus {
    pub(super) namespace: String,
    pub(super) parts: Vec<PartRow>,
    pub(super) webhooks: Vec<WebhookRow>,
    /// `None`: they aren't visible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) policies: Option<Policies>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PartRow {
    pub(super) part: &'static str,
    pub(super) versions: Vec<String>,
    pub(super) ready: i64,
    pub(super) replicas: i64,
}

/// A webhook configuration.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WebhookRow {
    pub(super) kind: &'static str,
    /// Outrigger's own entries; 0 where there is no configuration.
    pub(super) entries: usize,
}

/// The policies inside the API server.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Policies {
    /// How many are shipped.
    pub(super) shipped: usize,
    /// Names of those of which the policy or its binding doesn't exist.
    pub(super) missing: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TenantRow {
    pub(super) name: String,
    /// Status of its condition Ready: `True`, `False` or `Unknown`.
    pub(super) ready: String,
    /// Reason and message of the first condition that isn't True.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) message: String,
    pub(super) dpus: i64,
    /// Whether its agent's stream is open; absent if the agent has never connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) connected: Option<bool>,
    /// Since when.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) since: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) workloads: Option<i64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RuleRow {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) matched: i64,
    pub(super) created: i64,
    pub(super) ready: i64,
    /// Reason and message of the first condition that isn't True; empty where all are.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) message: String,
}

/// The DPUs of an owner.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DpuRow {
    /// The tenant; empty for DPUs without one.
    pub(super) tenant: String,
    pub(super) dpus: usize,
    pub(super) ready: usize,
    pub(super) cordoned: usize,
    /// On their way to another tenant.
    pub(super) handed_over: usize,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CertificateRow {
    /// The part that has it.
    pub(super) part: &'static str,
    /// `certificate` or `CA`.
    pub(super) what: &'static str,
    /// The Secret or ConfigMap.
    pub(super) object: String,
    /// When the first of them ends; of several CAs the last.
    pub(super) not_after: String,
    /// `Valid`, `Expires` (it was to be renewed) or `Expired`.
    pub(super) state: &'static str,
}
