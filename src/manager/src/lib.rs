//! The manager.
//!
//! **In**: workload streams of the tenants' agents (gRPC); tenants, rules, namespaces, DPUs and companions of the
//! infrastructure cluster (watches), and NamespaceOffloadings and Machines where it has them. **Out**: companions, and what
//! their devices are claimed by; tenants' namespaces, and whose a DPU is; which namespaces are offloaded; reservations, and the
//! marks on Machines' nodes; the status of rules, tenants, NamespaceOffloadings and Machines. **Callers**: `outrigger
//! manager`, and the tests.
//!
//! Everything that comes in changes the synchronous [`state`] and queues the keys that it may concern; [`companions`]
//! takes a key, plans one step with the domain's pure function, and makes it. Nothing is written to the API server for
//! a workload: the companion itself is the only durable result.

pub mod admin;
pub mod companions;
pub mod events;
pub mod grpc;
pub mod lag;
pub mod machines;
pub mod metrics;
pub mod namespaces;
pub mod queue;
pub mod report;
pub mod rules;
pub mod state;
pub mod stream;
pub mod tenants;
pub mod usage;
pub mod watches;
mod worker;
mod writes;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use kube::{Api, Client};
use outrigger_core::admin::{AdminNamespaces, namespace};
use outrigger_core::ids::IdError;
use outrigger_core::keys;
use outrigger_core::tenant::Identity;
use outrigger_proto::admin::admin_workload_rule_service_server::AdminWorkloadRuleServiceServer;
use outrigger_proto::v1::workload_rule_service_server::WorkloadRuleServiceServer;
use outrigger_proto::v1::workload_service_server::WorkloadServiceServer;
use outrigger_runtime::bind::Bind;
use outrigger_runtime::cluster::ClusterArgs;
use outrigger_runtime::lease::{Leadership, LeaseArgs, lead};
use outrigger_runtime::metrics::{LEADER, collect};
use outrigger_runtime::process::ProcessArgs;
use outrigger_runtime::self_signed::{self, Component, Place};
use outrigger_runtime::serve::{Limits, PerIdentity, Server};
use outrigger_runtime::tls::{ServerTls, ServerTlsArgs};
use outrigger_runtime::watch::{follow, watch, watch_config, watch_optional};
use outrigger_runtime::{Process, duration};
use tonic::service::Routes;
use tracing::warn;

use crate::admin::AdminRules;
use crate::companions::templates::Templates;
use crate::grpc::{Access, Rules, Workloads};
use crate::lag::Lag;
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::report::Reporter;
use crate::state::Spaces;
use crate::tenants::claim::{Claims, give_up_unused};
use crate::tenants::registry::Registry;
use crate::watches::{Feeds, Watches};

/// Settings of the manager.
#[derive(Debug, Clone, Args)]
pub struct ManagerArgs {
    /// Where agents connect (gRPC): :PORT, IP:PORT, tcp://IP:PORT or unix:///PATH.
    #[arg(long, env = "OUTRIGGER_BIND_ADDRESS", default_value = "tcp://:9090", value_name = "ADDRESS")]
    pub bind_address: Bind,

    /// Serve gRPC in plain text, and believe whoever connects. Only on loopback addresses and socket files.
    #[arg(long, env = "OUTRIGGER_INSECURE")]
    pub insecure: bool,

    /// Name in client certificates (SPIFFE id or DNS name) that may speak for every tenant. May be given several times,
    /// or separated by commas.
    #[arg(long, env = "OUTRIGGER_ADMIN_IDENTITY", value_delimiter = ',', value_parser = identity, value_name = "NAME")]
    pub admin_identity: Vec<Identity>,

    /// Largest message of a workload stream, in bytes; 32 MiB at most. An agent before 0.2 sends all Pods of its cluster in one
    /// message, about 1 KiB each; later ones send chunks.
    #[arg(
        long,
        env = "OUTRIGGER_MAX_MESSAGE_BYTES",
        default_value_t = grpc::limits::STREAM_MESSAGE.bytes,
        value_parser = grpc::limits::message_bytes,
        value_name = "BYTES"
    )]
    pub max_message_bytes: usize,

    /// Streams that one tenant may have open at once. Only the latest is served; the others are about to end.
    #[arg(long, env = "OUTRIGGER_MAX_STREAMS_PER_TENANT", default_value_t = 4, value_name = "COUNT")]
    pub max_streams_per_tenant: usize,

    /// Messages that one stream may send in a second. Who sends more is slowed down.
    #[arg(long, env = "OUTRIGGER_MAX_MESSAGES_PER_SECOND", default_value_t = 20_000, value_name = "COUNT")]
    pub max_messages_per_second: u32,

    /// Connections at once.
    #[arg(long, env = "OUTRIGGER_MAX_CONNECTIONS", default_value_t = grpc::limits::CONNECTIONS, value_name = "COUNT")]
    pub max_connections: usize,

    /// How old a connection may become before its agent has to connect again, give or take a tenth: 30m, 2h.
    #[arg(long, env = "OUTRIGGER_MAX_CONNECTION_AGE", default_value = "1h", value_parser = duration, value_name = "DURATION")]
    pub max_connection_age: Duration,

    /// Label on DPU Nodes that names the host the DPU sits in.
    #[arg(long, env = "OUTRIGGER_HOST_LABEL", default_value = keys::DPU_HOST, value_name = "KEY")]
    pub host_label: String,

    /// Serve NamespaceOffloadings where the cluster has them: label their namespaces and write their status. To be
    /// turned off where Liqo's own controllers do so.
    #[arg(
        long,
        env = "OUTRIGGER_MANAGE_OFFLOADING",
        default_value_t = true,
        action = clap::ArgAction::Set,
        value_name = "true|false"
    )]
    pub manage_offloading: bool,

    /// Serve Machines where the cluster has them: mark their nodes, hold slots by reservations, and write their status. To be
    /// turned off where Imperator's own controllers do so.
    #[arg(
        long,
        env = "OUTRIGGER_MANAGE_MACHINES",
        default_value_t = true,
        action = clap::ArgAction::Set,
        value_name = "true|false"
    )]
    pub manage_machines: bool,

    /// Namespace of the reservations of Machines. It has to be there, with the roles in it.
    #[arg(long, env = "OUTRIGGER_CORE_NAMESPACE", default_value = keys::CORE_NAMESPACE, value_parser = namespace, value_name = "NAMESPACE")]
    pub core_namespace: String,

    /// Image of reservations: anything that waits, and ends when it is told to. It runs as user 65535 without any rights.
    #[arg(
        long,
        env = "OUTRIGGER_RESERVATION_IMAGE",
        default_value = "registry.k8s.io/pause:3.10",
        value_name = "IMAGE"
    )]
    pub reservation_image: String,

    /// Namespace of AdminWorkloadRules. What is elsewhere is not served.
    #[arg(long, env = "OUTRIGGER_ADMIN_RULES_NAMESPACE", default_value = keys::ADMIN_NAMESPACE, value_parser = namespace, value_name = "NAMESPACE")]
    pub admin_rules_namespace: String,

    /// Namespace of the companions of AdminWorkloadRules, of all tenants.
    #[arg(long, env = "OUTRIGGER_ADMIN_RESOURCES_NAMESPACE", default_value = keys::ADMIN_NAMESPACE, value_parser = namespace, value_name = "NAMESPACE")]
    pub admin_resources_namespace: String,

    /// Namespace of the Lease by which one replica is elected for tenants and DPUs.
    #[arg(
        long,
        env = "OUTRIGGER_LEASE_NAMESPACE",
        default_value = "outrigger-system",
        value_name = "NAMESPACE"
    )]
    pub lease_namespace: String,

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

fn identity(text: &str) -> Result<Identity, IdError> {
    Identity::new(text)
}

/// Checks what can't be said by one setting alone, and loads the certificates.
fn transport(args: &ManagerArgs) -> anyhow::Result<Option<Arc<ServerTls>>> {
    let tls = args.tls.load()?;
    match (&tls, args.insecure) {
        (Some(_), true) => bail!("--insecure is given together with a certificate; remove one of them"),
        (None, false) => {
            bail!(
                "--tls-cert-file and --tls-key-file are needed, or --tls self-signed, or --insecure on loopback or a socket"
            )
        }
        (None, true) if !args.bind_address.is_local() => {
            bail!("--insecure is only allowed on loopback or a socket file, not on {}", args.bind_address)
        }
        (Some(_), false) if args.tls.tls_client_ca_file.is_none() => {
            bail!("--tls-client-ca-file is needed: a tenant is known by its client certificate")
        }
        _ => Ok(tls),
    }
}

/// How the manager keeps a certificate that it signs itself.
const SELF_SIGNED: Component = Component {
    service: keys::MANAGER,
    secret: keys::MANAGER_SELF_SIGNED,
    places: &[Place::ConfigMap { name: keys::CA_CONFIG_MAP }],
};

/// Runs the manager until it is told to end.
///
/// # Errors
/// When settings or files can't be used, an address can't be had, or a task fails.
pub async fn run(args: ManagerArgs) -> anyhow::Result<()> {
    let mut process = Process::new(keys::MANAGER, args.process.clone())?;
    let tls = transport(&args)?;
    let client = args.cluster.client().await?;
    let metrics = Arc::new(Metrics::new(&mut process.registry));
    let me = instance();
    let admin = AdminNamespaces::new(&args.admin_rules_namespace, &args.admin_resources_namespace);
    let spaces = Arc::new(Spaces::new(admin));
    let registry = Arc::new(Registry::new(args.host_label.clone(), args.admin_identity.clone()));
    let watches = Watches {
        admin: Arc::new(AdminRules::new(spaces.clone(), registry.clone())),
        spaces,
        queue: Arc::new(
            Queue::new(Duration::from_millis(100), Duration::from_secs(30))
                .share(companions::MAX_OF_ONE_TENANT),
        ),
        rules: Arc::new(Queue::new(Duration::from_millis(500), Duration::from_secs(30))),
        registry,
        tenants: Arc::new(Queue::new(Duration::from_millis(100), Duration::from_secs(30))),
        unused: Arc::new(Queue::new(Duration::from_millis(500), Duration::from_secs(30))),
        me: me.as_str().into(),
    };
    let parts = Parts {
        templates: Arc::new(watches.templates()),
        feeds: Feeds::new(&watches),
        machines: machines::queue(),
        events: Arc::new(events::Events::new(client.clone(), me.clone())),
        leadership: Leadership::default(),
        lag: Arc::new(Lag::new(metrics.clone())),
        metrics,
        client,
        watches,
    };
    parts.report(&mut process);
    parts.watch(&process);
    let client = parts.client.clone();
    let listener = args.bind_address.listen().context("--bind-address")?;
    parts.control(&process, &args);
    if args.manage_offloading {
        namespaces::start(&process, &parts.client, &parts.leadership);
    }
    if args.manage_machines {
        let settings = machines::Settings {
            core_namespace: args.core_namespace.clone(),
            image: args.reservation_image.clone(),
        };
        machines::start(
            &process,
            &parts.client,
            &parts.leadership,
            &parts.events,
            settings,
            parts.machines.clone(),
        );
    }

    let access = Arc::new(Access {
        registry: parts.watches.registry.clone(),
        readiness: process.readiness.clone(),
        plain: tls.is_none(),
    });
    let intake = Arc::new(grpc::Intake::new(access.clone(), args.max_message_bytes));
    let router = routes(&process, parts, access, &args)?.into_axum_router();
    let router = router.layer(axum::middleware::from_fn_with_state(intake, grpc::Intake::take_in));
    let limits = Limits {
        window: grpc::limits::STREAM_WINDOW,
        connection_window: Some(grpc::limits::CONNECTION_WINDOW),
        max_connections: args.max_connections,
        per_identity: Some(PerIdentity {
            most: grpc::limits::CONNECTIONS_PER_IDENTITY,
            identify: tenants::identity::name,
        }),
        max_age: Some(args.max_connection_age),
        ..Limits::default()
    };
    let mut server = Server::new("grpc", listener).limits(limits);
    if let Some(tls) = tls {
        tls.register(&mut process.registry, &process.readiness);
        process.spawn("certificate files", tls.clone().follow());
        self_signed::start(&process, &client, &args.tls.self_signed, SELF_SIGNED, tls.clone());
        server = server.tls(tls);
    } else {
        warn!("serving in plain text: whoever reaches the address can speak for any tenant and the platform");
    }
    process.serve(server, router);
    process.run().await
}

/// All services of the gRPC port.
fn routes(
    process: &Process,
    parts: Parts,
    access: Arc<Access>,
    args: &ManagerArgs,
) -> anyhow::Result<Routes> {
    let rules = Rules { client: parts.client.clone(), spaces: parts.watches.spaces.clone() };
    let admin_rules = grpc::AdminRules {
        client: parts.client.clone(),
        access: access.clone(),
        namespace: parts.watches.spaces.admin().rules.clone(),
    };
    let workloads = Workloads {
        spaces: parts.watches.spaces,
        claims: Claims::new(parts.client, parts.watches.registry, &parts.watches.me),
        access,
        queue: parts.watches.queue,
        rules: parts.watches.rules,
        metrics: parts.metrics,
        lag: parts.lag,
        unused: parts.watches.unused,
        drain: process.drain.clone(),
        max_streams: args.max_streams_per_tenant.max(1),
        max_rate: args.max_messages_per_second,
    };
    let (reporter, health) = tonic_health::server::health_reporter();
    let (readiness, drain) = (process.readiness.clone(), process.drain.clone());
    process.drained(async move {
        reporter.set_not_serving::<WorkloadServiceServer<Workloads>>().await;
        reporter.set_not_serving::<WorkloadRuleServiceServer<Rules>>().await;
        reporter.set_not_serving::<AdminWorkloadRuleServiceServer<grpc::AdminRules>>().await;
        tokio::select! {
            () = readiness.done() => {
                reporter.set_serving::<WorkloadServiceServer<Workloads>>().await;
                reporter.set_serving::<WorkloadRuleServiceServer<Rules>>().await;
                reporter.set_serving::<AdminWorkloadRuleServiceServer<grpc::AdminRules>>().await;
            }
            () = drain.cancelled() => return,
        }
        drain.cancelled().await;
        reporter.set_not_serving::<WorkloadServiceServer<Workloads>>().await;
        reporter.set_not_serving::<WorkloadRuleServiceServer<Rules>>().await;
        reporter.set_not_serving::<AdminWorkloadRuleServiceServer<grpc::AdminRules>>().await;
    });
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(outrigger_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // Messages of streams don't come by tonic. Those of other calls have been compared with their bounds before it reads them.
    let workloads = WorkloadServiceServer::new(workloads).max_decoding_message_size(0);
    let most = grpc::limits::RULE_MESSAGE.bytes;
    let rules = WorkloadRuleServiceServer::new(rules).max_decoding_message_size(most);
    let admin_rules = AdminWorkloadRuleServiceServer::new(admin_rules).max_decoding_message_size(most);
    Ok(Routes::new(workloads)
        .add_service(rules)
        .add_service(admin_rules)
        .add_service(health.max_decoding_message_size(grpc::limits::SMALL_BYTES))
        .add_service(reflection().build_v1()?.max_decoding_message_size(grpc::limits::SMALL_BYTES))
        .add_service(reflection().build_v1alpha()?.max_decoding_message_size(grpc::limits::SMALL_BYTES)))
}

/// A name that no other replica has, nor this one's earlier life: claims and Leases are held in it.
fn instance() -> String {
    use std::hash::{BuildHasher, Hasher};
    let host = std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty());
    let unique = std::hash::RandomState::new().build_hasher().finish();
    format!("{}-{:08x}", host.as_deref().unwrap_or("manager"), unique & 0xffff_ffff)
}

/// What the parts of a manager share.
struct Parts {
    client: Client,
    templates: Arc<Templates>,
    machines: Arc<Queue<machines::Key>>,
    events: Arc<events::Events>,
    metrics: Arc<Metrics>,
    lag: Arc<Lag>,
    leadership: Leadership,
    watches: Watches,
    feeds: Feeds,
}

impl Parts {
    /// Shows what is in hand.
    fn report(&self, process: &mut Process) {
        let reporter = Reporter {
            spaces: self.watches.spaces.clone(),
            leadership: self.leadership.clone(),
            companions: self.watches.queue.clone(),
            rules: self.watches.rules.clone(),
            tenants: self.watches.tenants.clone(),
            machines: self.machines.clone(),
        };
        collect(&mut process.registry, reporter.clone());
        LEADER.register(&mut process.registry, self.leadership.gauge());
        process.report("manager", move || reporter.state());
    }

    fn watch(&self, process: &Process) {
        let (client, watches, feeds) = (&self.client, &self.watches, &self.feeds);
        let of_tenants = watch_config().labels(keys::TENANT);
        watch(process, client, "namespaces", of_tenants.clone(), watches.namespaces().sink());
        watch(process, client, "tenants", watch_config(), watches.tenants().sink());
        watch(process, client, "nodes", watch_config(), feeds.nodes.sink());
        watch(process, client, "quotas", of_tenants, watches.quotas().sink());
        watch(process, client, "workload rules", watch_config(), feeds.rules.sink());
        // RBAC grants access to the namespace of admin rules only.
        let rules = Api::namespaced(client.clone(), &self.watches.spaces.admin().rules);
        let ready = process.readiness.wait_for("admin rules");
        let following = follow(rules, watch_config(), "admin rules", ready, feeds.admin_rules.sink());
        process.spawn("admin rules", following);
        let made = watch_config().labels(keys::RULE);
        watch(process, client, "companions", made.clone(), feeds.companions.pods.sink());
        // A cluster may have Dynamic Resource Allocation turned off.
        watch_optional(process, client, "claims", made.clone(), feeds.companions.claims.sink());
        watch_optional(process, client, "claim templates", made, self.templates.sink());
    }

    /// Starts the controllers. Companions that exist must be known before any is made, rules before a sync is believed,
    /// and all tenants before a DPU is given to one.
    fn control(&self, process: &Process, args: &ManagerArgs) {
        fn listed(
            process: &Process,
            what: &'static str,
            controller: impl Future<Output = ()> + Send + 'static,
        ) {
            let lists = process.readiness.clone();
            process.spawn(what, async move {
                lists.done().await;
                controller.await;
            });
        }
        let companions = companions::Controller {
            client: self.client.clone(),
            spaces: self.watches.spaces.clone(),
            queue: self.watches.queue.clone(),
            rules: self.watches.rules.clone(),
            events: self.events.clone(),
            metrics: self.metrics.clone(),
            lag: self.lag.clone(),
            registry: self.watches.registry.clone(),
            leadership: self.leadership.clone(),
            templates: self.templates.clone(),
            feeds: self.feeds.companions.clone(),
            gone: Arc::default(),
        };
        let statuses = rules::Controller {
            client: self.client.clone(),
            spaces: self.watches.spaces.clone(),
            queue: self.watches.rules.clone(),
            companions: self.watches.queue.clone(),
            events: self.events.clone(),
            registry: self.watches.registry.clone(),
            leadership: self.leadership.clone(),
            admin: self.watches.admin.clone(),
            templates: self.templates.clone(),
            answers: self.feeds.rules.clone(),
            admin_answers: self.feeds.admin_rules.clone(),
        };
        let tenants = tenants::controller::Controller {
            client: self.client.clone(),
            registry: self.watches.registry.clone(),
            spaces: self.watches.spaces.clone(),
            queue: self.watches.tenants.clone(),
            rules: self.watches.rules.clone(),
            leadership: self.leadership.clone(),
            events: self.events.clone(),
            admin: self.watches.admin.clone(),
            answers: self.feeds.nodes.clone(),
            nodes: Arc::default(),
            myself: Arc::default(),
        };
        listed(process, "companions", companions.run());
        listed(process, "rule status", statuses.run());
        listed(process, "tenants", tenants.run());
        let claims = Claims::new(self.client.clone(), self.watches.registry.clone(), &self.watches.me);
        process.spawn(
            "unused claims",
            give_up_unused(claims, self.watches.spaces.clone(), self.watches.unused.clone()),
        );
        let lease = LeaseArgs {
            namespace: args.lease_namespace.clone(),
            name: keys::MANAGER.to_owned(),
            identity: self.watches.me.to_string(),
            field_manager: keys::MANAGER.to_owned(),
        };
        let (client, leadership) = (self.client.clone(), self.leadership.clone());
        // The Lease is given back at once, while the streams go on until agents have been told to go: another replica leads
        // by then.
        let environment = process.environment.clone();
        process.drained(lead(client, lease, leadership, environment, process.ending.clone()));
    }
}
