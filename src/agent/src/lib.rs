//! The agent.
//!
//! **In**: the Pods of the namespaces that are named, and the tenant's rules (watches). **Out**: a workload stream to the manager: everything
//! first, then each change; the rules in the infrastructure cluster, and their status here ([`rules`]). **Callers**:
//! `outrigger agent`, and the tests.
//!
//! The stream is level-based and not acknowledged. After whatever interruption the agent connects again, with growing
//! pauses, and begins with everything.

pub mod annotations;
pub mod connect;
pub mod metrics;
pub mod namespaces;
pub mod pod;
pub mod rules;
pub mod store;
pub mod stream;
mod watching;

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
use outrigger_runtime::watch::{follow_optional, watch_config};
use outrigger_runtime::{Process, duration};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tracing::{info, warn};

use crate::annotations::{Pattern, Selection};
use crate::connect::{Address, Link};
use crate::metrics::Metrics;
use crate::namespaces::{CONFIG_MAP, Scope};
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

    /// Namespace whose Pods are told; "*" for all. May be given several times, or separated by commas. Without it: those that
    /// the ConfigMap workload-plugin-config in the rules' namespace names (key config: "namespaces: [a, b]", or
    /// "namespaces: ['*']"), followed while the agent runs. As long as neither says anything that can be used, nothing is told.
    #[arg(long = "namespace", env = "OUTRIGGER_NAMESPACES", value_delimiter = ',', value_name = "NAME")]
    pub namespaces: Vec<String>,

    /// Annotation of Pods that is sent besides those that the rules here name: a key, example.com/* for all keys of a prefix, or
    /// "*" for all. May be given several times, or separated by commas. kubectl.kubernetes.io/last-applied-configuration is
    /// never sent. Rules that are made in the infrastructure cluster see only what is named here or by rules here.
    #[arg(
        long = "send-annotation",
        env = "OUTRIGGER_SEND_ANNOTATIONS",
        value_delimiter = ',',
        value_name = "KEY"
    )]
    pub send_annotations: Vec<String>,

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
    let scope = scope(&args.namespaces, &args.rules_namespace)?;
    let admitted = admitted(&args.send_annotations)?;
    let mut process = Process::new(keys::AGENT, args.process)?;
    let client = args.cluster.client().await?;
    let store = Arc::new(Store::default());
    let events = Arc::new(Events::new(client.clone(), keys::AGENT, None));
    let rules = watch_rules(&process, &client, &args.rules_namespace);
    let selection = selection(&process, rules.as_ref(), admitted);
    let scope = match scope {
        Some(scope) => watch::channel(Some(scope)).1,
        None => configured(&process, &client, &args.rules_namespace, &events),
    };
    let listed = process.readiness.wait_for("pods");
    process.spawn("pods", watching::pods(client.clone(), store.clone(), scope, selection, listed));

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
    if let Some(WatchedRules { store: rules, listed }) = rules {
        let ready = process.readiness.wait_for("workload rules");
        let syncer = Syncer {
            events,
            client,
            namespace: args.rules_namespace,
            store: rules,
            workloads: store.clone(),
            link: link.clone(),
            tenant: tenant.clone(),
            interval: args.periodic_check_interval,
            at_once: args.max_concurrent_reconciles,
            drain: process.drain.clone(),
            metrics: metrics.clone(),
        };
        process.spawn("rules", async move {
            // A round that doesn't know all rules would delete what is only not listed yet.
            listed.done().await;
            ready.done();
            syncer.run().await;
        });
    }
    let sender = Sender { store, link, tenant, drain: process.drain.clone(), metrics };
    let connected = process.readiness.wait_for("manager");
    process.drained(sender.run(process.readiness.clone(), connected));
    process.run().await
}

/// The namespaces of the command line; `None` where a ConfigMap names them.
fn scope(names: &[String], rules_namespace: &str) -> anyhow::Result<Option<Scope>> {
    let mut names = names.iter().map(String::as_str).filter(|name| !name.is_empty()).peekable();
    if names.peek().is_some() {
        return Scope::new(names).map(Some).map_err(|error| anyhow::anyhow!("--namespace: {error}"));
    }
    if rules_namespace.is_empty() {
        bail!(
            "--namespace is needed where --rules-namespace is empty: name the namespaces, or \"*\" for all"
        );
    }
    Ok(None)
}

/// The annotations that settings admit.
fn admitted(patterns: &[String]) -> anyhow::Result<Arc<[Pattern]>> {
    let given = patterns.iter().filter(|pattern| !pattern.is_empty());
    let read =
        given.map(|pattern| pattern.parse().map_err(|error| anyhow::anyhow!("--send-annotation: {error}")));
    read.collect()
}

/// The tenant's rules, as they are watched.
struct WatchedRules {
    store: Arc<RuleStore>,
    /// Done when all have been listed.
    listed: Readiness,
}

/// Watches the rules of a namespace; none where it is empty. A cluster may not have the kind: then it has no rules.
fn watch_rules(process: &Process, client: &Client, namespace: &str) -> Option<WatchedRules> {
    if namespace.is_empty() {
        return None;
    }
    const WHAT: &str = "workload rules";
    let (store, listed) = (Arc::new(RuleStore::default()), Readiness::default());
    let rules: Api<WorkloadRule> = Api::namespaced(client.clone(), namespace);
    process.spawn(WHAT, follow_optional(rules, watch_config(), WHAT, listed.wait_for(WHAT), store.watch()));
    Some(WatchedRules { store, listed })
}

/// Which annotations are sent. Nothing is said before the rules are known: workloads without the annotations that rules ask for
/// would lose their companions.
fn selection(
    process: &Process,
    rules: Option<&WatchedRules>,
    admitted: Arc<[Pattern]>,
) -> watch::Receiver<Option<Selection>> {
    let Some(WatchedRules { store, listed }) = rules else {
        return watch::channel(Some(Selection::new(admitted, BTreeSet::new()))).1;
    };
    let (tell, told) = watch::channel(None);
    let (store, listed) = (store.clone(), listed.clone());
    process.spawn("annotations", async move {
        listed.done().await;
        annotations::follow(store, admitted, tell).await;
    });
    told
}

/// The namespaces that the ConfigMap names.
fn configured(
    process: &Process,
    client: &Client,
    namespace: &str,
    events: &Arc<Events>,
) -> watch::Receiver<Option<Scope>> {
    let (tell, told) = watch::channel(None);
    let ready = process.readiness.wait_for(CONFIG_MAP);
    let warning = process.readiness.warning(CONFIG_MAP);
    let (client, namespace, events) = (client.clone(), namespace.to_owned(), events.clone());
    process.spawn(CONFIG_MAP, namespaces::configured(client, namespace, ready, warning, events, tell));
    told
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
        self.store.ended();
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
