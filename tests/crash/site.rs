//! The installation that all scenarios share: each process leads through a proxy, which counts its writes and kills it.

use std::sync::Arc;

use anyhow::Context;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use outrigger_core::keys;
use outrigger_tests::control_plane::ControlPlane;
use outrigger_tests::faults::{Call, Matching, Moment, Next, Proxy, Verb};
use outrigger_tests::outrigger::{Outrigger, SYSTEM, ports};
use outrigger_tests::tenant::Tenant;
use outrigger_tests::{InWords, merge, root};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{MutexGuard, OnceCell};

/// Which process is disturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Manager,
    Webhook,
    /// The agent of a run's tenant.
    Agent,
    /// A process that the scenario starts itself.
    Own,
}

/// What is counted, and what happens at which count.
#[derive(Debug, Default)]
struct Armed {
    /// The process to kill.
    process: String,
    /// Writes count that mention this.
    run: String,
    /// At which write, and when; nothing is killed without it.
    at: Option<(usize, Moment)>,
    writes: Vec<String>,
    /// Number of the call that was the write to kill at.
    call: Option<u64>,
    /// The write at which the process was killed.
    killed: Option<String>,
}

/// A proxy, and what its hook does.
pub(crate) struct Proxied {
    pub(crate) proxy: Proxy,
    armed: Arc<Mutex<Option<Armed>>>,
}

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// All writes that counted.
    pub(crate) writes: Vec<String>,
    /// The write at which the process was killed.
    pub(crate) killed: Option<String>,
}

impl Proxied {
    fn new(proxy: Proxy, outrigger: &'static Outrigger) -> Self {
        let armed: Arc<Mutex<Option<Armed>>> = Arc::default();
        let hooked = armed.clone();
        proxy.on_write(move |call, moment| {
            let process = Armed::seen(&mut hooked.lock(), call, moment);
            let Some(process) = process else { return Next::GoOn };
            kill(outrigger, &process).expect("the process is killed and started again");
            Next::Drop
        });
        Self { proxy, armed }
    }

    /// Counts the writes of a run from now on, and kills the process at one of them.
    pub(crate) fn arm(&self, process: &str, run: &str, at: Option<(usize, Moment)>) {
        let (process, run) = (process.to_owned(), run.to_owned());
        *self.armed.lock() = Some(Armed { process, run, at, ..Armed::default() });
    }

    /// Counts nothing more.
    pub(crate) fn disarm(&self) -> Outcome {
        let armed = self.armed.lock().take().unwrap_or_default();
        Outcome { writes: armed.writes, killed: armed.killed }
    }

    /// The resources that have been watched through it, each once.
    pub(crate) fn watches(&self) -> Vec<String> {
        let matching = Matching { verbs: vec![Verb::Watch], ..Matching::default() };
        let mut all: Vec<String> =
            self.proxy.calls_of(&matching).into_iter().map(|call| call.resource).collect();
        all.sort();
        all.dedup();
        all
    }
}

impl Armed {
    /// Counts a write. The process to kill now, if one is.
    fn seen(this: &mut Option<Self>, call: &Call, moment: Moment) -> Option<String> {
        let this = this.as_mut()?;
        let body = || call.body.as_ref().is_some_and(|body| body.to_string().contains(&this.run));
        if !call.path.contains(&this.run) && !body() {
            return None;
        }
        if moment == Moment::Before && this.killed.is_none() {
            this.writes.push(call.to_string());
            if this.at.is_some_and(|(write, _)| write == this.writes.len()) {
                this.call = Some(call.number);
            }
        }
        let now = this.at.is_some_and(|(_, at)| at == moment);
        if !now || this.call != Some(call.number) || this.killed.is_some() {
            return None;
        }
        this.killed = Some(call.to_string());
        Some(this.process.clone())
    }
}

/// Kills a process and starts it again.
fn kill(outrigger: &'static Outrigger, process: &str) -> anyhow::Result<()> {
    outrigger.plane.command(&format!("stop {process}"))?;
    if process == MANAGER {
        // Its successor would only wait until the Lease ends by itself.
        std::thread::spawn(move || release(outrigger)).join().ok().context("the Lease is released")??;
    }
    outrigger.plane.command(&format!("start {process}"))
}

/// Takes the Lease from a holder that is dead.
fn release(outrigger: &Outrigger) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let leases: Api<Lease> = Api::namespaced(outrigger.plane.infra.client().await, SYSTEM);
        let free = json!({"holderIdentity": null, "acquireTime": null, "renewTime": null, "leaseDurationSeconds": null});
        merge(&leases, keys::MANAGER, json!({"spec": free})).await?;
        Ok(())
    })
}

const MANAGER: &str = "manager";

pub(crate) struct Site {
    pub(crate) outrigger: &'static Outrigger,
    manager: Proxied,
    webhook: Proxied,
    agents: Proxied,
    own: Proxied,
    /// The argument by which an agent leads through its proxy.
    agent: String,
}

impl Site {
    /// The one that all scenarios share. Whoever has it has it alone: a process that is killed is shared by all scenarios.
    pub(crate) async fn alone() -> (MutexGuard<'static, ()>, &'static Self) {
        static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        static SHARED: OnceCell<Result<Site, String>> = OnceCell::const_new();
        let one = ONE_AT_A_TIME.lock().await;
        let started = SHARED.get_or_init(async || Self::start().await.in_words()).await;
        (one, started.as_ref().expect("the installation starts"))
    }

    async fn start() -> anyhow::Result<Self> {
        let outrigger: &'static Outrigger = Box::leak(Box::new(Outrigger::new(ControlPlane::start()?)?));
        let (plane, dir) = (&outrigger.plane, outrigger.plane.dir.join("proxies"));
        let of = |cluster| anyhow::Ok(Proxied::new(Proxy::start(cluster, &dir)?, outrigger));
        let [manager, webhook, agents, own] =
            [of(&plane.infra)?, of(&plane.infra)?, of(&plane.tenant)?, of(&plane.infra)?];
        outrigger.install()?;
        plane.infra.kubectl(&["apply", "-k", &root().join("certs/self-signed").display().to_string()])?;
        let [manager_admin, webhook_admin] = ports()?;
        let account = webhook.proxy.account(&plane.infra, "outrigger-webhook")?;
        outrigger.start_webhook_replica("webhook", outrigger.webhook_port, webhook_admin, &[account])?;
        let account = manager.proxy.account(&plane.infra, "outrigger-manager")?;
        outrigger.start_replica(MANAGER, outrigger.grpc_port, manager_admin, &[account])?;
        outrigger.ready_at("webhook", webhook_admin).await;
        outrigger.ready_at(MANAGER, manager_admin).await;
        let agent = agents.proxy.account(&plane.tenant, "outrigger-agent")?;
        Ok(Self { outrigger, manager, webhook, agents, own, agent })
    }

    pub(crate) fn proxied(&self, part: Part) -> &Proxied {
        match part {
            Part::Manager => &self.manager,
            Part::Webhook => &self.webhook,
            Part::Agent => &self.agents,
            Part::Own => &self.own,
        }
    }

    /// The name of a process, of a run where each run has its own.
    pub(crate) fn process(&self, part: Part, run: &str) -> String {
        match part {
            Part::Manager => MANAGER.to_owned(),
            Part::Webhook => "webhook".to_owned(),
            Part::Agent => format!("agent-{run}"),
            Part::Own => format!("own-{run}"),
        }
    }

    /// Starts the agent of a run's tenant.
    pub(crate) fn start_agent(&self, tenant: &Tenant) {
        tenant.start_agent(std::slice::from_ref(&self.agent));
    }
}
