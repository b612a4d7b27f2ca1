//! `outrigger status`: a cluster's installation, tenants, rules, companions, DPUs and certificates on one screen.
//!
//! **In**: an infrastructure cluster or a tenant's, which is only read. **Out**: a report, which says what isn't visible.
//! `summary` counts plain objects; `read` asks the cluster.

pub(crate) mod files;
pub(crate) mod print;
pub(crate) mod read;
pub(crate) mod report;
pub(crate) mod summary;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use outrigger_runtime::cluster::ClusterArgs;
use outrigger_webhook::settings::AdmissionArgs;

use self::files::Files;
use self::report::Report;
use crate::document::{OutputArgs, Readable};
use crate::explain::live::{client, wait};
use crate::files::InputError;

/// Clears a terminal, and begins at its top.
const CLEAR: &str = "\u{1b}[2J\u{1b}[3J\u{1b}[H";

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Show it again and again, until interrupted.
    #[arg(short, long)]
    watch: bool,

    /// Seconds between two refreshes of --watch.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,

    /// Namespace of the parts. Without it: the namespace in which one of them is found, else outrigger-system.
    #[arg(long, value_name = "NAMESPACE")]
    system_namespace: Option<String>,

    /// Directory with copies of the files from which API servers load policies (staticManifestsDir). These count as found if the
    /// metrics of the API server that answers say that it has loaded the same files.
    #[arg(long, value_name = "DIR")]
    static_policies: Option<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    cluster: ClusterArgs,

    #[command(flatten)]
    admission: AdmissionArgs,
}

impl StatusArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        wait(self.show())?;
        Ok(ExitCode::SUCCESS)
    }

    async fn show(&self) -> anyhow::Result<()> {
        let client = client(&self.cluster, "--kubeconfig").await?;
        let files = self.static_policies.as_deref().map(Files::read).transpose()?;
        // A cluster that can't be reached at all is an error at the beginning only: later --watch waits for it.
        let mut report = self.read(&client, files.as_ref()).await?;
        loop {
            self.print(&report)?;
            if !self.watch {
                return Ok(());
            }
            report = loop {
                tokio::time::sleep(Duration::from_secs(self.interval)).await;
                match self.read(&client, files.as_ref()).await {
                    Ok(report) => break report,
                    Err(error) => outrigger_runtime::telemetry::say(format!("outrigger: {error:#}")),
                }
            };
        }
    }

    async fn read(&self, client: &kube::Client, files: Option<&Files>) -> Result<Report, InputError> {
        read::report(client.clone(), self.system_namespace.as_deref(), &self.admission, files).await
    }

    fn print(&self, report: &Report) -> anyhow::Result<()> {
        if !self.output.is_text() || !self.watch {
            return self.output.print(report);
        }
        // The whole screen at once: a terminal shows no half.
        let mut screen = Vec::new();
        report.document().text(&mut screen)?;
        let mut out = anstream::stdout().lock();
        if std::io::stdout().is_terminal() {
            out.write_all(CLEAR.as_bytes())?;
        }
        out.write_all(&screen)?;
        Ok(out.flush()?)
    }
}
