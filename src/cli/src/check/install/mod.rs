//! `outrigger check --live`: whether an installation is in order.
//!
//! **In**: an infrastructure cluster, a tenant's, or both, read as they are; nothing is changed. **Out**: findings, judged by
//! `judge`, and notes on what couldn't be looked at.

mod agents;
mod cluster;
mod judge;
mod rights;
mod shipped;
mod site;
mod tls;
mod webhooks;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use outrigger_runtime::cluster::ClusterArgs;
use outrigger_webhook::settings::AdmissionArgs;

use self::shipped::Part;
use self::site::Site;
use super::Report;
use crate::check::findings::Finding;
use crate::files::InputError;

/// What is told of a tenant's cluster, beside that of the infrastructure.
const TENANTS: &str = "in the tenant's cluster: ";

/// What is looked at of an installation.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Installation")]
pub(crate) struct LiveArgs {
    /// Look at the installation itself in place of what it serves: whether all of it is there as this version ships it,
    /// certificates verify and last, the webhook can be called, rights are there and no others, versions go together.
    #[arg(long, conflicts_with = "filename")]
    pub(super) live: bool,

    /// Part that is to be in the cluster. May be given several times, or separated by commas. Without it: those of which
    /// something is there.
    #[arg(long, value_delimiter = ',', requires = "live", value_name = "PART")]
    part: Vec<Part>,

    /// Namespace of the parts. Without it: where one of them is, else outrigger-system.
    #[arg(long, requires = "live", value_name = "NAMESPACE")]
    system_namespace: Option<String>,

    /// Kubeconfig of a tenant's cluster, whose agent is looked at too.
    #[arg(long, requires = "live", value_name = "FILE")]
    tenant_kubeconfig: Option<PathBuf>,

    /// Context in the tenant's kubeconfig. Without it: the current one.
    #[arg(long, requires = "live", value_name = "NAME")]
    tenant_context: Option<String>,
}

/// Looks at everything.
///
/// # Errors
/// When a cluster can't be asked at all.
pub(super) async fn report(
    args: &LiveArgs,
    admission: &AdmissionArgs,
    cluster: &ClusterArgs,
) -> anyhow::Result<Report> {
    let mut infrastructure =
        Box::pin(Site::read(args, admission, cluster, "--kubeconfig", &args.part)).await?;
    let mut tenant = if args.tenant_kubeconfig.is_some() || args.tenant_context.is_some() {
        let cluster =
            ClusterArgs { kubeconfig: args.tenant_kubeconfig.clone(), context: args.tenant_context.clone() };
        Some(Box::pin(Site::read(args, admission, &cluster, "--tenant-kubeconfig", &[Part::Agent])).await?)
    } else {
        None
    };
    for (site, flag) in [(Some(&infrastructure), "--kubeconfig"), (tenant.as_ref(), "--tenant-kubeconfig")] {
        if site.is_some_and(|site| site::is_blind(&site.objects)) {
            let why = "neither a Deployment nor a webhook configuration or policy of the installation may be read: nothing \
                       can be said of it; docs/check.md tells the rights that are needed";
            return Err(InputError::new(flag, why).into());
        }
    }
    Box::pin(infrastructure.judge()).await?;
    if let Some(tenant) = &mut tenant {
        Box::pin(tenant.judge()).await?;
    }
    let mut findings = std::mem::take(&mut infrastructure.findings);
    let shows: Vec<Finding> = agents::shows(&infrastructure).into_iter().collect();
    findings.extend(one(&infrastructure, &shows).await);
    if let Some(tenant) = &mut tenant {
        let mut theirs = std::mem::take(&mut tenant.findings);
        theirs.extend(one(tenant, &shows).await);
        theirs.extend(agents::between(&infrastructure, tenant).await);
        findings.extend(theirs.into_iter().map(|finding| {
            let message = format!("{TENANTS}{}", finding.message);
            Finding { message, ..finding }
        }));
    } else if infrastructure.has(Part::Agent) && infrastructure.has(Part::Manager) {
        findings.extend(agents::between(&infrastructure, &infrastructure).await);
    }
    let mut notes = infrastructure.cluster.notes();
    if let Some(tenant) = &tenant {
        notes.extend(tenant.cluster.notes().into_iter().map(|note| format!("{TENANTS}{note}")));
    }
    Ok(Report { findings, notes, files: BTreeMap::new() })
}

/// What certificates and connections of one cluster tell. `shows` is what was told of the manager's certificate.
async fn one(site: &Site, shows: &[Finding]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if site.has(Part::Webhook) {
        findings.extend(webhooks::judge(site).await);
    }
    findings.extend(agents::shows(site).into_iter().chain(agents::trusts(site)));
    if site.has(Part::Agent) {
        findings.extend(agents::agent(site, shows).await);
    }
    findings
}

#[cfg(test)]
mod tests;
