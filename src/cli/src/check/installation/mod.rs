//! `outrigger check --live`: whether an installation works.
//!
//! **In**: an infrastructure cluster, a tenant's, or both, which are only read. **Out**: findings on certificates and the CAs
//! that verify them, reachability of the webhook, versions and rights, on Nodes of a tenant's cluster that are none of its hosts, and on
//! rules and running Pods that admission would refuse if they were created now; and notes on what couldn't be examined. Whether the
//! installed objects are the shipped ones is left to `helm diff` and `kubectl diff`.
//!
//! `certificates`, `reach`, `rights`, `roles` and `versions` judge plain data; the other modules ask the clusters.

mod access;
mod agents;
mod certificates;
mod connections;
mod existing;
mod hosts;
pub(crate) mod parts;
pub(crate) mod reach;
mod rights;
mod roles;
mod versions;
mod webhooks;

use std::path::PathBuf;

use clap::Args;
use outrigger_runtime::cluster::ClusterArgs;
use outrigger_runtime::expiry;
use outrigger_webhook::settings::AdmissionArgs;

use self::parts::{Installation, Part};
use super::Report;
use super::findings::Finding;
use crate::cluster::Cluster;
use crate::explain::live::client;
use crate::files::InputError;

/// Prefix of what is said of the tenant's cluster beside the infrastructure cluster.
const TENANTS: &str = "in the tenant's cluster: ";

/// The flags that name the clusters.
const OWN_FLAG: &str = "--kubeconfig";
const TENANTS_FLAG: &str = "--tenant-kubeconfig";

/// Which installation is examined.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Installation")]
pub(crate) struct LiveArgs {
    /// Examine the installation itself instead of what it serves: whether CA bundles verify the certificates that are shown,
    /// when certificates expire, whether the API server reaches the webhook, whether service accounts have their rights, whether
    /// the versions of the parts work together, and which rules and running Pods admission would refuse now.
    #[arg(long, conflicts_with = "filename")]
    pub(super) live: bool,

    /// Part that the cluster has. May be given several times, or separated by commas. Without it: the parts that are found.
    #[arg(long, value_delimiter = ',', requires = "live", value_name = "PART")]
    part: Vec<Part>,

    /// Namespace of the parts. Without it: the namespace in which one of them is found, else outrigger-system.
    #[arg(long, requires = "live", value_name = "NAMESPACE")]
    system_namespace: Option<String>,

    /// Kubeconfig of a tenant's cluster, whose agent is examined too.
    #[arg(long, requires = "live", value_name = "FILE")]
    tenant_kubeconfig: Option<PathBuf>,

    /// Context in the tenant's kubeconfig. Without it: the current one.
    #[arg(long, requires = "live", value_name = "NAME")]
    tenant_context: Option<String>,
}

impl LiveArgs {
    /// The parts that are found in this namespace, or in the one in which one of them is found.
    pub(crate) fn of(system_namespace: Option<String>) -> Self {
        Self { live: true, system_namespace, ..Self::default() }
    }
}

/// Examines the clusters.
///
/// # Errors
/// When a cluster can't be asked at all, or has no part of Outrigger.
pub(super) async fn report(
    args: &LiveArgs,
    admission: &AdmissionArgs,
    cluster: &ClusterArgs,
) -> anyhow::Result<Report> {
    let infrastructure = connect(cluster, OWN_FLAG).await?;
    let infrastructure = Box::pin(read(args, admission, infrastructure, OWN_FLAG, &args.part)).await?;
    let alone = args.tenant_kubeconfig.is_none() && args.tenant_context.is_none();
    let mut findings = Box::pin(own(&infrastructure, alone)).await?;
    let (existing, mut namespaces) = Box::pin(existing::examine(&infrastructure, admission)).await;
    findings.extend(existing);
    namespaces.insert(infrastructure.names.system.clone());
    if alone {
        let notes = infrastructure.cluster.notes();
        return Ok(Report { findings, notes, namespaces, ..Report::default() });
    }
    let cluster =
        ClusterArgs { kubeconfig: args.tenant_kubeconfig.clone(), context: args.tenant_context.clone() };
    let tenant = connect(&cluster, TENANTS_FLAG).await?;
    let tenant = Box::pin(read(args, admission, tenant, TENANTS_FLAG, &[Part::Agent])).await?;
    let mut theirs = Box::pin(own(&tenant, false)).await?;
    theirs.extend(agents::between(&infrastructure, &tenant).await);
    theirs.extend(hosts::between(&infrastructure, &tenant).await);
    findings.extend(theirs.into_iter().map(|finding| {
        let message = format!("{TENANTS}{}", finding.message);
        Finding { message, ..finding }
    }));
    let mut notes = infrastructure.cluster.notes();
    notes.extend(tenant.cluster.notes().into_iter().map(|note| format!("{TENANTS}{note}")));
    Ok(Report { findings, notes, namespaces, ..Report::default() })
}

/// Examines the objects that admission is about, and nothing else.
///
/// # Errors
/// As [`report`], and where the webhook isn't in the cluster.
pub(super) async fn existing(
    args: &LiveArgs,
    admission: &AdmissionArgs,
    cluster: &ClusterArgs,
) -> anyhow::Result<(Cluster, Report)> {
    let installation =
        Box::pin(read(args, admission, connect(cluster, OWN_FLAG).await?, OWN_FLAG, &[])).await?;
    if !installation.has(Part::Webhook) {
        return Err(InputError::new(
            OWN_FLAG,
            "the cluster has no webhook of Outrigger, so nothing is refused",
        )
        .into());
    }
    let (findings, namespaces) = Box::pin(existing::examine(&installation, admission)).await;
    let notes = installation.cluster.notes();
    Ok((installation.cluster, Report { findings, notes, namespaces, ..Report::default() }))
}

/// Examines one cluster, but for the objects that admission is about.
///
/// # Errors
/// As [`report`].
pub(crate) async fn of_cluster(
    cluster: Cluster,
    args: &LiveArgs,
    admission: &AdmissionArgs,
) -> anyhow::Result<Report> {
    let installation = Box::pin(read(args, admission, cluster, OWN_FLAG, &args.part)).await?;
    let findings = Box::pin(own(&installation, true)).await?;
    let notes = installation.cluster.notes();
    Ok(Report { findings, notes, ..Report::default() })
}

async fn connect(cluster: &ClusterArgs, flag: &str) -> Result<Cluster, InputError> {
    Ok(Cluster::new(client(cluster, flag).await?, cluster.is_own().await))
}

async fn read(
    args: &LiveArgs,
    admission: &AdmissionArgs,
    cluster: Cluster,
    flag: &str,
    only: &[Part],
) -> anyhow::Result<Installation> {
    // The first request says whether the cluster answers at all.
    cluster.version().await.map_err(|error| InputError::new(flag, format_args!("{error:#}")))?;
    let installation = Installation::read(cluster, admission, args.system_namespace.as_deref(), only).await;
    Ok(installation.map_err(|why| InputError::new(flag, why))?)
}

/// Examines what one cluster alone can tell. `alone`: manager and agent may both be in it.
async fn own(installation: &Installation, alone: bool) -> anyhow::Result<Vec<Finding>> {
    let now = expiry::now();
    let mut findings = installation.versions();
    findings.extend(installation.levels());
    findings.extend(access::missing_rights(installation).await?);
    if installation.has(Part::Webhook) {
        findings.extend(webhooks::examine(installation, now).await);
    }
    findings.extend(agents::manager(installation, now).await);
    let agent = agents::agent(installation, now, &findings).await;
    findings.extend(agent);
    findings.extend(agents::open_gate(installation));
    if alone && installation.has(Part::Agent) {
        if installation.has(Part::Manager) {
            findings.extend(agents::between(installation, installation).await);
            findings.extend(hosts::between(installation, installation).await);
        } else {
            findings.extend(hosts::alone(installation).await);
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests;
