//! The report of `outrigger status`. docs/status.md describes its structure, which is stable.

use serde::Serialize;

use super::summary::Counts;

/// All of it. A part that isn't visible, or that the cluster doesn't have, is absent.
#[derive(Debug, Default, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// What couldn't be read, and why.
    pub(crate) not_visible: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) installation: Option<InstallationStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenants: Option<Vec<TenantRow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rules: Option<Vec<RuleRow>>,
    /// How many companions there are, by tenant's namespace and state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) companions: Option<Counts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dpus: Option<Vec<DpuRow>>,
    pub(crate) certificates: Vec<CertificateRow>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InstallationStatus {
    pub(crate) namespace: String,
    pub(crate) parts: Vec<PartRow>,
    pub(crate) webhooks: Vec<WebhookRow>,
    /// `None`: they aren't visible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) policies: Option<Policies>,
    /// The manager that leads; `None`: it isn't visible, or none ever has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) leader: Option<LeaderRow>,
}

/// What the Lease of the managers says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeaderRow {
    /// The replica; empty: it has released the Lease.
    pub(crate) holder: String,
    /// When it was renewed last.
    pub(crate) renewed: String,
    /// It has ended, and no replica has taken it: no manager runs, or none reaches the API server.
    pub(crate) expired: bool,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PartRow {
    pub(crate) part: &'static str,
    pub(crate) versions: Vec<String>,
    pub(crate) ready: i64,
    pub(crate) replicas: i64,
}

/// A webhook configuration.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WebhookRow {
    pub(crate) kind: &'static str,
    /// Outrigger's own entries; 0 where there is no configuration.
    pub(crate) entries: usize,
}

/// The policies inside the API server: objects of its API, and files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Policies {
    /// How many are shipped.
    pub(crate) shipped: usize,
    /// Names of those of which the policy or its binding doesn't exist.
    pub(crate) missing: Vec<String>,
    /// Whether the API server has loaded the files of `--static-policies`, which count only then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) files_loaded: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TenantRow {
    pub(crate) name: String,
    /// Status of its condition Ready: `True`, `False` or `Unknown`.
    pub(crate) ready: String,
    /// Reason and message of the first condition that isn't True.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
    /// Its level of enforcement; empty where no manager has written it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) enforcement: String,
    pub(crate) dpus: i64,
    /// Whether its agent's stream is open; absent if the agent has never connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connected: Option<bool>,
    /// Since when.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) since: String,
    /// Since when no manager has been running, although the stream is said to be open: a manager that is killed doesn't write that it
    /// has ended.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) no_manager_since: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) workloads: Option<i64>,
}

impl Report {
    /// Since when no manager has been running, as far as the Lease says it.
    pub(crate) fn no_manager_since(&self) -> Option<&str> {
        let leader = self.installation.as_ref()?.leader.as_ref()?;
        leader.expired.then_some(leader.renewed.as_str())
    }
}

impl TenantRow {
    /// Notes that no manager has been running since then. It says nothing of a stream that has ended before.
    pub(crate) fn without_manager(&mut self, since: &str) {
        if self.connected == Some(true) {
            since.clone_into(&mut self.no_manager_since);
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuleRow {
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) matched: i64,
    /// How many companions the matching workloads should have.
    pub(crate) wanted: i64,
    pub(crate) created: i64,
    pub(crate) ready: i64,
    /// Reason and message of the first condition that isn't True; empty where all are.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
}

/// The DPUs of an owner.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DpuRow {
    /// The tenant; empty for DPUs without one.
    pub(crate) tenant: String,
    pub(crate) dpus: usize,
    pub(crate) ready: usize,
    pub(crate) cordoned: usize,
    /// On their way to another tenant.
    pub(crate) handed_over: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CertificateRow {
    /// The part that has it.
    pub(crate) part: &'static str,
    /// `certificate` or `CA`.
    pub(crate) what: &'static str,
    /// The Secret or ConfigMap.
    pub(crate) object: String,
    /// When the first of them ends; of several CAs the last.
    pub(crate) not_after: String,
    /// `Valid`, `Expires` (it was to be renewed) or `Expired`.
    pub(crate) state: &'static str,
}
