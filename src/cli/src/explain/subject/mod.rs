//! `outrigger explain tenant`, `host`, `machine`, `namespace`, `claim`: the state of one object, the first thing that is wrong with it, and
//! what would have to change.
//!
//! What the manager says in conditions is repeated in its words. What follows from objects is decided by the product's own functions.

mod claim;
mod host;
mod machine;
mod offloading;
mod print;
mod report;
mod tenant;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use outrigger_runtime::cluster::ClusterArgs;
use outrigger_webhook::settings::AdmissionArgs;
use report::Report;
pub(crate) use tenant::TENANT_CONDITIONS;

use super::live;
use super::live::{Reader, Unread, client};
use crate::companion::PodName;
use crate::document::OutputArgs;
use crate::document::plain;
use crate::files::InputError;
use crate::state::State;

/// What is explained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Tenant,
    Host,
    Machine,
    Namespace,
    Claim,
}

/// What has been read.
struct Seen {
    state: State,
    /// What may not be read, in words.
    notes: Vec<String>,
    unread: Unread,
}

#[derive(Debug, Args)]
pub(super) struct SubjectArgs {
    /// Its name.
    #[arg(value_name = "NAME")]
    name: String,

    /// Its namespace, for a ResourceClaim; all others have none.
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    namespace: String,

    /// File or directory with objects: Tenants, Nodes, Machines, NamespaceOffloadings, Namespaces, Pods. May be given several times; -
    /// is standard input. Without it: read from a cluster.
    #[arg(short, long = "filename", value_name = "FILE")]
    filename: Vec<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    cluster: ClusterArgs,

    #[command(flatten)]
    admission: AdmissionArgs,
}

impl SubjectArgs {
    /// Exit code 1: there is no such object.
    pub(super) fn run(&self, kind: Kind) -> anyhow::Result<ExitCode> {
        let seen = if self.filename.is_empty() {
            live::wait(self.read(kind))?
        } else {
            Seen { state: State::read(&self.filename)?, notes: Vec::new(), unread: Unread::default() }
        };
        let Some(report) = self.report(kind, &seen)? else {
            let place = if self.filename.is_empty() { "the cluster" } else { "--filename" };
            let mut err = anstream::stderr();
            seen.notes.iter().try_for_each(|note| writeln!(err, "note: {}", plain(note)))?;
            writeln!(err, "{place}: there is no {} {}", kind.what(), plain(&self.name))?;
            return Ok(ExitCode::FAILURE);
        };
        self.output.print(&report)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Reads what concerns the object. What may not be read is noted.
    async fn read(&self, kind: Kind) -> Result<Seen, InputError> {
        let mut reader = Reader::new(client(&self.cluster, "--kubeconfig").await?);
        match kind {
            Kind::Tenant => tenant::read(&mut reader).await?,
            Kind::Host => host::read(&mut reader).await?,
            Kind::Machine => machine::read(&mut reader).await?,
            Kind::Namespace => offloading::read(&mut reader, &self.name).await?,
            Kind::Claim => claim::read(&mut reader, &self.place()).await?,
        }
        let unread = reader.unread().clone();
        let (state, notes) = reader.finish();
        Ok(Seen { state, notes, unread })
    }

    /// Where an object with a namespace is.
    fn place(&self) -> PodName {
        PodName { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// `None`: the state has no such object.
    fn report(&self, kind: Kind, seen: &Seen) -> Result<Option<Report>, InputError> {
        let Seen { state, notes, unread } = seen;
        let report = match kind {
            Kind::Tenant => tenant::report(state, &self.name)?,
            Kind::Host => host::report(state, unread, &self.name, &self.admission.host_labels)?,
            Kind::Machine => machine::report(state, &self.name)?,
            Kind::Namespace => offloading::report(state, unread, &self.name)?,
            Kind::Claim => claim::report(state, unread, &self.place()),
        };
        Ok(report.map(|report| Report { notes: notes.clone(), ..report }))
    }
}

impl Kind {
    const fn what(self) -> &'static str {
        match self {
            Self::Tenant => "Tenant",
            Self::Host => "host or DPU",
            Self::Machine => "Machine",
            Self::Namespace => "namespace",
            Self::Claim => "ResourceClaim",
        }
    }
}

#[cfg(test)]
mod tests;
