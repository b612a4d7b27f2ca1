//! The processes of a simulation: managers, webhooks and agents, as the commands run them, without sockets and files.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use clap::{Args, Command, FromArgMatches};
use futures::FutureExt;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use kube::Client;
use outrigger_admission::Settings;
use outrigger_agent::AgentArgs;
use outrigger_agent::connect::{Connector, endpoint};
use outrigger_core::keys;
use outrigger_manager::ManagerArgs;
use outrigger_runtime::Process;
use outrigger_runtime::environment::Environment;
use outrigger_runtime::process::ProcessArgs;
use outrigger_runtime::ready::Readiness;
use outrigger_runtime::serve::Peer;
use outrigger_webhook::server::Writers;
use parking_lot::Mutex;
use tokio::io::DuplexStream;
use tokio_util::sync::CancellationToken;
use tower::service_fn;

use crate::network::Network;

/// The user of the managers.
pub const MANAGER: &str = "system:serviceaccount:outrigger-system:outrigger-manager";

/// A running process.
pub struct Running {
    /// Its name on the network.
    pub name: String,
    /// What it serves; nothing for an agent.
    pub router: Option<Router>,
    /// Whether it has listed what it watches.
    pub readiness: Readiness,
    ending: CancellationToken,
    drain: CancellationToken,
    force: CancellationToken,
    // Its tasks and servers belong to it.
    _process: Process,
}

impl Running {
    fn new(name: &str, process: Process, router: Option<Router>) -> Self {
        Self {
            name: name.to_owned(),
            router,
            readiness: process.readiness.clone(),
            ending: process.ending.clone(),
            drain: process.drain.clone(),
            force: process.force.clone(),
            _process: process,
        }
    }

    /// Begins to shut down, as after SIGTERM: it is unready, and gives up its Lease.
    pub fn terminate(&self) {
        self.readiness.end();
        self.ending.cancel();
    }

    /// Ends all its tasks. Whatever they write then has to be stopped by the network.
    pub fn end(&self) {
        self.terminate();
        self.drain.cancel();
        self.force.cancel();
    }
}

fn parse<A: Args + FromArgMatches>(arguments: &[&str]) -> A {
    let matches = A::augment_args(Command::new("sim").no_binary_name(true)).get_matches_from(arguments);
    A::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// Starts a manager. It accepts connections of `managers`.
pub fn manager(name: &str, environment: Environment, client: Client) -> anyhow::Result<Running> {
    let mut process = Process::simulated(parse::<ProcessArgs>(&[]), environment);
    let router = outrigger_manager::assemble(&mut process, parse::<ManagerArgs>(&["--insecure"]), client)?;
    let router = router.layer(axum::Extension(Peer::default()));
    Ok(Running::new(name, process, Some(router)))
}

/// Starts a webhook.
pub fn webhook(name: &str, environment: Environment, client: Client) -> Running {
    let mut process = Process::simulated(parse::<ProcessArgs>(&[]), environment);
    let router = outrigger_webhook::assemble(&mut process, Settings::default(), client, Writers::Anybody);
    Running::new(name, process, Some(router))
}

/// The managers that agents can connect to, as a Service has them.
pub type Managers = Arc<Mutex<Vec<Arc<Running>>>>;

/// Starts an agent.
pub fn agent(
    name: &str,
    tenant: &str,
    environment: Environment,
    client: Client,
    (network, managers): (&Network, &Managers),
) -> anyhow::Result<Running> {
    let random = environment.random.clone();
    let mut process = Process::simulated(parse::<ProcessArgs>(&[]), environment);
    let arguments =
        ["--manager-address=http://127.0.0.1:1", "--insecure", "--namespace=*", "--tenant-id", tenant];
    let (network, managers, name) = (network.clone(), managers.clone(), name.to_owned());
    let from = name.clone();
    let connector = Connector::new(move || {
        let (network, managers, from, random) =
            (network.clone(), managers.clone(), from.clone(), random.clone());
        let dial = move |_| {
            let chosen = {
                let managers = managers.lock();
                let ready: Vec<_> = managers.iter().filter(|manager| manager.readiness.is_ready()).collect();
                let at = usize::try_from(random.seed() % ready.len().max(1) as u64).unwrap_or_default();
                ready.get(at).map(|manager| Arc::clone(manager))
            };
            let (network, from) = (network.clone(), from.clone());
            async move {
                let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
                let manager = chosen.ok_or_else(refused)?;
                let way = network.way(&from, &manager.name);
                if !way.pass().await {
                    return Err(refused());
                }
                let (client, server) = way.connection();
                accept(&manager, server);
                Ok(TokioIo::new(client))
            }
        };
        async move { Ok(endpoint().connect_with_connector(service_fn(dial)).await?) }.boxed()
    });
    outrigger_agent::assemble(&mut process, parse::<AgentArgs>(&arguments), client, connector)?;
    Ok(Running::new(&name, process, None))
}

/// Time between two pings of a connection, and for the answer.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Serves a connection until it or the manager ends.
fn accept(manager: &Running, stream: DuplexStream) {
    let Some(router) = manager.router.clone() else { return };
    let force = manager.force.clone();
    tokio::spawn(async move {
        let service = TowerToHyperService::new(router);
        let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        // As the server of the commands: a peer that has vanished is noticed within 20 s.
        let builder =
            builder.timer(TokioTimer::new()).keep_alive_interval(KEEP_ALIVE).keep_alive_timeout(KEEP_ALIVE);
        tokio::select! {
            biased;
            () = force.cancelled() => {}
            _ = builder.serve_connection(TokioIo::new(stream), service) => {}
        }
    });
}

/// The user of a tenant's agent in its own cluster.
pub fn agent_user() -> String {
    format!("system:serviceaccount:{}:{}", keys::SYSTEM_NAMESPACE, keys::AGENT)
}
