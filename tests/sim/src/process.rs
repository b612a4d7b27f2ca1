//! The processes of a simulation: managers, webhooks and agents, as the commands run them, without sockets and files.

use std::sync::{Arc, LazyLock};
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
use outrigger_runtime::environment::{Environment, Random};
use outrigger_runtime::process::ProcessArgs;
use outrigger_runtime::serve::Peer;
use outrigger_webhook::server::Writers;
use parking_lot::Mutex;
use tokio::io::DuplexStream;
use tower::service_fn;

use crate::network::Network;
use crate::older;

/// The user that a part of Outrigger is in its cluster.
pub fn user(part: &str) -> String {
    format!("system:serviceaccount:{}:{part}", keys::SYSTEM_NAMESPACE)
}

/// A running process. Its tasks end with it.
pub struct Running {
    /// Its name on the network.
    pub name: String,
    /// What it serves.
    pub router: Option<Router>,
    process: Process,
}

impl Running {
    fn new(name: &str, process: Process, router: Option<Router>) -> Self {
        Self { name: name.to_owned(), router, process }
    }

    /// Begins to shut down, as after SIGTERM: it is unready, and gives up its Lease.
    pub fn terminate(&self) {
        self.process.readiness.end();
        self.process.ending.cancel();
    }

    /// Ends all its tasks. Whatever they write then has to be stopped by the network.
    pub fn end(&self) {
        self.terminate();
        self.process.drain.cancel();
        self.process.force.cancel();
    }
}

fn parse<A: Args + FromArgMatches>(arguments: &[&str]) -> A {
    let matches = A::augment_args(Command::new("sim").no_binary_name(true)).get_matches_from(arguments);
    A::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// The arguments of every process, and those of managers. Parsing them is much of a start.
static ANY: LazyLock<ProcessArgs> = LazyLock::new(|| parse(&[]));
static MANAGER: LazyLock<ManagerArgs> = LazyLock::new(|| parse(&["--insecure", "--reservation-image=pause"]));

/// Starts a manager. `is_older`: it knows only the protocol of the release before.
pub fn manager(
    name: &str,
    environment: Environment,
    client: Client,
    is_older: bool,
) -> anyhow::Result<Running> {
    let mut process = Process::simulated(ANY.clone(), environment);
    let router = outrigger_manager::assemble(&mut process, MANAGER.clone(), client)?;
    let router = router.layer(axum::Extension(Peer::default()));
    let router = if is_older { older::between(router) } else { router };
    Ok(Running::new(name, process, Some(router)))
}

/// Starts a webhook.
pub fn webhook(name: &str, environment: Environment, client: Client) -> Running {
    let mut process = Process::simulated(ANY.clone(), environment);
    let router = outrigger_webhook::assemble(&mut process, Settings::default(), client, Writers::Anybody);
    Running::new(name, process, Some(router))
}

/// The replicas of a server that run, as a Service has them.
pub type Replicas = Arc<Mutex<Vec<Arc<Running>>>>;

/// One of the replicas that have listed what they watch, by chance.
pub fn ready(replicas: &Replicas, random: &Random) -> Option<Arc<Running>> {
    let ready: Vec<_> =
        replicas.lock().iter().filter(|replica| replica.process.readiness.is_ready()).cloned().collect();
    pick(random, &ready).cloned()
}

/// One of several, by chance.
pub fn pick<'a, T>(random: &Random, all: &'a [T]) -> Option<&'a T> {
    all.get(usize::try_from(random.seed() % all.len().max(1) as u64).unwrap_or_default())
}

/// Settings of an agent that enforces orderings.
const ORDERINGS: [&str; 3] =
    ["--gate-address=127.0.0.1:1", "--host-address=127.0.0.1:1", "--companions-first"];

impl Running {
    /// Whether it has listed what it watches.
    pub fn is_ready(&self) -> bool {
        self.process.readiness.is_ready()
    }
}

/// What an agent is started with.
pub struct Surroundings<'a> {
    /// The network.
    pub network: &'a Network,
    /// The managers that it may connect to.
    pub managers: &'a Replicas,
    /// It enforces orderings.
    pub orders: bool,
    /// It knows only the protocol of the release before.
    pub is_older: bool,
}

/// Starts an agent.
pub fn agent(
    name: &str,
    tenant: &str,
    environment: Environment,
    client: Client,
    Surroundings { network, managers, orders, is_older }: Surroundings<'_>,
) -> anyhow::Result<Running> {
    let random = environment.random.clone();
    let mut process = Process::simulated(ANY.clone(), environment);
    let mut arguments =
        vec!["--manager-address=http://127.0.0.1:1", "--insecure", "--namespace=*", "--tenant-id", tenant];
    if orders {
        arguments.extend(ORDERINGS);
    }
    let (network, managers, name) = (network.clone(), managers.clone(), name.to_owned());
    let from = name.clone();
    let connector = Connector::new(move || {
        let (network, managers, from, random) =
            (network.clone(), managers.clone(), from.clone(), random.clone());
        let dial = move |_| {
            let chosen = ready(&managers, &random);
            let (network, from) = (network.clone(), from.clone());
            async move {
                let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
                let manager = chosen.ok_or_else(refused)?;
                let way = network.way(&from, &manager.name);
                if !way.pass().await {
                    return Err(refused());
                }
                let (client, server) = way.connection();
                accept(&manager, server, is_older);
                Ok(TokioIo::new(client))
            }
        };
        async move { Ok(endpoint().connect_with_connector(service_fn(dial)).await?) }.boxed()
    });
    let ports = outrigger_agent::assemble(&mut process, parse::<AgentArgs>(&arguments), client, connector)?;
    Ok(Running::new(&name, process, Some(ports.router())))
}

/// Time between two pings of a connection, and for the answer.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Serves a connection until it or the manager ends. `is_older`: its client knows only the protocol of the release before.
fn accept(manager: &Running, stream: DuplexStream, is_older: bool) {
    let Some(router) = manager.router.clone() else { return };
    let router = if is_older { older::between(router) } else { router };
    let force = manager.process.force.clone();
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
