//! The subcommands.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use outrigger_agent::AgentArgs;
use outrigger_host::HostArgs;
use outrigger_manager::ManagerArgs;
use outrigger_webhook::WebhookArgs;

use crate::bundle::BundleArgs;
use crate::cases::TestArgs;
use crate::check::CheckArgs;
use crate::claims::ClaimsArgs;
use crate::console::{ConsoleArgs, ConsoleServerArgs};
use crate::crd::CrdArgs;
use crate::diff::DiffArgs;
use crate::explain::ExplainArgs;
use crate::files::InputError;
use crate::program::{CompletionArgs, ManualArgs, NAME, VERSION};
use crate::reference::ReferenceArgs;
use crate::render::RenderArgs;
use crate::review::ReviewArgs;
use crate::status::StatusArgs;
use crate::webhooks::WebhooksArgs;

/// Starts a companion Pod on a host's DPU when a tenant's Pod starts on that host.
///
/// A tenant's WorkloadRule selects the Pods that get a companion and has the companion's template. The agent streams the Pods
/// of the tenant's cluster to the manager. The manager creates the companions in the infrastructure cluster, whose Nodes are
/// DPUs. The webhook in that cluster schedules each companion to the right DPU, restricts it to its tenant's DPUs, and
/// annotates it with facts about its workload.
#[derive(Debug, Parser)]
#[command(name = NAME, version = VERSION, max_term_width = 120)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the admission webhook, which places companions, isolates tenants and injects facts. In the infrastructure cluster.
    ///
    /// Serves HTTPS. Any number of replicas may run: a replica has no state but its watch caches, and is ready when these are
    /// filled. It reloads its certificate when the file changes.
    Webhook(WebhookArgs),

    /// Run the manager, which receives workload streams and creates companions. In the infrastructure cluster.
    ///
    /// Serves gRPC (universe.workload.v1.WorkloadService). It keeps workloads in memory only: after a restart the agents
    /// send them again, and until a tenant's agent has sent all of them, the manager deletes nothing of that tenant because
    /// it is absent.
    Manager(ManagerArgs),

    /// Run the agent, which streams a tenant's Pods to the manager. In each tenant cluster.
    ///
    /// It sends all Pods first, then each change. It reconnects by itself, with pauses between 10 ms and 15 s.
    Agent(AgentArgs),

    /// Run the kubelet plugin, which lets Pods start after their companions. On each host of a tenant cluster.
    ///
    /// Pods of a rule with the ordering BeforeStart have a claim; the kubelet asks the plugin before it starts their containers, and
    /// the plugin asks the agent. It has no access to the API server.
    Host(HostArgs),

    /// Print Pods as admission would change them.
    ///
    /// Creates every Pod in --filename that no API server has seen (it has no metadata.uid), as a dry run on the state of the
    /// other objects. With --rule and --workload it creates the companion that the manager would create for that rule and
    /// that Pod of the tenant's cluster. Denials and warnings go to standard error. Exit codes: 0 all Pods were admitted, 1 a
    /// Pod was denied, 2 an input could not be read.
    Render(RenderArgs),

    /// Answer AdmissionReviews without a cluster.
    ///
    /// Reads AdmissionReview requests (admission.k8s.io/v1) from standard input, as consecutive JSON documents, and writes one
    /// AdmissionReview response a line, in the same order. The webhook's own code decides, on the state in --filename: Pods
    /// are mutated and then validated, Outrigger's own kinds are validated, and requests that no webhook entry selects are
    /// allowed. Exit codes: 0 every request was answered, denials included, 2 an input could not be read (the requests
    /// before it are answered).
    Review(ReviewArgs),

    /// Test admission with cases from files.
    ///
    /// Each case has a state, a request, and the expected answer. Exit codes: 0 all cases passed, 1 a case failed, 2 an input
    /// could not be read.
    Test(TestArgs),

    /// Explain which rule gives which workload a companion, and why others get none.
    ///
    /// Reads Tenants, Namespaces, Nodes, WorkloadRules and Pods from files (--filename), or from a cluster: the
    /// infrastructure cluster, with the tenant's (--tenant-kubeconfig) for its Pods, or a tenant's cluster alone. For each
    /// rule and workload it prints the value that every expression found, what would have to change, the DPUs on which the
    /// companion may run, and the companion's state. Exit codes: 0 explained, 1 one rule and one workload were named and they
    /// have no companion, 2 an input could not be read.
    Explain(ExplainArgs),

    /// Show what would happen to companions if rules were applied.
    ///
    /// Compares the WorkloadRules and AdminWorkloadRules in --filename with those that there are, in files (--state) or in a
    /// cluster, and prints which companions the manager would create, replace, annotate and delete, on which DPUs new ones may
    /// run, which slots of Machines they take, and what admission would refuse. It changes nothing. Exit codes: 0 nothing would change, 1 something would, 2 an input could not be read, 3
    /// something would be refused.
    Diff(DiffArgs),

    /// Find faults, in files or in a cluster.
    ///
    /// Judges Tenants, rules, NamespaceOffloadings and claims as admission does, and finds faults between objects: rules that
    /// can never match, selectors that exclude each other, annotations that nothing writes, DPUs without owner, hosts without
    /// DPU, DeviceClasses that don't exist, Machines that promise more than their nodes have. With --live it examines the
    /// installation itself, in the infrastructure cluster, a tenant's, or both. It changes nothing. Exit codes: 0 no errors,
    /// 1 errors, 2 an input could not be read.
    Check(CheckArgs),

    /// Show the installation, tenants, rules, companions, DPUs and certificates of a cluster on one screen.
    ///
    /// Only reads. What may not be read is named as not visible. Exit codes: 0 shown, 2 the cluster could not be read.
    Status(StatusArgs),

    /// Show a cluster in a browser on this machine: status, missing companions, workloads, hosts with DPUs, tenants.
    ///
    /// Prints a URL, which works once, and serves on 127.0.0.1 until it is interrupted. Pages change with the cluster. It only
    /// reads, with the rights of the kubeconfig's user; what may not be read is named as not visible. Exit codes: 0
    /// interrupted, 1 it could not serve, 2 the cluster's configuration can't be used.
    Console(Box<ConsoleArgs>),

    /// Run the console for users of the infrastructure cluster. In the infrastructure cluster.
    ///
    /// Serves HTTPS. Users log in with a bearer token, and the console reads with it; it has no rights of its own. A session ends with
    /// its token. It only reads.
    ConsoleServer(Box<ConsoleServerArgs>),

    /// List a tenant's device claims, with their devices and users.
    ///
    /// Reads ResourceClaims, Pods and Tenants from files (--filename) or from the infrastructure cluster. Exit codes: 0
    /// listed, 2 an input could not be read.
    Claims(ClaimsArgs),

    /// Collect for a bug report what a maintainer needs, redacted and bounded, into one archive.
    ///
    /// Reads versions, the installation's configuration, Outrigger's objects with their statuses and Events, what status and check --live
    /// say, and logs and metrics of Outrigger's own Pods. Secrets are never requested, values that may be confidential are redacted, and
    /// the archive's manifest lists each file and what is missing, with the reason. Exit codes: 0 complete, 1 something is missing or cut, or
    /// the archive could not be written, 2 the cluster could not be read, or the output exists.
    SupportBundle(BundleArgs),

    /// Print the CustomResourceDefinitions as YAML.
    Crd(CrdArgs),

    /// Print a script by which a shell completes the command line.
    ///
    /// For bash: `source <(outrigger completion bash)`. As a plugin of kubectl the command needs no script: kubectl asks
    /// `kubectl_complete-outrigger`, another name of the same file.
    Completion(CompletionArgs),

    /// Write the manual pages, one for each subcommand. For who packages Outrigger.
    #[command(hide = true)]
    Manual(ManualArgs),

    /// Write the documentation's reference. For developers of Outrigger.
    #[command(hide = true)]
    Reference(ReferenceArgs),

    /// Write the webhooks' configurations: for who builds Outrigger.
    #[command(hide = true)]
    Webhooks(WebhooksArgs),
}

impl Cli {
    /// Runs the command. Exit code 1: it failed, and standard error has the reason. 2: an input can't be used, or the arguments
    /// are wrong (clap reports that).
    pub(crate) fn run(self) -> ExitCode {
        let done = |()| ExitCode::SUCCESS;
        let result = match self.command {
            Command::Webhook(args) => serve(outrigger_webhook::run(args)).map(done),
            Command::Manager(args) => serve(outrigger_manager::run(args)).map(done),
            Command::Agent(args) => serve(outrigger_agent::run(args)).map(done),
            Command::Host(args) => serve(outrigger_host::run(args)).map(done),
            Command::Render(args) => args.run(),
            Command::Review(args) => args.run(),
            Command::Test(args) => args.run(),
            Command::Explain(args) => args.run(),
            Command::Diff(args) => args.run(),
            Command::Check(args) => args.run(),
            Command::Status(args) => args.run(),
            Command::Console(args) => serve(args.run()),
            Command::ConsoleServer(args) => serve(args.run()).map(done),
            Command::Claims(args) => args.run(),
            Command::SupportBundle(args) => args.run(),
            Command::Crd(args) => args.run().map(done),
            Command::Completion(args) => args.run().map(done),
            Command::Manual(args) => args.run().map(done),
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

/// Whether the reader of the output, `head` for example, has closed it, which is no error.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let is = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    error.downcast_ref::<std::io::Error>().is_some_and(is)
        || error
            .downcast_ref::<serde_json::Error>()
            .is_some_and(|error| error.io_error_kind() == Some(std::io::ErrorKind::BrokenPipe))
}

fn serve<T>(server: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(server)
}
