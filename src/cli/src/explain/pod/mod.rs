//! `outrigger explain pod`: which steps of admission changed a Pod, and what would refuse it now.
//!
//! A stored Pod doesn't say what it was before admission. So the Pod is taken as its creator wrote it ([`written`]), and decided
//! again by the webhook's own code ([`Admission`]) with the present rules, Tenants and Machines; then the stored Pod is decided
//! too. Not every Pod's creation is known, so the report also has what the Pod itself shows of the steps ([`recorded`]). Policies
//! are CEL, which only an API server evaluates: those that apply are named.

mod owned;
mod policies;
mod print;
mod read;
mod recorded;
mod report;
mod roles;
mod written;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use outrigger_runtime::cluster::ClusterArgs;
use outrigger_webhook::settings::AdmissionArgs;
use report::Report;

use super::live;
use crate::admission::Admission;
use crate::companion::PodName;
use crate::document::OutputArgs;
use crate::files::InputError;
use crate::state::State;

/// Exit code: admission would refuse the Pod now.
const REFUSED: u8 = 3;

#[derive(Debug, Args)]
pub(super) struct PodArgs {
    /// Name of the Pod.
    #[arg(value_name = "NAME")]
    name: String,

    /// Its namespace.
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    namespace: String,

    /// File or directory with objects: the Pod, its namespace, Tenants, WorkloadRules, NamespaceOffloadings, Machines, the ReplicaSet or
    /// other owner of the Pod. May be given several times; - is standard input. Without it: read from a cluster.
    #[arg(short, long = "filename", value_name = "FILE")]
    filename: Vec<PathBuf>,

    /// User that creates the Pod, where it is no companion.
    #[arg(long = "as", value_name = "USER", default_value = "kubernetes-admin")]
    user: String,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    cluster: ClusterArgs,

    #[command(flatten)]
    admission: AdmissionArgs,
}

impl PodArgs {
    /// Exit code 1: there is no such Pod. 3: admission would refuse it now.
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let name = PodName { namespace: self.namespace.clone(), name: self.name.clone() };
        let (state, notes) = if self.filename.is_empty() {
            live::wait(read::state(&self.cluster, &name))?
        } else {
            (State::read(&self.filename)?, Vec::new())
        };
        let Some(report) = self.report(state, &name, notes)? else {
            let PodName { namespace, name } = name;
            let place = if self.filename.is_empty() { "the cluster" } else { "--filename" };
            writeln!(anstream::stderr(), "{place}: there is no Pod {namespace}/{name}")?;
            return Ok(ExitCode::FAILURE);
        };
        self.output.print(&report)?;
        Ok(if report.is_refused() { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS })
    }

    /// `None`: the state has no such Pod.
    fn report(&self, state: State, name: &PodName, notes: Vec<String>) -> Result<Option<Report>, InputError> {
        let Some(pod) = state.of("", "Pod").find(|pod| read::is(pod, name)).cloned() else { return Ok(None) };
        let mut admission = Admission::new(state, self.admission.clone())?;
        admission.forget_new_pods();
        Report::new(&admission, &pod.value, name, &self.user, notes).map(Some)
    }
}

#[cfg(test)]
mod tests;
