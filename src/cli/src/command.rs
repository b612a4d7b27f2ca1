//! The subcommands.

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use outrigger_agent::AgentArgs;
use outrigger_manager::ManagerArgs;
use outrigger_webhook::WebhookArgs;

use crate::crd::CrdArgs;

/// Starts a companion Pod on the DPU of a host when a tenant's Pod starts on that host.
///
/// A tenant writes a WorkloadRule: which of its Pods get a companion, and what the companion is. The agent tells the
/// manager which Pods run in the tenant's cluster; the manager creates the companions in the infrastructure cluster,
/// whose Nodes are DPUs; the webhook there places each on the right DPU, keeps it on its tenant's DPUs, and gives it the
/// facts about its workload.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 120)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve admission: place companions, keep tenants apart, inject facts. In the infrastructure cluster.
    ///
    /// Serves HTTPS at /mutate/pods. Any number of replicas may run; each is stateless but for its watch caches, and
    /// ready when these are filled. The certificate is read again when it changes.
    Webhook(WebhookArgs),

    /// Take workload streams and create companions. In the infrastructure cluster.
    ///
    /// Serves gRPC (universe.workload.v1.WorkloadService). Workloads are kept in memory only: after a restart the
    /// agents tell them again, and until a tenant's agent has told all, nothing of that tenant is deleted for being
    /// absent.
    Manager(ManagerArgs),

    /// Tell the manager which Pods run. In each tenant cluster.
    ///
    /// Watches Pods and streams them: everything first, then each change. Connects again by itself, after 10 ms to
    /// 15 s.
    Agent(AgentArgs),

    /// Print the CustomResourceDefinitions as YAML.
    Crd(CrdArgs),
}

impl Cli {
    /// Runs the command. Exit code 1: it failed, and standard error says why. (2: the arguments were wrong; said by
    /// clap.)
    pub(crate) fn run(self) -> ExitCode {
        let result = match self.command {
            Command::Webhook(args) => serve(outrigger_webhook::run(args)),
            Command::Manager(args) => serve(outrigger_manager::run(args)),
            Command::Agent(args) => serve(outrigger_agent::run(args)),
            Command::Crd(args) => args.run(),
        };
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "outrigger: {error:#}");
                ExitCode::FAILURE
            }
        }
    }
}

fn serve(server: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(server)
}
