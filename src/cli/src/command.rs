//! The subcommands.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use outrigger_agent::AgentArgs;
use outrigger_manager::ManagerArgs;
use outrigger_webhook::WebhookArgs;

use crate::cases::TestArgs;
use crate::check::CheckArgs;
use crate::claims::ClaimsArgs;
use crate::crd::CrdArgs;
use crate::explain::ExplainArgs;
use crate::files::InputError;
use crate::reference::ReferenceArgs;
use crate::render::RenderArgs;
use crate::review::ReviewArgs;
use crate::webhooks::WebhooksArgs;

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

    /// Show Pods as admission would leave them.
    ///
    /// Every Pod in --filename that no API server has seen (it has no metadata.uid) is created, as far as admission goes,
    /// on the state that the other objects are. With --rule and --workload it is the companion that the manager would
    /// create for that rule and that Pod of the tenant's cluster. A denial goes to standard error, as warnings do. Exit
    /// codes: 0 all were admitted, 1 one was denied, 2 an input could not be read.
    Render(RenderArgs),

    /// Admission without a cluster: AdmissionReviews in, answers out.
    ///
    /// Reads AdmissionReview requests (admission.k8s.io/v1) from standard input, as JSON documents one after the other,
    /// and writes one AdmissionReview response a line, in their order, decided by the webhook's own code on the state
    /// in --filename: Pods are mutated and then validated, Outrigger's own kinds are validated, and what the webhook isn't
    /// asked about is allowed. Exit codes: 0 every request was answered, denials included, 2 an input could not be read
    /// (what came before it is answered).
    Review(ReviewArgs),

    /// Check what admission does with cases that you write down.
    ///
    /// Each case has a state, a request, and what is expected of it. Exit codes: 0 all cases are as expected, 1 one is
    /// not, 2 an input could not be read.
    Test(TestArgs),

    /// Say which rule gives which workload a companion, and why another gets none.
    ///
    /// Reads Tenants, Namespaces, Nodes, WorkloadRules and Pods from files (--filename), or from a cluster: the
    /// infrastructure cluster, with the tenant's (--tenant-kubeconfig) for its Pods, or a tenant's cluster alone. For each
    /// rule and workload: what every expression found, what would have to change, which DPUs would take the companion,
    /// and how the companion is. Exit codes: 0 explained, 1 one rule and one workload were asked for and no companion
    /// comes of them, 2 an input could not be read.
    Explain(ExplainArgs),

    /// Look for what is wrong, in files or in a cluster.
    ///
    /// Judges Tenants, rules, NamespaceOffloadings and claims as admission does, and looks for what no single object
    /// tells: rules that can never match, selectors that exclude each other, annotations that nothing writes, DPUs without
    /// owner, hosts without DPU, DeviceClasses that aren't there, Machines that promise more than their nodes have. With
    /// --live: whether the installation itself works, in the infrastructure cluster, a tenant's, or both. Nothing is
    /// changed. Exit codes: 0 no errors, 1 errors, 2 an input could not be read.
    Check(CheckArgs),

    /// List a tenant's device claims, with their devices and who uses them.
    ///
    /// Reads ResourceClaims, Pods and Tenants from files (--filename) or from the infrastructure cluster. Exit codes: 0
    /// listed, 2 an input could not be read.
    Claims(ClaimsArgs),

    /// Print the CustomResourceDefinitions as YAML.
    Crd(CrdArgs),

    /// Write the documentation's reference: for who builds Outrigger.
    #[command(hide = true)]
    Reference(ReferenceArgs),

    /// Write the webhooks' configurations: for who builds Outrigger.
    #[command(hide = true)]
    Webhooks(WebhooksArgs),
}

impl Cli {
    /// Runs the command. Exit code 1: it failed, and standard error says why. 2: an input can't be used, or the arguments
    /// were wrong (said by clap).
    pub(crate) fn run(self) -> ExitCode {
        let done = |()| ExitCode::SUCCESS;
        let result = match self.command {
            Command::Webhook(args) => serve(outrigger_webhook::run(args)).map(done),
            Command::Manager(args) => serve(outrigger_manager::run(args)).map(done),
            Command::Agent(args) => serve(outrigger_agent::run(args)).map(done),
            Command::Render(args) => args.run(),
            Command::Review(args) => args.run(),
            Command::Test(args) => args.run(),
            Command::Explain(args) => args.run(),
            Command::Check(args) => args.run(),
            Command::Claims(args) => args.run(),
            Command::Crd(args) => args.run().map(done),
            Command::Reference(args) => args.run(Self::command()).map(done),
            Command::Webhooks(args) => args.run().map(done),
        };
        result.unwrap_or_else(|error| {
            if !is_broken_pipe(&error) {
                outrigger_runtime::telemetry::say(format!("outrigger: {error:#}"));
            }
            if error.is::<InputError>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        })
    }
}

/// Whether whoever read our output has had enough, `head` for example: nothing to complain about.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let is = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    error.downcast_ref::<std::io::Error>().is_some_and(is)
        || error
            .downcast_ref::<serde_json::Error>()
            .is_some_and(|error| error.io_error_kind() == Some(std::io::ErrorKind::BrokenPipe))
}

fn serve(server: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(server)
}
