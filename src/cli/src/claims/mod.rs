//! `outrigger claims`

pub(crate) mod device;
mod print;
pub(crate) mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim};
use kube::api::ListParams;
use outrigger_api::Tenant;
use outrigger_core::keys;
use outrigger_runtime::cluster::ClusterArgs;
use report::Report;

use crate::document::OutputArgs;
use crate::explain::live::{Reader, client, wait};
use crate::files::InputError;
use crate::state::State;

#[derive(Debug, Args)]
pub(crate) struct ClaimsArgs {
    /// File or directory with objects: Tenants, Namespaces, ResourceClaims, Pods, DeviceClasses. May be given several times;
    /// - is standard input. Without it: read from the infrastructure cluster.
    #[arg(short, long = "filename", value_name = "FILE")]
    filename: Vec<PathBuf>,

    /// Only this tenant's claims.
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,

    /// Only claims of this namespace.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    cluster: ClusterArgs,
}

impl ClaimsArgs {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let (state, notes) = if self.filename.is_empty() {
            wait(self.live())?
        } else {
            (State::read(&self.filename)?, Vec::new())
        };
        let report = Report::new(&state, self.tenant.as_deref(), self.namespace.as_deref(), notes)?;
        self.output.print(&report)?;
        Ok(ExitCode::SUCCESS)
    }

    async fn live(&self) -> Result<(State, Vec<String>), InputError> {
        let mut reader = Reader::new(client(&self.cluster, "--kubeconfig").await?);
        // The namespace's label names its tenant, so a user who may not read Tenants gets the report too.
        reader.may::<Tenant>(None, ListParams::default()).await?;
        reader.must::<Namespace>(None, ListParams::default().labels(keys::TENANT)).await?;
        let state = State::new(reader.objects().to_vec());
        let meant = report::namespaces(&state, self.tenant.as_deref(), self.namespace.as_deref())?;
        for namespace in meant.keys() {
            reader.must::<ResourceClaim>(Some(namespace), ListParams::default()).await?;
            reader.may::<Pod>(Some(namespace), ListParams::default()).await?;
        }
        reader.may::<DeviceClass>(None, ListParams::default()).await?;
        let (state, mut notes) = reader.finish();
        notes.dedup();
        Ok((state, notes))
    }
}

#[cfg(test)]
mod tests;
