//! The life of a server process: settings, telemetry, readiness, and an end in four phases. A signal makes it unready;
//! a moment later, when those who route to it have seen that, it drains; what hasn't finished at the deadline is cut off.

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
    /// Where /livez, /readyz and /metrics are served in plain HTTP: :PORT, IP:PORT or unix:///PATH.
    #[arg(long, env = "OUTRIGGER_ADMIN_ADDRESS", default_value = ":8080", value_name = "ADDRESS")]
    pub admin_address: Bind,

    /// How long to go on serving after SIGTERM while /readyz says no, so that routers stop sending: 5s, 500ms.
    /// A second signal ends the process at once.
    #[arg(long, env = "OUTRIGGER_SHUTDOWN_DELAY", default_value = "3s", value_parser = duration, value_name = "DURATION")]
    pub shutdown_delay: Duration,

    /// How long requests under way may take to finish after that: 20s, 1m. Then they are cut off. Together with the
    /// delay it should stay below the Pod's terminationGracePeriodSeconds.
    #[arg(long, env = "OUTRIGGER_DRAIN_TIMEOUT", default_value = "20s", value_parser = duration, value_name = "DURATION")]
    pub drain_timeout: Duration,

    /// Serve /debug on the admin address, to loopback and socket files only: what the process has in hand, and the level
    /// of its log, which can be changed there.
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
    /// What has to be done before traffic may come.
    pub readiness: Readiness,
    /// Time and randomness of this process.
    pub environment: Environment,
    /// Metrics of this process.
    pub registry: Registry,
    /// Cancelled as soon as the process is told to end, while it goes on serving: for what others are waiting for.
    pub ending: CancellationToken,
    /// Cancelled when servers should finish what is under way and take no more.
    pub drain: CancellationToken,
    /// Cancelled when they should drop what is left.
    pub force: CancellationToken,
    args: ProcessArgs,
    servers: TaskTracker,
    /// Cancelled when a task has ended that should not have.
    failed: CancellationToken,
    telemetry: Option<Telemetry>,
    reports: Vec<(&'static str, Report)>,
}

impl Process {
    /// A process that isn't serving yet; traces know it by this name. Logging begins here.
    ///
    /// # Errors
    /// When logging or tracing can't begin.
    pub fn new(name: &'static str, args: ProcessArgs) -> anyhow::Result<Self> {
        let telemetry = telemetry::init(name, &args.log, &args.trace)?;
        let mut this = Self::silent(args);
        metrics::collect(&mut this.registry, telemetry.output.lost());
        this.telemetry = Some(telemetry);
        Ok(this)
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

    /// Has `/debug/state` show this part of the process, where it is served.
    pub fn report(
        &mut self,
        name: &'static str,
        report: impl Fn() -> serde_json::Value + Send + Sync + 'static,
    ) {
        self.reports.push((name, Box::new(report)));
    }

    /// Runs a task for as long as the process serves. Its end before that, also by a panic, is a failure of the
    /// process.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let drain = self.drain.clone();
        let failure = Failure { name, failed: Some(self.failed.clone()) };
        tokio::spawn(async move {
            let mut failure = failure;
            tokio::select! {
                () = task => {}
                () = drain.cancelled() => failure.failed = None,
            }
        });
    }

    /// Runs a server until it has drained.
    pub fn serve(&self, server: Server, router: axum::Router) {
        let (drain, force) = (self.drain.clone(), self.force.clone());
        self.servers.spawn(server.leaving(self.ending.clone()).run(router, drain, force));
    }

    /// Runs a task that sees to its own end when [`Self::drain`] is cancelled; the process waits for it.
    pub fn drained(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.servers.spawn(task);
    }

    /// Serves the admin port and waits for the end: a signal, or a task's failure. A second signal cuts everything off
    /// at once.
    ///
    /// # Errors
    /// When the admin port can't be had, or a task has failed.
    pub async fn run(self) -> anyhow::Result<()> {
        let mut terminate = signal(SignalKind::terminate()).context("SIGTERM can't be awaited")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT can't be awaited")?;
        // One signal waits while the first is acted upon: it is the second, and all that follow mean the same.
        let (tell, told) = mpsc::channel(1);
        let listening = tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                let _ = tell.try_send(());
            }
        });
        let result = self.run_until(told).await;
        listening.abort();
        result
    }

    /// As [`Self::run`]; each message is a signal.
    async fn run_until(self, mut told: mpsc::Receiver<()>) -> anyhow::Result<()> {
        // The log is written until the very end: its thread ends when this function returns.
        let (level, traces, _output) = match self.telemetry {
            Some(Telemetry { level, traces, output }) => (Some(level), Some(traces), Some(output)),
            None => (None, None, None),
        };
        let debug = Debug { parts: self.reports, level };
        let debug = self.args.debug_endpoints.then_some(debug);
        let router = admin::router(self.readiness.clone(), self.registry, debug);
        // The admin port answers to the very end: it is how others see that we are ending.
        let admin = AdminPort::open(&self.args.admin_address, router)?;

        let failed = tokio::select! {
            Some(()) = told.recv() => false,
            () = self.failed.cancelled() => true,
        };
        self.readiness.end();
        self.ending.cancel();
        let mut cut = false;
        if !failed {
            info!(delay = ?self.args.shutdown_delay, "told to end; not ready any more");
            tokio::select! {
                () = tokio::time::sleep(self.args.shutdown_delay) => {}
                Some(()) = told.recv() => cut = true,
            }
        }
        self.drain.cancel();
        let deadline = self.environment.clock.now() + self.args.drain_timeout;
        self.servers.close();
        if !cut {
            tokio::select! {
                () = self.servers.wait() => info!("drained"),
                () = tokio::time::sleep_until(deadline) => {
                    warn!(timeout = ?self.args.drain_timeout, "what is still under way is cut off");
                }
                Some(()) = told.recv() => cut = true,
            }
        }
        if cut {
            warn!("told again: what is still under way is cut off");
        }
        self.force.cancel();
        // Connections end at the next chance to run.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.servers.wait()).await;
        if let Some(traces) = traces.flatten().filter(|_| !cut) {
            traces.flush(deadline.saturating_duration_since(self.environment.clock.now())).await;
        }
        admin.close().await;
        if failed { Err(anyhow::anyhow!("a task has failed; see the log")) } else { Ok(()) }
    }
}

/// What one client may take of the admin port. Probes come one by one and are short.
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

/// The admin port, served by a thread of its own: probes are answered also when all workers are busy.
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
        let (tell, ended) = oneshot::channel();
        // Its log lines go where those of the process go, also in tests, where that is a matter of the thread.
        let log = tracing::dispatcher::get_default(Clone::clone);
        let serve = move || {
            let _log = tracing::dispatcher::set_default(&log);
            runtime.block_on(server);
            let _ = tell.send(());
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

/// Tells the process that a task has ended, however it did, unless the process asked for it.
struct Failure {
    name: &'static str,
    failed: Option<CancellationToken>,
}

impl Drop for Failure {
    fn drop(&mut self) {
        if let Some(failed) = &self.failed {
            error!(task = self.name, "a task that should go on has ended");
            failed.cancel();
        }
    }
}

#[cfg(test)]
mod tests;
