//! The manager.
//!
//! **In**: workload streams of the tenants' agents (gRPC); tenants, rules, namespaces, DPUs and companions of the
//! infrastructure cluster (watches), and NamespaceOffloadings and Machines where it has them; queries about workloads (HTTPS), if
//! they are enabled. **Out**: companions and their
//! ResourceClaimTemplates; tenants' namespaces, and the tenants of DPUs; labels of offloaded namespaces; reservations, and the
//! marks on Machines' nodes; the status of rules, tenants, NamespaceOffloadings and Machines. **Callers**: `outrigger
//! manager`, and the tests.
//!
//! All parts share one [`context::Context`]. [`watches`] and [`grpc`] change the synchronous [`state`] and queue the keys that a
//! change may concern; a controller takes a key, plans one step, and makes it. All controllers are run by one worker. Nothing is
//! written to the API server for a workload: the companion itself is the only durable result.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests measure with the system's clocks"))]

mod admin;
mod args;
pub mod companions;
mod computed;
mod conditions;
mod context;
pub mod dpu;
mod events;
#[cfg(test)]
mod fixtures;
pub mod grpc;
mod identity;
mod latency;
mod machines;
mod metrics;
mod offloading;
mod queries;
mod queue;
mod report;
mod rules;
mod state;
mod sweep;
mod tenants;
pub mod usage;
mod watches;
mod worker;
mod writes;

use std::sync::Arc;

use anyhow::Context as _;
use kube::Client;
use outrigger_core::keys;
use outrigger_runtime::Process;
use outrigger_runtime::lease::{LeaseArgs, lead};
use outrigger_runtime::self_signed::{self, BundleTarget, Component};
use outrigger_runtime::serve::{Limits, PerIdentity, Server};
use tracing::warn;

pub use crate::args::ManagerArgs;
use crate::context::Context;

/// How the manager keeps a certificate that it signs itself.
const SELF_SIGNED: Component = Component {
    service: keys::MANAGER,
    secret: keys::MANAGER_SELF_SIGNED,
    bundle_targets: &[BundleTarget::ConfigMap { name: keys::CA_CONFIG_MAP }],
};

/// Runs the manager until the process is asked to shut down.
///
/// # Errors
/// When settings or files can't be used, an address can't be bound, or a task fails.
pub async fn run(args: ManagerArgs) -> anyhow::Result<()> {
    let mut process = Process::new(keys::MANAGER, args.process.clone())?;
    let tls = args.transport()?;
    let client = args.cluster.client().await?;
    let listener = args.bind_address.listen().context("--bind-address")?;
    let context =
        Context::new(args.clone(), client.clone(), process.environment.clone(), &mut process.registry);
    let router = assembled(&mut process, &context)?;
    let limits = Limits {
        window: grpc::limits::STREAM_WINDOW,
        connection_window: Some(grpc::limits::CONNECTION_WINDOW),
        max_connections: args.max_connections,
        per_identity: Some(PerIdentity {
            most: grpc::limits::CONNECTIONS_PER_IDENTITY,
            identify: identity::name,
        }),
        max_age: Some(args.max_connection_age),
        ..Limits::default()
    };
    let mut server = Server::new("grpc", listener).limits(limits);
    if let Some(tls) = tls {
        tls.register(&mut process.registry, &process.readiness);
        process.spawn("certificate files", tls.clone().follow());
        self_signed::start(&process, &client, &args.tls.self_signed, SELF_SIGNED, tls.clone());
        if let Some(address) = &args.query_address {
            queries::serve(&process, &context, address, tls.clone())?;
        }
        server = server.tls(tls);
    } else {
        warn!("serving in plain text: whoever reaches the address can speak for any tenant and the platform");
    }
    process.serve(server, router);
    process.run().await
}

/// Starts a manager except for its connections: reports, watches, controllers and the election. Returns the gRPC services, which
/// the caller serves: on a listener of the process, or on connections in memory. Each request needs a
/// [`Peer`](outrigger_runtime::serve::Peer) among its extensions.
///
/// # Errors
/// When the descriptors of the services can't be used for reflection.
pub fn assemble(process: &mut Process, args: ManagerArgs, client: Client) -> anyhow::Result<axum::Router> {
    let context = Context::new(args, client, process.environment.clone(), &mut process.registry);
    assembled(process, &context)
}

fn assembled(process: &mut Process, context: &Arc<Context>) -> anyhow::Result<axum::Router> {
    start(process, context);
    elect(process, context);
    grpc::router(process, context)
}

/// Starts reports, watches and controllers.
fn start(process: &mut Process, context: &Arc<Context>) {
    report::start(process, context);
    watches::start(process, context);
    tenants::first::start(process, context);
    // Companions that exist have to be known before any is made, rules before a sync is used, and all tenants before a DPU is
    // assigned to one. So each of these waits until everything has been listed.
    worker::start(process, context, companions::Companions::new(context));
    worker::start(process, context, rules::Rules(context.clone()));
    worker::start(process, context, tenants::Tenants::new(context));
    worker::start(process, context, tenants::claim::UnusedClaims(context.clone()));
    worker::start(process, context, tenants::claim::StreamStatuses(context.clone()));
    tenants::replicas::start(process, context);
    if context.replica.args.manage_offloading {
        worker::start(process, context, offloading::Offloadings(context.clone()));
    }
    if context.replica.args.manage_machines {
        worker::start(process, context, machines::Machines::new(context));
    }
}

/// Takes part in the election of a leader, after everything has been listed: one whose lists are missing would keep the Lease, and no
/// controller would run anywhere. The Lease is released at once when the process shuts down, while streams go on until
/// agents have been asked to reconnect: another replica leads by then.
fn elect(process: &Process, context: &Context) {
    let lease = LeaseArgs {
        namespace: context.replica.args.lease_namespace.clone(),
        name: keys::MANAGER.to_owned(),
        identity: context.replica.identity.to_string(),
        field_manager: keys::MANAGER.to_owned(),
    };
    let Context { client, replica, environment, .. } = context;
    let (client, leadership, environment) = (client.clone(), replica.leadership.clone(), environment.clone());
    let (lists, ending) = (process.readiness.clone(), process.ending.clone());
    process.drained(async move {
        tokio::select! {
            () = lists.done_but(tenants::first::TASK) => lead(client, lease, leadership, environment, ending).await,
            () = ending.cancelled() => {}
        }
    });
}
