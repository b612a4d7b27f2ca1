//! The admission webhook.
//!
//! **In**: AdmissionReview requests of the API server; watches of namespaces, tenants, rules and more. **Out**: decisions with
//! minimal JSON patches. **Callers**: `outrigger webhook`, and the tests.
//!
//! [`outrigger_admission`] decides, by its caches, which the watches here fill. Where a cache is stale (the manager acts on a
//! rule that this replica has not seen yet), the [`server`] waits for it, for a short time. Reservations (the slots of Machines,
//! their groups and nodes) are made in [`ledger`], in agreement with other replicas.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests measure with the system's clocks"))]

pub mod budget;
pub mod ledger;
pub mod metrics;
pub mod server;
pub mod settings;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::Router;
use clap::{Args, ValueEnum};
use kube::{Api, Client};
use outrigger_admission::Settings;
use outrigger_admission::caches::Caches;
use outrigger_admission::webhooks::watches;
use outrigger_api::Change;
use outrigger_core::admin::AdminNamespaces;
use outrigger_core::keys;
use outrigger_runtime::Process;
use outrigger_runtime::bind::Bind;
use outrigger_runtime::cache::Feed;
use outrigger_runtime::cluster::ClusterArgs;
use outrigger_runtime::process::ProcessArgs;
use outrigger_runtime::self_signed::{self, BundleTarget, Component};
use outrigger_runtime::serve::{Limits, Server};
use outrigger_runtime::tls::ServerTlsArgs;
use outrigger_runtime::watch::{Event, Watch};

use crate::budget::Budget;
use crate::ledger::Ledgers;
use crate::server::{AdmissionService, Writers};
use crate::settings::AdmissionArgs;

/// Settings of the webhook.
#[derive(Debug, Clone, Args)]
pub struct WebhookArgs {
    /// Address of the HTTPS port that the API server calls: :PORT or IP:PORT.
    #[arg(long, env = "OUTRIGGER_BIND_ADDRESS", default_value = ":9443", value_name = "ADDRESS")]
    pub bind_address: Bind,

    /// Maximum number of connections, at most half of them from one address. A further connection closes an idle one.
    #[arg(long, env = "OUTRIGGER_MAX_CONNECTIONS", default_value_t = budget::CONNECTIONS, value_name = "COUNT")]
    pub max_connections: usize,

    /// Which clients need a certificate signed by --tls-client-ca-file: all, or only those that call a path that writes
    /// (/validate/guests, /validate/machines).
    #[arg(long, env = "OUTRIGGER_TLS_CLIENT_AUTH", value_enum, default_value_t, value_name = "WHO")]
    pub tls_client_auth: ClientAuth,

    #[command(flatten)]
    pub(crate) admission: AdmissionArgs,

    #[command(flatten)]
    pub(crate) tls: ServerTlsArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    #[command(flatten)]
    pub(crate) process: ProcessArgs,
}

/// Which clients need a certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ClientAuth {
    /// All clients, if --tls-client-ca-file is set.
    #[default]
    Everybody,
    /// Clients that call a path that writes.
    Writers,
}

/// Longest time for a request: the headers, the body, and the answer. The longest timeout of the configurations is
/// shorter, so no client reads a later answer.
const REQUEST: Duration = Duration::from_secs(12);

/// Limits of a server of webhooks. An API server sends short bodies, over HTTP/1.1 where it calls a Service.
pub fn limits(max_connections: usize) -> Limits {
    Limits {
        max_connections,
        per_address: Some(max_connections.div_ceil(2)),
        request: REQUEST,
        streams: false,
        // Go retries a stream that is refused beyond this, or opens another connection.
        max_streams: 16,
        // HTTP/2 has no smaller window for a connection.
        window: budget::STREAM_WINDOW,
        ..Limits::default()
    }
}

/// Runs the webhook until it shuts down.
///
/// # Errors
/// When settings or files can't be used, an address can't be had, or a task fails.
pub async fn run(args: WebhookArgs) -> anyhow::Result<()> {
    let mut process = Process::new(keys::WEBHOOK, args.process)?;
    let tls = match args.tls_client_auth {
        ClientAuth::Everybody => args.tls.load()?,
        ClientAuth::Writers if args.tls.tls_client_ca_file.is_none() => {
            bail!(
                "--tls-client-auth writers needs --tls-client-ca-file, which has the CA of their certificates"
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
    let writers = if args.tls.tls_client_ca_file.is_some() { Writers::Certified } else { Writers::Anybody };
    let router = assemble(&mut process, args.admission.into(), client.clone(), writers);
    tls.register(&mut process.registry, &process.readiness);
    process.spawn("certificate files", tls.clone().follow());
    self_signed::start(&process, &client, &args.tls.self_signed, SELF_SIGNED, tls.clone());
    let listener = args.bind_address.listen().context("--bind-address")?;
    let server = Server::new("webhook", listener).tls(tls).limits(limits(args.max_connections));
    process.serve(server, router);
    process.run().await
}

/// Starts a webhook except for its connections: the watches that fill its caches. Returns its paths, which the caller serves: on a
/// listener of the process, or by calls in memory.
pub fn assemble(process: &mut Process, settings: Settings, client: Client, writers: Writers) -> Router {
    let (changed, changes) = tokio::sync::watch::channel(());
    let notify = move || changed.send_modify(|()| ());
    let caches = Caches::new(&settings.host_labels).on_change(notify);
    let caches = Arc::new(caches);
    watch(process, &client, &caches, &settings.admin);

    let cached = caches.clone();
    process.report("caches", move || cached.sizes());

    let metrics = metrics::Metrics::new(&mut process.registry);
    let clock = process.environment.clock;
    let service = AdmissionService {
        ledgers: Ledgers::new(client, &settings.core_namespace, caches.clone(), clock),
        caches,
        changes,
        settings,
        metrics,
        readiness: process.readiness.clone(),
        budget: Arc::new(Budget::new(clock)),
        writers,
        clock,
    };
    service.router()
}

/// Where the webhook publishes a certificate that it signs itself.
const SELF_SIGNED: Component = {
    const fn entries(kind: &'static str) -> BundleTarget {
        BundleTarget::Webhooks { kind, name: keys::WEBHOOK_CONFIGURATION, entries: keys::WEBHOOK_ENTRIES }
    }
    Component {
        service: keys::WEBHOOK,
        secret: keys::WEBHOOK_SELF_SIGNED,
        bundle_targets: &[entries("MutatingWebhookConfiguration"), entries("ValidatingWebhookConfiguration")],
    }
};

/// Fills the caches. The webhook is ready when each watch has been listed, or the cluster doesn't have the kind.
fn watch(process: &Process, client: &Client, caches: &Arc<Caches>, admin: &AdminNamespaces) {
    fn sink<K, F>(caches: &Arc<Caches>, apply: F) -> impl FnMut(Event<K>) + Send + use<K, F>
    where
        K: kube::Resource + Send + 'static,
        F: Fn(&Caches, Change<K>) + Send + 'static,
    {
        let caches = caches.clone();
        Feed::new(move |change| apply(&caches, change)).sink()
    }
    let clock = process.environment.clock;
    let began = clock.now();
    let machine = move |caches: &Caches, change| caches.apply_machine(change, clock.now() - began);
    let guest = move |caches: &Caches, change| caches.guest(change, clock.now() - began);

    // One watch of all Namespaces, because a label selector can't select by one key or another. Their metadata alone is read,
    // and the cache keeps only those with a label that concerns admission.
    Watch::all(client, watches::NAMESPACES).start(process, sink(caches, Caches::namespace));
    Watch::all(client, "nodes").start(process, sink(caches, Caches::node));
    Watch::all(client, watches::PRIORITY_CLASSES).start(process, sink(caches, Caches::priority_class));
    let guests = format!("{}={}", keys::POD_ROLE, keys::GUEST);
    Watch::all(client, watches::GUESTS).labels(&guests).complete().start(process, sink(caches, guest));
    // Outrigger's own kinds need not be defined where the webhook serves another purpose: in a tenant's own cluster, or with
    // Liqo alone.
    Watch::all(client, "tenants").optional().start(process, sink(caches, Caches::apply_tenant));
    Watch::all(client, "workload rules").optional().start(process, sink(caches, Caches::apply_rule));
    Watch::all(client, "namespace offloadings")
        .optional()
        .start(process, sink(caches, Caches::apply_offloading));
    Watch::all(client, watches::MACHINES).optional().start(process, sink(caches, machine));
    // Clusters before Kubernetes 1.34 don't have these kinds, nor clusters that turn them off.
    Watch::all(client, watches::CLAIMS).optional().start(process, sink(caches, Caches::claim));
    Watch::all(client, watches::DEVICE_CLASSES).optional().start(process, sink(caches, Caches::device_class));
    // RBAC grants access to the namespace of admin rules only.
    Watch::of(Api::namespaced(client.clone(), &admin.rules), "admin rules")
        .optional()
        .start(process, sink(caches, Caches::apply_admin_rule));
}
