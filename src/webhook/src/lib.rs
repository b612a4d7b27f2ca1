//! The admission webhook.
//!
//! **In**: AdmissionReview requests of the API server; namespaces, tenants, rules and a few more (watches). **Out**:
//! verdicts with minimal JSON patches. **Callers**: `outrigger webhook`, and the tests.
//!
//! A request is decided by [`admit`], which only looks at [`caches`]. When a cache turns out to be behind (the manager
//! acts on a rule that this replica has not seen yet), the request waits for it, for a short time. Only what can be had once
//! (the slots of Machines, their groups and nodes) is agreed on with other replicas, in [`ledger`].

pub mod admit;
pub mod budget;
pub mod caches;
pub mod ledger;
pub mod metrics;
pub mod review;
pub mod server;
pub mod settings;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use outrigger_api::AdminWorkloadRule;
use outrigger_core::admin::AdminNamespaces;
use outrigger_core::keys;
use outrigger_runtime::Process;
use outrigger_runtime::bind::Bind;
use outrigger_runtime::cache::{Change, Feed};
use outrigger_runtime::cluster::ClusterArgs;
use outrigger_runtime::process::ProcessArgs;
use outrigger_runtime::self_signed::{self, Component, Place};
use outrigger_runtime::serve::{Limits, Server};
use outrigger_runtime::tls::ServerTlsArgs;
use outrigger_runtime::watch::{self, watch_config};
use serde::de::DeserializeOwned;

use crate::admit::Settings;
use crate::caches::Caches;
use crate::ledger::Ledgers;
use crate::server::Writers;
use crate::settings::AdmissionArgs;

/// What a watch is called that slots or groups of Machines are given out by.
const MACHINES: &str = "machines";
const GUESTS: &str = "guests";
const GUEST_NAMESPACES: &str = "namespaces of guests";

/// Settings of the webhook.
#[derive(Debug, Clone, Args)]
pub struct WebhookArgs {
    /// Where the API server connects (HTTPS): :PORT or IP:PORT.
    #[arg(long, env = "OUTRIGGER_BIND_ADDRESS", default_value = ":9443", value_name = "ADDRESS")]
    pub bind_address: Bind,

    /// Connections at once, at most half of them from one address. For one more the one that has been idle longest is closed.
    #[arg(long, env = "OUTRIGGER_MAX_CONNECTIONS", default_value_t = budget::CONNECTIONS, value_name = "COUNT")]
    pub max_connections: usize,

    /// Who has to show a certificate signed by --tls-client-ca-file: whoever connects, or only who asks a path that writes
    /// (/validate/guests, /validate/machines).
    #[arg(long, env = "OUTRIGGER_TLS_CLIENT_AUTH", value_enum, default_value_t, value_name = "WHO")]
    pub tls_client_auth: ClientAuth,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub admission: AdmissionArgs,

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

/// Who has to show a certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ClientAuth {
    /// Whoever connects, where a CA of clients is named.
    #[default]
    Everybody,
    /// Who asks a path that writes.
    Writers,
}

/// Longest time for a request: the headers, the body, and the answer. The configuration's timeoutSeconds is 10, so nobody is there any
/// more who would read it.
const REQUEST: Duration = Duration::from_secs(12);

/// What one client may take of the port. An API server calls with short bodies, over HTTP/1.1 where it calls a Service.
fn limits(max_connections: usize) -> Limits {
    Limits {
        max_connections,
        per_address: Some(max_connections.div_ceil(2)),
        request: REQUEST,
        streams: false,
        // Go repeats what is refused beyond this, or opens another connection.
        max_streams: 16,
        // HTTP/2 gives a connection no less.
        window: budget::STREAM_WINDOW,
        ..Limits::default()
    }
}

/// Runs the webhook until it is told to end.
///
/// # Errors
/// When settings or files can't be used, an address can't be had, or a task fails.
pub async fn run(args: WebhookArgs) -> anyhow::Result<()> {
    let mut process = Process::new(keys::WEBHOOK, args.process)?;
    let tls = match args.tls_client_auth {
        ClientAuth::Everybody => args.tls.load()?,
        ClientAuth::Writers if args.tls.tls_client_ca_file.is_none() => {
            bail!(
                "--tls-client-auth writers goes with --tls-client-ca-file, which says who signs their certificates"
            )
        }
        ClientAuth::Writers => args.tls.load_asking()?,
    };
    let Some(tls) = tls else {
        bail!(
            "--tls-cert-file and --tls-key-file are needed, or --tls self-signed: the API server calls webhooks by \
             HTTPS only"
        );
    };
    let client = args.cluster.client().await?;
    let settings: Settings = args.admission.into();
    let caches = Arc::new(Caches::new(&settings.host_label));
    watch(&process, &client, &caches);
    watch_admin_rules(&process, &client, &caches, &settings.admin);

    let cached = caches.clone();
    process.report("caches", move || cached.sizes());

    let metrics = Arc::new(metrics::Metrics::new(&mut process.registry));
    tls.register(&mut process.registry, &process.readiness);
    process.spawn("certificate files", tls.clone().follow());
    self_signed::start(&process, &client, &args.tls.self_signed, SELF_SIGNED, tls.clone());
    let listener = args.bind_address.listen().context("--bind-address")?;
    let ledgers = Ledgers::new(client, settings.core_namespace.clone(), caches.clone());
    let writers = if args.tls.tls_client_ca_file.is_some() { Writers::Certified } else { Writers::Anybody };
    let router = server::router(caches, settings, metrics, process.readiness.clone(), ledgers, writers);
    process.serve(Server::new("webhook", listener).tls(tls).limits(limits(args.max_connections)), router);
    process.run().await
}

/// How the webhook keeps a certificate that it signs itself.
const SELF_SIGNED: Component = {
    const fn entries(kind: &'static str) -> Place {
        Place::Webhooks { kind, name: keys::WEBHOOK_CONFIGURATION, entries: ".outrigger.dev" }
    }
    Component {
        service: keys::WEBHOOK,
        secret: keys::WEBHOOK_SELF_SIGNED,
        places: &[entries("MutatingWebhookConfiguration"), entries("ValidatingWebhookConfiguration")],
    }
};

/// Keeps the caches current. The webhook is ready when each has been listed, or the cluster has no such kind.
fn watch(process: &Process, client: &Client, caches: &Arc<Caches>) {
    type Sink<K> = fn(&Caches, Change<K>);
    fn optional<K>(
        process: &Process,
        client: &Client,
        caches: &Arc<Caches>,
        what: &'static str,
        sink: Sink<K>,
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
        K::DynamicType: Default,
    {
        let caches = caches.clone();
        let feed = Feed::new(move |change| sink(&caches, change));
        watch::watch_optional(process, client, what, watch_config(), feed.sink());
    }
    fn one<K>(
        process: &Process,
        client: &Client,
        caches: &Arc<Caches>,
        what: &'static str,
        config: ListParams,
        sink: Sink<K>,
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
        K::DynamicType: Default,
    {
        let caches = caches.clone();
        let feed = Feed::new(move |change| sink(&caches, change));
        watch::watch(process, client, what, config, feed.sink());
    }
    one(process, client, caches, "namespaces", watch_config().labels(keys::TENANT), Caches::namespace);
    // What we define ourselves need not be defined where the webhook is only there for something else: a tenant's own
    // cluster, or Liqo's.
    optional(process, client, caches, "tenants", Caches::apply_tenant);
    optional(process, client, caches, "workload rules", Caches::apply_rule);
    optional(process, client, caches, "namespace offloadings", Caches::apply_offloading);
    optional(process, client, caches, MACHINES, Caches::apply_machine);
    // Clusters before Kubernetes 1.34 don't have these, nor those where it is turned off.
    optional(process, client, caches, "resource claims", Caches::claim);
    optional(process, client, caches, "device classes", Caches::device_class);
    let guests = watch_config().labels(&format!("{}={}", keys::POD_ROLE, keys::GUEST));
    one(process, client, caches, GUESTS, guests, Caches::guest);
    let injected = watch_config().labels(&format!("{}={}", keys::INJECT_RESOURCE, keys::INJECT_ENABLED));
    one(process, client, caches, GUEST_NAMESPACES, injected, Caches::injected_namespace);
    one(process, client, caches, "nodes", watch_config(), Caches::node);
    one(process, client, caches, "priority classes", watch_config(), Caches::priority_class);
    let offloaded = watch_config().labels(&format!("{}=true", keys::OFFLOADED));
    one(process, client, caches, "offloaded namespaces", offloaded, Caches::offloaded_namespace);
}

/// RBAC grants access to the namespace of admin rules only.
fn watch_admin_rules(process: &Process, client: &Client, caches: &Arc<Caches>, admin: &AdminNamespaces) {
    let what = "admin rules";
    let ready = process.readiness.wait_for(what);
    let caches = caches.clone();
    let feed = Feed::new(move |change| caches.apply_admin_rule(change));
    let api: Api<AdminWorkloadRule> = Api::namespaced(client.clone(), &admin.rules);
    process.spawn(what, watch::follow_optional(api, watch_config(), what, ready, feed.sink()));
}
