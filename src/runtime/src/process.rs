//! The life cycle of a server process: settings, telemetry, readiness, and shutdown. After a signal the process is unready. After
//! a delay, in which routers notice that, it drains. Requests that haven't finished at the deadline are closed forcibly.

use std::future::Future;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use crate::admin;
use crate::bind::Bind;
use crate::debug::{Debug, Report};
use crate::duration;
use crate::environment::Environment;
use crate::metrics;
use crate::ready::Readiness;
use crate::serve::{Limits, Server};
use crate::telemetry::{self, LogArgs, Telemetry, TraceArgs};

/// Settings of every server.
#[derive(Debug, Clone, Args)]
pub struct ProcessArgs {
    /// Address of /livez, /readyz and /metrics, served in plain HTTP: :PORT, IP:PORT or unix:///PATH.
    #[arg(long, env = "OUTRIGGER_ADMIN_ADDRESS", default_value = ":8080", value_name = "ADDRESS")]
    pub admin_address: Bind,

    /// How long to serve after SIGTERM while /readyz fails, so that routers stop sending requests: 5s, 500ms. A second
    /// signal ends the process at once.
    #[arg(long, env = "OUTRIGGER_SHUTDOWN_DELAY", default_value = "3s", value_parser = duration, value_name = "DURATION")]
    pub shutdown_delay: Duration,

    /// How long open requests can take to finish after that: 20s, 1m. Then they are closed forcibly. The sum with the delay
    /// should be less than the Pod's terminationGracePeriodSeconds.
    #[arg(long, env = "OUTRIGGER_DRAIN_TIMEOUT", default_value = "20s", value_parser = duration, value_name = "DURATION")]
    pub drain_timeout: Duration,

    /// Serve /debug on the admin address, for loopback and Unix sockets only: the state of the process, and its log level,
    /// which can be changed there.
    #[arg(long, env = "OUTRIGGER_DEBUG_ENDPOINTS")]
    pub debug_endpoints: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub log: LogArgs,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub trace: TraceArgs,
}

/// A server process.
pub struct Process {
    /// Tasks that have to be done before the process is ready.
    pub readiness: Readiness,
    /// Time and randomness of this process.
    pub environment: Environment,
    /// Metrics of this process.
    pub registry: Registry,
    /// Cancelled as soon as the process is shutting down, while it still serves.
    pub ending: CancellationToken,
    /// Cancelled when servers have to finish open requests and accept no more.
    pub drain: CancellationToken,
    /// Cancelled when servers have to close all connections.
    pub force: CancellationToken,
    args: ProcessArgs,
    servers: TaskTracker,
    /// Cancelled when a task has ended unexpectedly.
    failed: CancellationToken,
    telemetry: Option<Telemetry>,
    reports: Vec<(&'static str, Report)>,
}

impl Process {
    /// Creates a process that isn't serving yet, and initializes logging and tracing. The name is its service name in traces.
    ///
    /// # Errors
    /// If logging or tracing can't be initialized.
    pub fn new(name: &'static str, args: ProcessArgs) -> anyhow::Result<Self> {
        let telemetry = telemetry::init(name, &args.log, &args.trace)?;
        let mut this = Self::silent(args);
        metrics::collect(&mut this.registry, telemetry.output.lost());
        this.telemetry = Some(telemetry);
        Ok(this)
    }

    /// A process without logging, admin port and signals, with this time and randomness. A simulation of several processes on one
    /// thread cancels their tokens itself.
    pub fn simulated(args: ProcessArgs, environment: Environment) -> Self {
        Self { environment, ..Self::silent(args) }
    }

    /// As [`Self::new`], without logging.
    fn silent(args: ProcessArgs) -> Self {
        Self {
            readiness: Readiness::default(),
            environment: Environment::system(),
            registry: admin::registry(),
            ending: CancellationToken::new(),
            drain: CancellationToken::new(),
            force: CancellationToken::new(),
            args,
            servers: TaskTracker::new(),
            failed: CancellationToken::new(),
            telemetry: None,
            reports: Vec::new(),
        }
    }

    /// Adds a part of the process to `/debug/state`.
    pub fn report(
        &mut self,
        name: &'static str,
        report: impl Fn() -> serde_json::Value + Send + Sync + 'static,
    ) {
        self.reports.push((name, Box::new(report)));
    }

    /// Runs a task for as long as the process serves. If the task ends earlier, also by a panic, the process fails.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let drain = self.drain.clone();
        let failure = Failure { name, failed: Some(self.failed.clone()) };
        tokio::spawn(async move {
            let mut failure = failure;
            tokio::select! {
                biased;
                () = drain.cancelled() => failure.failed = None,
                () = task => {}
            }
        });
    }

    /// Runs a server until it has drained.
    pub fn serve(&self, server: Server, router: axum::Router) {
        let (drain, force) = (self.drain.clone(), self.force.clone());
        self.servers.spawn(server.leaving(self.ending.clone()).run(router, drain, force));
    }

    /// Runs a task that ends by itself when [`Self::drain`] is cancelled. The process waits for it.
    pub fn drained(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.servers.spawn(task);
    }

    /// Serves the admin port until a signal is received or a task fails, and shuts down. A second signal closes everything at
    /// once.
    ///
    /// # Errors
    /// If the admin port can't be opened, or a task has failed.
    pub async fn run(self) -> anyhow::Result<()> {
        let mut terminate = signal(SignalKind::terminate()).context("SIGTERM handler can't be installed")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT handler can't be installed")?;
        // Room for the second signal. Further signals have no other meaning.
        let (send, signals) = mpsc::channel(1);
        let listening = tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                let _ = send.try_send(());
            }
        });
        let result = self.run_until(signals).await;
        listening.abort();
        result
    }

    /// As [`Self::run`]; each message is a signal.
    async fn run_until(self, mut signals: mpsc::Receiver<()>) -> anyhow::Result<()> {
        // The thread that writes the log ends when this function returns.
        let (level, traces, _output) = match self.telemetry {
            Some(Telemetry { level, traces, output }) => (Some(level), Some(traces), Some(output)),
            None => (None, None, None),
        };
        let debug = Debug { parts: self.reports, level };
        let debug = self.args.debug_endpoints.then_some(debug);
        let router = admin::router(self.readiness.clone(), self.registry, debug);
        // The admin port serves until the process ends: probes show that it is shutting down.
        let admin = AdminPort::open(&self.args.admin_address, router)?;

        let failed = tokio::select! {
            Some(()) = signals.recv() => false,
            () = self.failed.cancelled() => true,
        };
        self.readiness.end();
        self.ending.cancel();
        let mut forced = false;
        if !failed {
            let delay = humantime::format_duration(self.args.shutdown_delay);
            info!(%delay, "shutting down: readiness withdrawn");
            tokio::select! {
                () = tokio::time::sleep(self.args.shutdown_delay) => {}
                Some(()) = signals.recv() => forced = true,
            }
        }
        self.drain.cancel();
        let deadline = self.environment.clock.now() + self.args.drain_timeout;
        self.servers.close();
        if !forced {
            tokio::select! {
                () = self.servers.wait() => info!("drained"),
                () = tokio::time::sleep_until(deadline) => {
                    let timeout = humantime::format_duration(self.args.drain_timeout);
                    warn!(%timeout, "drain timeout exceeded: open requests are closed forcibly");
                }
                Some(()) = signals.recv() => forced = true,
            }
        }
        if forced {
            warn!("second signal received: open requests are closed forcibly");
        }
        self.force.cancel();
        // Connections are closed when their tasks run next.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.servers.wait()).await;
        if let Some(traces) = traces.flatten().filter(|_| !forced) {
            traces.flush(deadline.saturating_duration_since(self.environment.clock.now())).await;
        }
        admin.close().await;
        if failed { Err(anyhow::anyhow!("a task has failed; see the log")) } else { Ok(()) }
    }
}

/// Limits of the admin port. Probes are sequential and short.
fn admin_limits() -> Limits {
    Limits {
        max_connections: 64,
        per_address: Some(32),
        headers: Duration::from_secs(2),
        request: Duration::from_secs(5),
        streams: false,
        max_streams: 8,
        window: 64 << 10,
        ..Limits::default()
    }
}

/// The admin port, served by its own thread, so that probes are answered also when all worker threads are busy.
struct AdminPort {
    end: CancellationToken,
    ended: oneshot::Receiver<()>,
}

impl AdminPort {
    fn open(address: &Bind, router: axum::Router) -> anyhow::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("admin port")?;
        let listener = {
            let _within = runtime.enter();
            address.listen().context("--admin-address")?
        };
        let end = CancellationToken::new();
        let server =
            Server::new("admin", listener).limits(admin_limits()).run(router, end.clone(), end.clone());
        let (done, ended) = oneshot::channel();
        // In tests each thread has its own log subscriber, so it is passed on.
        let log = tracing::dispatcher::get_default(Clone::clone);
        let serve = move || {
            let _log = tracing::dispatcher::set_default(&log);
            runtime.block_on(server);
            let _ = done.send(());
        };
        std::thread::Builder::new().name("admin".to_owned()).spawn(serve).context("admin port")?;
        Ok(Self { end, ended })
    }

    async fn close(mut self) {
        self.end.cancel();
        let _ = (&mut self.ended).await;
    }
}

impl Drop for AdminPort {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

/// Reports to the process that a task has ended, unless the process is draining.
struct Failure {
    name: &'static str,
    failed: Option<CancellationToken>,
}

impl Drop for Failure {
    fn drop(&mut self) {
        if let Some(failed) = &self.failed {
            error!(task = self.name, "task ended unexpectedly");
            failed.cancel();
        }
    }
}

#[cfg(test)]
mod tests;
