//! The agent.
//!
//! **In**: the Pods of a tenant cluster, and its rules (watches). **Out**: a workload stream to the manager: everything
//! first, then each change; the rules in the infrastructure cluster, and their status here ([`rules`]). **Callers**:
//! `outrigger agent`, and the tests.
//!
//! The stream is level-based and not acknowledged. After whatever interruption the agent connects again, with growing
//! pauses, and begins with everything.

pub mod connect;
pub mod metrics;
pub mod namespaces;
pub mod pod;
pub mod rules;
pub mod store;
pub mod stream;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use backon::{BackoffBuilder, ExponentialBuilder};
use clap::Args;
use futures::StreamExt;
use futures::future::ready;
use kube::{Api, Client};
use outrigger_api::WorkloadRule;
use outrigger_core::ids::TenantId;
use outrigger_core::keys;
use outrigger_proto::TENANT_ID;
use outrigger_proto::v1::WorkloadChunkedStreamRequest;
use outrigger_proto::v1::workload_service_client::WorkloadServiceClient;
use outrigger_runtime::cluster::ClusterArgs;
use outrigger_runtime::events::Events;
use outrigger_runtime::expiry::{self, Expiry};
use outrigger_runtime::process::ProcessArgs;
use outrigger_runtime::ready::{Readiness, ReadyHandle};
use outrigger_runtime::tls::ClientTls;
use outrigger_runtime::watch::{follow, watch_config};
use outrigger_runtime::{Process, duration};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tracing::{info, warn};

use crate::connect::{Address, Link};
use crate::metrics::Metrics;
use crate::rules::{RuleStore, Syncer};
use crate::store::Store;

/// Pauses between two attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(15));

/// A stream that lived this long was a good one: the next pause is the shortest again.
const GOOD: Duration = Duration::from_secs(10);

/// Settings of the agent.
#[derive(Debug, Clone, Args)]
pub struct AgentArgs {
    /// Where the manager is: https://HOST:PORT, or with --insecure http://HOST:PORT on loopback or unix:///PATH.
    #[arg(long, env = "OUTRIGGER_MANAGER_ADDRESS", value_name = "ADDRESS")]
    pub manager_address: Address,

    /// Id of the tenant whose cluster this is.
    #[arg(long, env = "OUTRIGGER_TENANT_ID", value_name = "ID", value_parser = TenantId::new)]
    pub tenant_id: TenantId,

    /// Namespace whose Pods are told. May be given several times, or separated by commas. Without it: those that the
    /// ConfigMap workload-plugin-config in the rules' namespace names (key config: "namespaces: [a, b]"), followed while
    /// the agent runs; without that, or with an empty list, all.
    #[arg(long = "namespace", env = "OUTRIGGER_NAMESPACES", value_delimiter = ',', value_name = "NAME")]
    pub namespaces: Vec<String>,

    /// Namespace of the tenant's rules in its own cluster. They are synced into the infrastructure cluster. Empty: none
    /// are.
    #[arg(long, env = "OUTRIGGER_RULES_NAMESPACE", default_value = "universe", value_name = "NAMESPACE")]
    pub rules_namespace: String,

    /// How often both sides' rules are compared when nothing happens: 5s, 1m.
    #[arg(long, env = "OUTRIGGER_PERIODIC_CHECK_INTERVAL", default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub periodic_check_interval: Duration,

    /// Rules that are synced at once.
    #[arg(long, env = "OUTRIGGER_MAX_CONCURRENT_RECONCILES", default_value_t = 10, value_name = "COUNT")]
    pub max_concurrent_reconciles: usize,

    /// Certificates, PEM, that the manager's certificate must be signed by.
    #[arg(long, env = "OUTRIGGER_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,

    /// The agent's own certificate, PEM. It tells the manager which tenant speaks.
    #[arg(long, env = "OUTRIGGER_CLIENT_CERT_FILE", requires = "client_key_file", value_name = "FILE")]
    pub client_cert_file: Option<PathBuf>,

    /// Private key of that certificate, PEM.
    #[arg(long, env = "OUTRIGGER_CLIENT_KEY_FILE", requires = "client_cert_file", value_name = "FILE")]
    pub client_key_file: Option<PathBuf>,

    /// Name that the manager's certificate must have, where it isn't the host of its address.
    #[arg(long, env = "OUTRIGGER_SERVER_NAME", value_name = "NAME")]
    pub server_name: Option<String>,

    /// Connect in plain text. Only to loopback addresses and socket files.
    #[arg(long, env = "OUTRIGGER_INSECURE")]
    pub insecure: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub cluster: ClusterArgs,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub process: ProcessArgs,
}

/// Runs the agent until it is told to end.
///
/// # Errors
/// When settings can't be used, the cluster isn't configured, or a task fails.
pub async fn run(args: AgentArgs) -> anyhow::Result<()> {
    if args.manager_address.is_plain() {
        if !args.insecure {
            bail!("--manager-address: plain text needs --insecure; use https://HOST:PORT");
        }
        if !args.manager_address.may_be_plain() {
            bail!("--insecure is only allowed to loopback or a socket file");
        }
    }
    let mut process = Process::new(keys::AGENT, args.process)?;
    let client = args.cluster.client().await?;
    let store = Arc::new(Store::default());
    watch_pods(&process, &client, &store, &args.namespaces, &args.rules_namespace);

    let metrics = Metrics::new(&mut process.registry);
    report(&mut process, &store, &metrics);
    if let Some(file) = args.client_cert_file.clone() {
        let expiry = Arc::new(Expiry::new("client"));
        expiry::register(&[&expiry], &mut process.registry, &process.readiness);
        process.spawn("client certificate", expiry::follow(file, expiry));
    }
    let link = Link {
        address: args.manager_address,
        tls: ClientTls {
            ca: args.ca_file.unwrap_or_default(),
            identity: args.client_cert_file.zip(args.client_key_file),
        },
        server_name: args.server_name,
    };
    let tenant: AsciiMetadataValue = args.tenant_id.as_str().parse().context("--tenant-id")?;
    if !args.rules_namespace.is_empty() {
        let store = Arc::new(RuleStore::default());
        let rules: Api<WorkloadRule> = Api::namespaced(client.clone(), &args.rules_namespace);
        let ready = process.readiness.wait_for("workload rules");
        let listing = Readiness::default();
        let watching = follow(
            rules,
            watch_config(),
            "workload rules",
            listing.wait_for("workload rules"),
            store.watch(),
        );
        process.spawn("workload rules", watching);
        let syncer = Syncer {
            events: Events::new(client.clone(), keys::AGENT, None),
            client,
            namespace: args.rules_namespace,
            store,
            link: link.clone(),
            tenant: tenant.clone(),
            interval: args.periodic_check_interval,
            at_once: args.max_concurrent_reconciles,
            drain: process.drain.clone(),
            metrics: metrics.clone(),
        };
        process.spawn("rules", async move {
            // A round that doesn't know all rules would delete what is only not listed yet.
            listing.done().await;
            ready.done();
            syncer.run().await;
        });
    }
    let sender = Sender { store, link, tenant, drain: process.drain.clone(), metrics };
    let connected = process.readiness.wait_for("manager");
    process.drained(sender.run(process.readiness.clone(), connected));
    process.run().await
}

/// Pods of the namespaces of the command line; without any, of those that the ConfigMap in `config` names.
fn watch_pods(process: &Process, client: &Client, store: &Arc<Store>, namespaces: &[String], config: &str) {
    let named: BTreeSet<String> = namespaces.iter().cloned().collect();
    let (tell, told) =
        watch::channel(if named.is_empty() && !config.is_empty() { None } else { Some(named) });
    let listed = process.readiness.wait_for("pods");
    process.spawn("pods", namespaces::pods(client.clone(), store.clone(), told, listed));
    if namespaces.is_empty() && !config.is_empty() {
        let ready = process.readiness.wait_for(namespaces::CONFIG_MAP);
        let following = namespaces::configured(client.clone(), config.to_owned(), ready, tell);
        process.spawn(namespaces::CONFIG_MAP, following);
    }
}

/// What `/debug/state` shows of an agent.
fn report(process: &mut Process, store: &Arc<Store>, metrics: &Metrics) {
    let (store, connected) = (store.clone(), metrics.connected.clone());
    process.report("agent", move || json!({"workloads": store.len(), "connected": connected.get() > 0}));
}

/// Keeps a stream open.
struct Sender {
    store: Arc<Store>,
    link: Link,
    tenant: AsciiMetadataValue,
    drain: CancellationToken,
    metrics: Metrics,
}

impl Sender {
    async fn run(self, readiness: Readiness, connected: ReadyHandle) {
        // A sync of half of the Pods would be taken for all of them.
        while readiness.missing().contains(&"pods") && !self.drain.is_cancelled() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut connected = Some(connected);
        let backoff = ExponentialBuilder::default()
            .with_min_delay(PAUSES.0)
            .with_max_delay(PAUSES.1)
            .with_jitter()
            .without_max_times();
        let mut pauses = backoff.build();
        while !self.drain.is_cancelled() {
            let began = Instant::now();
            match self.stream(&mut connected).await {
                Ok(()) => info!("the stream has ended"),
                Err(error) => warn!(error = format!("{error:#}"), "stream lost; connecting again"),
            }
            if began.elapsed() > GOOD {
                pauses = backoff.build();
            }
            let pause = pauses.next().unwrap_or(PAUSES.1).min(PAUSES.1);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.drain.cancelled() => {}
            }
        }
    }

    /// One stream, from its beginning to its end.
    async fn stream(&self, connected: &mut Option<ReadyHandle>) -> anyhow::Result<()> {
        let client = WorkloadServiceClient::new(self.link.connect().await?);
        info!("connected; sending {} workloads", self.store.len());
        self.metrics.connections.inc();
        if let Some(connected) = connected.take() {
            connected.done();
        }
        self.metrics.connected.set(1);
        let mut ended = self.call(client.clone(), true).await;
        if ended.as_ref().is_err_and(|status| status.code() == Code::Unimplemented) {
            info!(
                "the manager is of an older version and takes no chunks; sending all workloads in one message"
            );
            ended = self.call(client, false).await;
        }
        self.metrics.connected.set(0);
        ended.map_err(|status| anyhow::anyhow!("{:?}: {}", status.code(), status.message()))
    }

    /// Tells everything, in chunks or not, and then each change, until the call ends.
    async fn call(&self, mut client: WorkloadServiceClient<Channel>, chunked: bool) -> Result<(), Status> {
        let (store, metrics) = (self.store.clone(), self.metrics.clone());
        let messages = stream::messages(store.clone(), chunked).inspect(move |message| {
            metrics.sent(message);
            metrics.workloads.set(i64::try_from(store.len()).unwrap_or(i64::MAX));
        });
        let drain = self.drain.clone();
        let messages = Box::pin(messages.take_until(async move { drain.cancelled().await }));
        if chunked {
            let messages = messages.map(|message| WorkloadChunkedStreamRequest { message: Some(message) });
            client.workload_chunked_stream(self.about(messages)).await?;
        } else {
            let messages = messages.filter_map(|message| ready(stream::unchunked(message)));
            client.workload_stream(self.about(messages)).await?;
        }
        Ok(())
    }

    fn about<T>(&self, messages: T) -> Request<T> {
        let mut request = Request::new(messages);
        request.metadata_mut().insert(TENANT_ID, self.tenant.clone());
        request
    }
}
