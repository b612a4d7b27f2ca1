//! The manager.
//!
//! **In**: workload streams of the tenants' agents (gRPC); rules, namespaces and companions of the infrastructure
//! cluster (watches). **Out**: companion Pods, and the status of rules. **Callers**: `outrigger manager`, and the tests.
//!
//! Everything that comes in changes the synchronous [`state`] and queues the keys that it may concern; [`companions`]
//! takes a key, plans one step with the domain's pure function, and makes it. Nothing is written to the API server for
//! a workload: the companion itself is the only durable result.

pub mod companions;
pub mod events;
pub mod grpc;
pub mod metrics;
pub mod queue;
pub mod rules;
pub mod state;
pub mod watches;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use kube::Api;
use outrigger_core::keys;
use outrigger_proto::v1::workload_service_server::WorkloadServiceServer;
use outrigger_runtime::Process;
use outrigger_runtime::bind::Bind;
use outrigger_runtime::cluster::{ClusterArgs, follow, watch_config};
use outrigger_runtime::process::ProcessArgs;
use outrigger_runtime::serve::{Limits, Server};
use outrigger_runtime::tls::ServerTlsArgs;
use tracing::warn;

use crate::grpc::Workloads;
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::state::Spaces;
use crate::watches::Watches;

/// Settings of the manager.
#[derive(Debug, Clone, Args)]
pub struct ManagerArgs {
    /// Where agents connect (gRPC): :PORT, IP:PORT, tcp://IP:PORT or unix:///PATH.
    #[arg(long, env = "OUTRIGGER_BIND_ADDRESS", default_value = "tcp://:9090", value_name = "ADDRESS")]
    pub bind_address: Bind,

    /// Serve gRPC in plain text. Only on loopback addresses and socket files.
    #[arg(long, env = "OUTRIGGER_INSECURE")]
    pub insecure: bool,

    /// Largest gRPC message, in bytes. A sync is one message with all Pods of a tenant cluster: about 1 KiB each.
    #[arg(long, env = "OUTRIGGER_MAX_MESSAGE_BYTES", default_value_t = 128 << 20, value_name = "BYTES")]
    pub max_message_bytes: usize,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub tls: ServerTlsArgs,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub cluster: ClusterArgs,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub process: ProcessArgs,
}

/// Runs the manager until it is told to end.
///
/// # Errors
/// When settings or files can't be used, an address can't be had, or a task fails.
pub async fn run(args: ManagerArgs) -> anyhow::Result<()> {
    let mut process = Process::new(args.process)?;
    let tls = args.tls.load()?;
    match (&tls, args.insecure) {
        (Some(_), true) => bail!("--insecure is given together with a certificate; remove one of them"),
        (None, false) => {
            bail!("--tls-cert-file and --tls-key-file are needed, or --insecure on loopback or a socket")
        }
        (None, true) if !args.bind_address.is_local() => {
            bail!("--insecure is only allowed on loopback or a socket file, not on {}", args.bind_address)
        }
        _ => {}
    }
    let client = args.cluster.client().await?;
    let spaces = Arc::new(Spaces::default());
    let queue = Arc::new(Queue::new(Duration::from_millis(100), Duration::from_secs(30)));
    let rules = Arc::new(Queue::new(Duration::from_millis(500), Duration::from_secs(60)));
    let metrics = Arc::new(Metrics::new(&mut process.registry));
    let instance = std::env::var("HOSTNAME").unwrap_or_else(|_| format!("pid-{}", std::process::id()));
    let events = Arc::new(events::Events::new(client.clone(), instance));

    let watches = Watches { spaces: spaces.clone(), queue: queue.clone(), rules: rules.clone() };
    start_watches(&process, &client, &watches);
    let listener = args.bind_address.listen().context("--bind-address")?;

    // Companions that exist must be known before any is made, and rules before a sync is believed.
    let readiness = process.readiness.clone();
    let companions = companions::Controller {
        client: client.clone(),
        spaces: spaces.clone(),
        queue: queue.clone(),
        rules: rules.clone(),
        events,
        metrics: metrics.clone(),
    };
    let statuses = rules::Controller { client, spaces: spaces.clone(), queue: rules.clone() };
    let lists = readiness.clone();
    process.spawn("companions", async move {
        until_ready(&lists).await;
        companions.run().await;
    });
    let lists = readiness.clone();
    process.spawn("rule status", async move {
        until_ready(&lists).await;
        statuses.run().await;
    });

    let workloads = Workloads { spaces, queue, rules, metrics, drain: process.drain.clone(), readiness };
    let service = WorkloadServiceServer::new(workloads).max_decoding_message_size(args.max_message_bytes);
    let router = tonic::service::Routes::new(service).into_axum_router();
    let mut server = Server::new("grpc", listener).limits(Limits { window: 4 << 20, ..Limits::default() });
    if let Some(tls) = tls {
        tls.register(&mut process.registry);
        process.spawn("certificate files", tls.clone().follow());
        server = server.tls(tls);
    } else {
        warn!("serving in plain text: whoever reaches the address can speak for any tenant");
    }
    process.serve(server, router);
    process.run().await
}

fn start_watches(process: &Process, client: &kube::Client, watches: &Watches) {
    let namespaces = watch_config().labels(keys::TENANT);
    let ready = process.readiness.wait_for("namespaces");
    let task = follow(Api::all(client.clone()), namespaces, "namespaces", ready, watches.namespaces());
    process.spawn("namespaces", task);
    let ready = process.readiness.wait_for("workload rules");
    let task = follow(Api::all(client.clone()), watch_config(), "workload rules", ready, watches.rules());
    process.spawn("workload rules", task);
    let ready = process.readiness.wait_for("companions");
    let companions = watch_config().labels(keys::RULE);
    let task = follow(Api::all(client.clone()), companions, "companions", ready, watches.pods());
    process.spawn("companions watch", task);
}

async fn until_ready(readiness: &outrigger_runtime::ready::Readiness) {
    while !readiness.missing().iter().all(|task| *task == "shutting down") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
