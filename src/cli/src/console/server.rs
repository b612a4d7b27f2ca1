//! `outrigger console-server`: the console in the infrastructure cluster.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use kube::Config;
use kube::config::{AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, NamedCluster, NamedContext};
use outrigger_runtime::Process;
use outrigger_runtime::bind::Bind;
use outrigger_runtime::calls;
use outrigger_runtime::process::ProcessArgs;
use outrigger_runtime::serve::{Limits, Server};
use outrigger_runtime::tls::ServerTls;
use outrigger_webhook::settings::AdmissionArgs;
use tokio::sync::Semaphore;

use super::door::Door;
use super::managers::{Asker, ManagersArgs, Token};
use super::metrics::Metrics;
use super::sessions::{NoSession, Open, Reader, SESSIONS, Sessions};
use super::store::{Source, Store};
use super::turns::Turns;
use super::web;
use crate::explain::live::Clients;
use crate::explain::view::ViewArgs;
use crate::sent::AnnotationArgs;

/// The name of the process in traces.
const NAME: &str = "outrigger-console";

/// Most connections: of each session some visible pages, each with its stream of events, and requests beside them.
const CONNECTIONS: usize = 8 * SESSIONS;

/// Most connections of one address. Behind a proxy all users have the same.
const CONNECTIONS_OF_ADDRESS: usize = CONNECTIONS / 2;

/// Reads and answers at the same time, of all users.
pub(super) const TURNS: usize = 4;

/// How often sessions are ended that have lasted too long, or keep too much.
const SWEEP: Duration = Duration::from_secs(10);

/// Settings of the console in the cluster.
#[derive(Debug, Args)]
pub(crate) struct ConsoleServerArgs {
    /// Address of the HTTPS port for browsers: :PORT or IP:PORT.
    #[arg(long, env = "OUTRIGGER_BIND_ADDRESS", default_value = "tcp://:9443", value_name = "ADDRESS")]
    bind_address: Bind,

    /// Seconds between two reads of the installation, and between two checks of a user's rights, while a page is open.
    #[arg(
        long,
        env = "OUTRIGGER_INTERVAL",
        value_name = "SECONDS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    interval: u64,

    /// Namespace of the parts. Without it: the namespace in which one of them is found, else outrigger-system.
    #[arg(long, env = "OUTRIGGER_SYSTEM_NAMESPACE", value_name = "NAMESPACE")]
    system_namespace: Option<String>,

    /// Address of the cluster's API server, https://HOST:PORT. Each user reads with the token of its login.
    #[arg(long, env = "OUTRIGGER_API_SERVER", value_name = "URL", required_unless_present = "kubeconfig")]
    api_server: Option<String>,

    /// CA certificates, PEM, that verify the API server's certificate.
    #[arg(long, env = "OUTRIGGER_API_SERVER_CA_FILE", value_name = "FILE", requires = "api_server")]
    api_server_ca_file: Option<PathBuf>,

    /// Kubeconfig with the address and the CA of the cluster, instead of these two. Credentials in it are not used.
    #[arg(long, env = "OUTRIGGER_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    managers: ManagersArgs,

    #[command(flatten)]
    admission: AdmissionArgs,

    /// Certificate chain of the server, PEM, its own certificate first. Reloaded when it changes.
    #[arg(long, env = "OUTRIGGER_TLS_CERT_FILE", value_name = "FILE")]
    tls_cert_file: PathBuf,

    /// Private key of that certificate, PEM.
    #[arg(long, env = "OUTRIGGER_TLS_KEY_FILE", value_name = "FILE")]
    tls_key_file: PathBuf,

    #[command(flatten)]
    process: ProcessArgs,
}

fn limits() -> Limits {
    Limits {
        max_connections: CONNECTIONS,
        per_address: Some(CONNECTIONS_OF_ADDRESS),
        request: web::STREAM,
        idle: Duration::from_secs(60),
        streams: false,
        max_streams: 32,
        window: 64 << 10,
        ..Limits::default()
    }
}

impl ConsoleServerArgs {
    /// A kubeconfig of the API server whose address and CA are given.
    fn kubeconfig_of_address(&self) -> Kubeconfig {
        let name = "cluster".to_owned();
        let cluster = Cluster {
            server: self.api_server.clone(),
            certificate_authority: self.api_server_ca_file.as_ref().map(|file| file.display().to_string()),
            ..Cluster::default()
        };
        let context = Context { cluster: name.clone(), ..Context::default() };
        Kubeconfig {
            clusters: vec![NamedCluster {
                name: name.clone(),
                cluster: Some(cluster),
                ..NamedCluster::default()
            }],
            contexts: vec![NamedContext {
                name: name.clone(),
                context: Some(context),
                ..NamedContext::default()
            }],
            current_context: Some(name),
            ..Kubeconfig::default()
        }
    }

    /// The cluster, without credentials.
    async fn cluster(&self) -> anyhow::Result<Config> {
        let kubeconfig = match &self.kubeconfig {
            Some(file) => Kubeconfig::read_from(file)
                .with_context(|| format!("--kubeconfig {} can't be used", file.display()))?,
            None => self.kubeconfig_of_address(),
        };
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let mut config = config.context("--api-server, --api-server-ca-file, --kubeconfig")?;
        config.auth_info = AuthInfo::default();
        config.accept_invalid_certs = false;
        if config.cluster_url.scheme_str() != Some("https") {
            bail!(
                "the API server is {}; use an address with https://, since users' tokens are sent there",
                config.cluster_url
            );
        }
        Ok(config)
    }

    /// Serves until the process is asked to shut down.
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let mut process = Process::new(NAME, self.process.clone())?;
        let tls = Arc::new(ServerTls::load(self.tls_cert_file.clone(), self.tls_key_file.clone(), None)?);
        let cluster = self.cluster().await?;
        let listener = self.bind_address.listen().context("--bind-address")?;
        let metrics = Arc::<Metrics>::default();
        metrics.register(&mut process.registry);
        let managers = self.managers.managers(metrics.clone())?;
        let (admission, system_namespace) = (self.admission, self.system_namespace);
        let interval = Duration::from_secs(self.interval);
        let turns = Arc::new(Semaphore::new(TURNS));
        let open: Open = Box::new(move |token, namespace| {
            let mut config = cluster.clone();
            config.auth_info.token = Some(token.to_owned().into());
            let client = calls::client(config).map_err(|error| NoSession::Failed(error.to_string()))?;
            let asker = managers.clone().zip(Token::given(token)).map(|(all, token)| Asker::new(all, token));
            let store = Store::new(Source {
                clients: Clients::of(client.clone()),
                view: ViewArgs::default(),
                // Of the Pods of tenants' clusters it sees none.
                annotations: AnnotationArgs::default(),
                admission: admission.clone(),
                system_namespace: system_namespace.clone(),
                interval,
                namespace,
                asker,
                turns: Turns::of(turns.clone()),
            });
            Ok(Reader { client, store })
        });
        let door = Arc::new(Door::Users(Box::new(Sessions::new(
            process.environment.clock,
            open,
            metrics.sessions.clone(),
        ))));
        tls.register(&mut process.registry, &process.readiness);
        process.spawn("certificate files", tls.clone().follow());
        let swept = door.clone();
        process.spawn("sessions", async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                swept.sweep();
            }
        });
        process.serve(Server::new("console", listener).limits(limits()).tls(tls), web::router(door, metrics));
        process.run().await
    }
}
