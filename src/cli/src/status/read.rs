//! Asks a cluster, page by page, each call with a deadline.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::ListParams;
use outrigger_core::json::{list, text};
use outrigger_core::keys;
use outrigger_runtime::expiry;
use outrigger_webhook::settings::AdmissionArgs;
use serde_json::Value;

use super::files::Files;
use super::report::{CertificateRow, DpuRow, InstallationStatus, LeaderRow, PartRow, Report, WebhookRow};
use super::summary;
use crate::check::installation::parts::{Installation, Part};
use crate::check::installation::reach;
use crate::cluster::{Answer, Cluster, Kind, each};
use crate::explain::live::is_infrastructure;
use crate::files::InputError;

/// Most objects of a kind that are looked at.
const MOST: usize = 100_000;

pub(crate) const TENANT: Kind = Kind("outrigger.dev/v1alpha1", "Tenant");
pub(crate) const RULE: Kind = Kind("workload.universe.nvidia.com/v1alpha1", "WorkloadRule");
pub(crate) const ADMIN_RULE: Kind = Kind("workload.universe.nvidia.com/v1alpha1", "AdminWorkloadRule");
pub(crate) const POD: Kind = Kind("v1", "Pod");
pub(crate) const NODE: Kind = Kind("v1", "Node");
const POLICY: Kind = Kind("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy");
const LEASE: Kind = Kind("coordination.k8s.io/v1", "Lease");
const BINDING: Kind = Kind("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding");

/// What a list has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    All,
    /// It isn't visible.
    Nothing,
    /// The cluster doesn't have the kind.
    NoKind,
}

struct Reader {
    cluster: Cluster,
    not_visible: Vec<String>,
}

/// Reads everything that is visible. `files`: policies that API servers load.
///
/// # Errors
/// When the cluster can't be reached.
pub(crate) async fn report(
    client: Client,
    system_namespace: Option<&str>,
    admission: &AdmissionArgs,
    files: Option<&Files>,
) -> Result<Report, InputError> {
    let mut report = installation(&client, system_namespace, admission, files).await?;
    let not_visible = std::mem::take(&mut report.not_visible);
    let mut reader = Reader { cluster: Cluster::new(client, false), not_visible };
    let mut tenants = Vec::new();
    let shown = reader.each(TENANT, "", |object| tenants.push(summary::tenant(&object))).await;
    // Who may not list Tenants may see DPUs all the same.
    let infrastructure = match shown {
        Shown::All => true,
        Shown::NoKind => false,
        Shown::Nothing => is_infrastructure(&reader.cluster.client).await.unwrap_or_default(),
    };
    if let Some(since) = report.no_manager_since() {
        tenants.iter_mut().for_each(|row| row.without_manager(since));
    }
    report.tenants = (shown == Shown::All).then_some(tenants);
    let mut rules = Vec::new();
    let own = reader.each(RULE, "", |object| rules.push(summary::rule(&object))).await;
    let admin = reader.each(ADMIN_RULE, "", |object| rules.push(summary::rule(&object))).await;
    report.rules = (own == Shown::All || admin == Shown::All).then_some(rules);
    if infrastructure {
        reader.infrastructure(admission, &mut report).await;
    }
    reader.finish(report).await
}

/// Reads what there is but for tenants, rules, companions and DPUs: the installation and its certificates.
///
/// # Errors
/// When the cluster can't be reached.
pub(crate) async fn installation(
    client: &Client,
    system_namespace: Option<&str>,
    admission: &AdmissionArgs,
    files: Option<&Files>,
) -> Result<Report, InputError> {
    let cluster = Cluster::new(client.clone(), false);
    reachable(&cluster).await?;
    let mut reader = Reader { cluster: Cluster::new(client.clone(), false), not_visible: Vec::new() };
    let mut report = Report::default();
    match Installation::read(cluster, admission, system_namespace, &[]).await {
        Ok(installation) => {
            report.certificates = certificates(&installation, &mut reader.not_visible).await;
            report.installation = Some(reader.installation(&installation, files).await);
            reader.not_visible.extend(installation.cluster.notes());
        }
        Err(why) => reader.not_visible.push(format!("installation: {why}")),
    }
    reader.finish(report).await
}

async fn reachable(cluster: &Cluster) -> Result<(), InputError> {
    let version = cluster.version().await;
    version.map(drop).map_err(|error| InputError::new("the cluster", format_args!("{error:#}")))
}

impl Reader {
    /// The report with what wasn't visible.
    async fn finish(self, mut report: Report) -> Result<Report, InputError> {
        if !self.not_visible.is_empty() {
            // With a connection that has broken meanwhile, the cluster would look as if it had nothing.
            reachable(&self.cluster).await?;
        }
        report.not_visible = self.not_visible;
        Ok(report)
    }

    /// What only an infrastructure cluster has.
    async fn infrastructure(&mut self, admission: &AdmissionArgs, report: &mut Report) {
        let mut counts = BTreeMap::new();
        let shown = self
            .each(POD, keys::RULE, |object| {
                if let Ok(pod) = serde_json::from_value(object) {
                    summary::companion(&pod, &admission.admin_resources_namespace, &mut counts);
                }
            })
            .await;
        report.companions = (shown == Shown::All).then_some(counts);
        let mut rows = BTreeMap::new();
        let shown = self
            .each(NODE, "", |object| {
                if let Ok(node) = serde_json::from_value::<Node>(object) {
                    let dpu = DpuRow::of(&node, &admission.host_labels);
                    dpu.into_iter().for_each(|dpu| dpu.count(&mut rows));
                }
            })
            .await;
        report.dpus = (shown == Shown::All).then(|| rows.into_values().collect());
    }

    /// Hands out the objects of a kind with a label, one by one, so that only one page is held.
    async fn each(&mut self, kind: Kind, label: &str, mut take: impl FnMut(Value)) -> Shown {
        let (of_kind, mut count) = (self.cluster.api(kind, ""), 0);
        let read = each(&of_kind, ListParams::default().labels(label), |object| {
            count += 1;
            if count <= MOST {
                take(object);
            }
            count <= MOST
        });
        let (read, plural) = (read.await, &of_kind.1.plural);
        match read {
            Ok(()) if count > MOST => {
                self.not_visible.push(format!("{plural}: only the first {MOST} were read"));
                Shown::All
            }
            Ok(()) => Shown::All,
            Err(why) if why.is_no_kind() => Shown::NoKind,
            Err(why) => {
                self.not_visible.push(format!("{plural}: {}", why.brief()));
                Shown::Nothing
            }
        }
    }

    async fn installation(
        &mut self,
        installation: &Installation,
        files: Option<&Files>,
    ) -> InstallationStatus {
        let parts = Part::ALL.into_iter().filter_map(|part| {
            let deployment = installation.deployments.get(&part)?;
            let number = |pointer: &str| deployment.pointer(pointer).and_then(Value::as_i64);
            let running = installation.running(part);
            Some(PartRow {
                part: part.name(),
                versions: running.iter().map(ToString::to_string).collect(),
                ready: number("/status/readyReplicas").unwrap_or_default(),
                replicas: number("/spec/replicas").unwrap_or(1),
            })
        });
        let webhooks = installation.configurations.iter().filter_map(|(Kind(_, kind), answer)| {
            let entries = match answer {
                Answer::Unread => return None,
                Answer::Absent => 0,
                Answer::There(object) => {
                    let names = list(object, "/webhooks").iter().map(|entry| text(entry, "/name"));
                    names.filter(|name| reach::is_own(name)).count()
                }
            };
            Some(WebhookRow { kind, entries })
        });
        let mut status = InstallationStatus {
            namespace: installation.names.system.clone(),
            parts: parts.collect(),
            webhooks: webhooks.collect(),
            policies: None,
            leader: leader(installation).await,
        };
        if installation.has(Part::Webhook) {
            let (mut policies, mut bindings) = (Vec::new(), Vec::new());
            let name = |object: &Value| text(object, "/metadata/name").to_owned();
            let first = self.each(POLICY, "", |object| policies.push(name(&object))).await;
            let second = self.each(BINDING, "", |object| bindings.push(name(&object))).await;
            if (first, second) == (Shown::All, Shown::All) {
                let loaded = match files {
                    Some(files) => self.has_loaded(files).await.map(|loaded| (files, loaded)),
                    None => None,
                };
                status.policies = Some(summary::policies((&policies, &bindings), loaded));
            }
        }
        status
    }

    /// Whether the API server has loaded these files; `None` if it doesn't show that.
    async fn has_loaded(&mut self, files: &Files) -> Option<bool> {
        let loaded = files.are_loaded(&self.cluster.client).await;
        loaded
            .map_err(|why| self.not_visible.push(format!("metrics of the API server: {}", why.brief())))
            .ok()
    }
}

/// What the managers' Lease says.
async fn leader(installation: &Installation) -> Option<LeaderRow> {
    if !installation.has(Part::Manager) {
        return None;
    }
    let named = installation.argument(Part::Manager, "lease-namespace");
    let namespace = named.as_deref().unwrap_or(&installation.names.system);
    let lease = installation.cluster.get(LEASE, namespace, keys::MANAGER).await.there()?;
    summary::leader(&lease, expiry::now())
}

/// The certificates and CAs that the parts have in Secrets and ConfigMaps.
async fn certificates(installation: &Installation, not_visible: &mut Vec<String>) -> Vec<CertificateRow> {
    const FILES: [(Part, &str, &str); 6] = [
        (Part::Webhook, "tls.crt", "certificate"),
        (Part::Manager, "tls.crt", "certificate"),
        (Part::Manager, "ca.crt", "CA"),
        (Part::Agent, "tls.crt", "certificate"),
        (Part::Agent, "manager-ca.crt", "CA"),
        (Part::Webhook, "ca.crt", "CA"),
    ];
    let mut rows = Vec::new();
    for (part, file, what) in FILES {
        let Some(entry) = installation.entry(part, file).await else { continue };
        match summary::certificate(part.name(), what, entry.subject.to_string(), &entry.pem, expiry::now()) {
            Ok(row) => rows.push(row),
            Err(why) => not_visible.push(why),
        }
    }
    rows
}

#[cfg(test)]
mod tests;
