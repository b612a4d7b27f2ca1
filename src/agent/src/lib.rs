//! The agent.
//!
//! **In**: watches of the Pods of the configured namespaces, of the tenant's rules, and of claims and slices of devices where attributes of
//! these are sent ([`device_attributes`]); a stream from the manager, of how companions are. **Out**: a workload stream to the manager, with
//! all workloads first and then each change; the rules in the infrastructure cluster, and their status in the tenant's cluster ([`rules`]);
//! conditions and Events of Pods, of their companions (`companions`); and, where the tenant wants it, a condition and a taint of its Nodes
//! (`nodes`), and devices for Pods that don't start before their companions (`first`) or aren't bound before (`binding`). **Callers**:
//! `outrigger agent`, and the tests.
//!
//! The stream is level-based and not acknowledged. After an interruption the agent reconnects with exponential backoff
//! and sends all workloads again.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests measure with the system's clocks"))]

pub mod annotations;
mod binding;
mod budget_watches;
mod companions;
mod conditions;
pub mod connect;
mod context;
pub mod device_attributes;
mod disruption;
mod first;
mod gate;
pub mod host;
mod metrics;
mod namespaces;
mod nodes;
mod paced;
mod pauses;
pub mod pod;
mod pod_watches;
mod proxy;
pub mod rules;
mod running;
mod sender;
mod settings;
mod store;
mod stream;
mod waits;
mod writes;

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context as _;
use kube::{Api, Client};
use outrigger_api::WorkloadRule;
use outrigger_core::keys;
use outrigger_runtime::Process;
use outrigger_runtime::events::Events;
use outrigger_runtime::expiry::{self, Expiry};
use outrigger_runtime::ready::Readiness;
use outrigger_runtime::tls::ClientTls;
use outrigger_runtime::watch::Watch;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tracing::info;

use crate::annotations::{Allowed, Selection};
use crate::companions::{Board, Follower, Link, Writer};
use crate::connect::Connector;
use crate::context::Context;
use crate::first::{Devices, Publishing};
use crate::gate::{Enforcement, Gate};
use crate::metrics::Metrics;
use crate::namespaces::{CONFIG_MAP, Scope};
use crate::nodes::{HostListener, Hosts};
use crate::proxy::Proxy;
use crate::rules::{RuleStore, Syncer};
use crate::sender::Sender;
pub use crate::settings::AgentArgs;
use crate::store::WorkloadStore;

/// Runs the agent until the process shuts down.
///
/// # Errors
/// If options are invalid, the cluster is not configured, or a task fails.
pub async fn run(args: AgentArgs) -> anyhow::Result<()> {
    args.check()?;
    let mut process = Process::new(keys::AGENT, args.process.clone())?;
    let client = args.cluster.client().await?;
    let own = args.client_cert_file.clone().map(|file| {
        let expiry = Arc::new(Expiry::new("client"));
        process.spawn("client certificate", expiry::follow(file, expiry.clone()));
        expiry
    });
    let identity = args.client_cert_file.clone().zip(args.client_key_file.clone());
    let tls = ClientTls { ca: args.ca_file.clone().unwrap_or_default(), identity };
    let proxy = Proxy::from_env(&args.manager_address)?;
    if let Some(proxy) = &proxy {
        info!(proxy = proxy.authority(), "connecting to the manager through a proxy");
    }
    let connector = Connector::to(args.manager_address.clone(), tls, args.server_name.clone(), proxy);
    let (gate, host) = (args.gate.clone(), args.host.clone());
    let ports = assemble(&mut process, args, client.clone(), connector)?;
    ports.serve(&mut process, &client, own.as_deref(), &gate, &host)?;
    process.run().await
}

/// What the agent serves, without its ports.
pub struct Ports {
    gate: Gate,
    hosts: host::Hosts,
}

impl Ports {
    /// What both ports serve, for a caller that has connections of its own. Each request needs a
    /// [`Peer`](outrigger_runtime::serve::Peer) among its extensions.
    pub fn router(self) -> axum::Router {
        self.gate.router().merge(self.hosts.router())
    }

    /// Serves what the settings ask for. Both ports have the same certificate. `own`: that of the agent as a client.
    fn serve(
        self,
        process: &mut Process,
        client: &Client,
        own: Option<&Expiry>,
        gate: &gate::GateArgs,
        host: &host::HostArgs,
    ) -> anyhow::Result<()> {
        if gate.gate_address.is_none() && host.host_address.is_none() {
            let own: Vec<&Expiry> = own.into_iter().collect();
            if !own.is_empty() {
                expiry::register(&own, &mut process.registry, &process.readiness);
            }
            return Ok(());
        }
        let plugin = host.host_address.is_some().then_some(host.host_namespace.as_str());
        let tls = gate.certificate(process, client, own, plugin)?;
        if let Some(address) = &gate.gate_address {
            self.gate.serve(process, address, tls.clone())?;
        }
        if let Some(address) = &host.host_address {
            self.hosts.serve(process, address, tls)?;
        }
        Ok(())
    }
}

/// Starts an agent except for its files: watches, the synchronization of rules, and the stream, over connections that the
/// connector opens. Returns what it serves, which the caller may do.
///
/// # Errors
/// If options are invalid.
pub fn assemble(
    process: &mut Process,
    args: AgentArgs,
    client: Client,
    connector: Connector,
) -> anyhow::Result<Ports> {
    let scope = settings::scope(&args.namespaces, &args.rules_namespace)?;
    let allowed = args.annotations()?;
    let context = Arc::new(Context {
        events: Arc::new(Events::new(client.clone(), keys::AGENT, None)),
        client,
        environment: process.environment.clone(),
        connector,
        tenant: args.tenant_id.as_str().parse().context("--tenant-id")?,
        metrics: Metrics::new(&mut process.registry),
        drain: process.drain.clone(),
        channel: watch::Sender::new(None),
        asked: watch::Sender::new(BTreeSet::new()),
    });
    let board = Arc::new(Board::new(
        context.environment.clock,
        args.report_companions_after,
        context.metrics.clone(),
    ));
    let store = Arc::new(WorkloadStore::new(board.clone()));
    report(process, &store, &board, &context.metrics);
    device_attributes::start(process, &context, &store, args.device_attributes()?);
    let rules = watch_rules(process, &context, &args.rules_namespace);
    let selection = selection(process, &context, rules.clone(), allowed);
    let scope = match scope {
        Some(scope) => watch::channel(Some(scope)).1,
        None => configured(process, &context, &args.rules_namespace),
    };
    let (hosts, devices) = hosts(process, &context, &args, &store, &board, &scope);
    let settled = devices.as_ref().map(|devices| devices.settled());
    let devices = devices.map_or_else(|| watch::channel(Publishing::Off).1, |devices| devices.publishing());
    report_companions(process, &context, &store, &board, hosts);
    let listed = process.readiness.wait_for("pods");
    let (gate, caches) = Gate::new(process, &context);
    let hosts = host::Hosts::new(process, &context, board.clone(), &args.host.host_namespace);
    let served = args.gate.gate_address.is_some();
    let enforcement = Enforcement { served, devices };
    let follower =
        gate::Follower { context: context.clone(), caches, board, enforcement: enforcement.clone() };
    follow_gates(process, follower, rules.clone(), scope.clone(), settled);
    let forbidden = process.readiness.warning(budget_watches::BUDGETS);
    let watches = pod_watches::pods(context.clone(), store.clone(), scope, selection, listed, forbidden);
    process.spawn("pods", watches);
    if !args.rules_namespace.is_empty() {
        let WatchedRules { store: rules, listed, changes } = rules;
        let ready = process.readiness.wait_for("workload rules");
        let syncer = Syncer {
            context: context.clone(),
            namespace: args.rules_namespace,
            store: rules,
            workloads: store.clone(),
            enforcement,
            interval: args.periodic_check_interval,
            concurrency: args.max_concurrent_reconciles,
        };
        process.spawn("rules", async move {
            // A round before all rules are listed would take the missing ones for orphans.
            listed.done().await;
            ready.done();
            syncer.run(changes).await;
        });
    }
    let connected = process.readiness.wait_for("manager");
    process.drained(Sender { context, store }.run(process.readiness.clone(), connected));
    Ok(Ports { gate, hosts })
}

/// Keeps what decides about readiness gates up to date.
fn follow_gates(
    process: &Process,
    follower: gate::Follower,
    WatchedRules { store, listed, .. }: WatchedRules,
    scope: watch::Receiver<Option<Scope>>,
    settled: Option<watch::Receiver<bool>>,
) {
    process.spawn("gates", async move {
        if let Some(mut settled) = settled {
            // Until it is known what the cluster's devices have, no Pod gets a weaker claim.
            let _ = tokio::time::timeout(waits::PATIENCE, settled.wait_for(|settled| *settled)).await;
        }
        listed.done().await;
        follower.run(store, scope).await;
    });
}

#[derive(Clone)]
struct WatchedRules {
    store: Arc<RuleStore>,
    /// Done when all rules have been listed.
    listed: Readiness,
    /// The changes of the store, those of the first list among them.
    changes: watch::Receiver<()>,
}

/// Watches the rules of a namespace. There are none if its name is empty, or in a cluster without the definition of the kind.
fn watch_rules(process: &Process, context: &Context, namespace: &str) -> WatchedRules {
    const WHAT: &str = "workload rules";
    let (store, listed) = (Arc::new(RuleStore::default()), Readiness::default());
    let changes = store.changes();
    if !namespace.is_empty() {
        let rules: Api<WorkloadRule> = Api::namespaced(context.client.clone(), namespace);
        let watch = Watch::of(rules, WHAT).optional().environment(&context.environment);
        process.spawn(WHAT, watch.follow(listed.wait_for(WHAT), store.watch()));
    }
    WatchedRules { store, listed, changes }
}

/// Publishes the selection of annotations. There is none before the rules are listed: workloads without the annotations
/// that rules name would lose their companions.
fn selection(
    process: &Process,
    context: &Arc<Context>,
    WatchedRules { store, listed, .. }: WatchedRules,
    allowed: Allowed,
) -> watch::Receiver<Option<Selection>> {
    let (sender, receiver) = watch::channel(None);
    let (clock, asked) = (context.environment.clock, context.asked.subscribe());
    process.spawn("annotations", async move {
        listed.done().await;
        annotations::follow(clock, store, allowed, asked, sender).await;
    });
    receiver
}

/// Starts to write to Nodes what the manager reports of their DPUs, and to publish devices for them, if the tenant wants that. Returns
/// who has to learn of hosts, and the devices.
fn hosts(
    process: &Process,
    context: &Arc<Context>,
    args: &AgentArgs,
    store: &Arc<WorkloadStore>,
    board: &Arc<Board>,
    scope: &watch::Receiver<Option<Scope>>,
) -> (Vec<Arc<dyn HostListener>>, Option<Arc<Devices>>) {
    let clock = context.environment.clock;
    let hosts = args.node_conditions.then(|| Arc::new(Hosts::new(clock, args.node_taints)));
    let devices = args.companions_first.then(|| {
        let warnings = ["claim templates", "slices of devices"].map(|what| process.readiness.warning(what));
        let [foreign, taken] = warnings;
        Arc::new(Devices::new(clock, foreign, taken, board.clone()))
    });
    let mut listeners: Vec<Arc<dyn HostListener>> = Vec::new();
    listeners.extend(hosts.clone().map(|hosts| hosts as Arc<dyn HostListener>));
    listeners.extend(devices.clone().map(|devices| devices as Arc<dyn HostListener>));
    if !listeners.is_empty() {
        let (feed, listed) = nodes::watch(process, context, listeners.clone());
        if let Some(hosts) = &hosts {
            nodes::start(process, context, hosts, feed);
        }
        if let Some(devices) = &devices {
            binding::start(process, context, store, board, devices);
            first::start(process, context, devices, listed, scope.clone());
        }
    }
    (listeners, devices)
}

/// Starts to follow what the manager reports of companions, and to write it to Pods.
fn report_companions(
    process: &Process,
    context: &Arc<Context>,
    store: &Arc<WorkloadStore>,
    board: &Arc<Board>,
    hosts: Vec<Arc<dyn HostListener>>,
) {
    let unsupported = process.readiness.warning("companions");
    let follower = Follower { context: context.clone(), board: board.clone(), hosts, unsupported };
    process.spawn("companions", follower.run());
    let writer = Writer {
        context: context.clone(),
        board: board.clone(),
        store: store.clone(),
        conditions_forbidden: process.readiness.warning("conditions of Pods"),
        events_forbidden: (process.readiness.warning("events of Pods"), Mutex::default()),
    };
    process.spawn("conditions of Pods", writer.run());
}

fn configured(process: &Process, context: &Arc<Context>, namespace: &str) -> watch::Receiver<Option<Scope>> {
    let (sender, receiver) = watch::channel(None);
    let ready = process.readiness.wait_for(CONFIG_MAP);
    let warning = process.readiness.warning(CONFIG_MAP);
    let (context, namespace) = (context.clone(), namespace.to_owned());
    process.spawn(CONFIG_MAP, namespaces::configured(context, namespace, ready, warning, sender));
    receiver
}

/// Registers the state of the agent for `/debug/state`.
fn report(process: &mut Process, store: &Arc<WorkloadStore>, board: &Arc<Board>, metrics: &Metrics) {
    let (store, board, connected) = (store.clone(), board.clone(), metrics.connected.clone());
    process.report("agent", move || {
        let companions = match board.link() {
            Link::Down(_) => "Unreachable",
            Link::Open { complete: None, .. } => "Syncing",
            Link::Open { .. } => "Synced",
            Link::Unsupported => "Unsupported",
        };
        json!({"workloads": store.len(), "connected": connected.get() > 0, "companions": companions})
    });
}

#[cfg(test)]
mod tests;
