//! Processes that lead through proxies.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use outrigger_core::keys;
use outrigger_tests::control_plane::ControlPlane;
use outrigger_tests::faults::Proxy;
use outrigger_tests::outrigger::{Outrigger, leads, ports};
use outrigger_tests::stream::Opened;
use outrigger_tests::tenant::{Tenant, admin_rule, rule_for};
use outrigger_tests::{InWords, eventually, holds};
use serde_json::json;
use tokio::sync::OnceCell;

/// What all tests share. Faults here are for one tenant's objects only; what disturbs more goes to a [`Replica`].
pub(crate) struct Stage {
    pub(crate) o: Outrigger,
    /// Between webhook and API server.
    pub(crate) webhook: Proxy,
    /// Between the manager and the API server. It leads.
    pub(crate) manager: Proxy,
    /// Between agents and the tenant cluster's API server.
    pub(crate) agents: Proxy,
    /// The agents' way there.
    kubeconfig: String,
}

impl Stage {
    pub(crate) async fn shared() -> &'static Self {
        static SHARED: OnceCell<Result<Stage, String>> = OnceCell::const_new();
        let started = SHARED.get_or_init(async || Self::start().await.in_words()).await;
        started.as_ref().expect("Outrigger starts")
    }

    async fn start() -> anyhow::Result<Self> {
        let o = Outrigger::new(ControlPlane::start()?)?;
        o.install()?;
        let plane = &o.plane;
        let webhook = Proxy::start(&plane.infra, &plane.dir)?;
        let manager = Proxy::start(&plane.infra, &plane.dir)?;
        let agents = Proxy::start(&plane.tenant, &plane.dir)?;
        o.start_webhook_with(&[webhook.account(&plane.infra, "outrigger-webhook")?])?;
        let account = manager.account(&plane.infra, "outrigger-manager")?;
        o.start_replica("manager", o.grpc_port, o.manager_admin, &[account])?;
        let kubeconfig = agents.account(&plane.tenant, "outrigger-agent")?;
        o.ready().await;
        leads("the manager leads", o.manager_admin, true).await;
        Ok(Self { o, webhook, manager, agents, kubeconfig })
    }

    /// A tenant without an agent, and with a DPU in each of these hosts.
    pub(crate) async fn tenant(&'static self, id: &str, hosts: &[&str]) -> Tenant {
        let hosts: Vec<(&str, usize)> = hosts.iter().map(|host| (*host, 1)).collect();
        Tenant::without_agent(&self.o, id, &hosts).await
    }

    /// Starts the tenant's agent, which leads through a proxy.
    pub(crate) fn agent(&self, t: &Tenant, more: &[String]) {
        t.start_agent(&[std::slice::from_ref(&self.kubeconfig), more].concat());
    }

    /// A rule of the platform for this tenant alone, named as its id. Returns how to find its companions.
    pub(crate) fn admin_rule(&self, t: &Tenant) -> (Api<Pod>, ListParams) {
        let mut rule = admin_rule("universe", &t.id, rule_for("app", "web"));
        rule["spec"]["tenantSelector"] = json!({"matchLabels": {(keys::TENANT): t.id}});
        self.o.plane.infra.apply(&[rule]).unwrap();
        let labels = ListParams::default().labels(&format!("{}={}", keys::RULE, t.id));
        (Api::namespaced(t.infra.clone(), "universe"), labels)
    }

    /// Waits until nothing is left of the companions of a rule of the platform.
    pub(crate) async fn admin_companions_are_gone(&self, (pods, labels): &(Api<Pod>, ListParams)) {
        eventually("no companion is left", || async {
            let all = pods.list(labels).await.in_words()?.items.len();
            holds(all == 0, format!("{all}"))
        })
        .await;
    }

    /// Whether no key of the shared manager's queues is being worked on.
    pub(crate) async fn idle(&self) -> Result<(), String> {
        let metrics = self.o.manager_metrics().await;
        let busy = metrics.lines().filter(|line| line.starts_with("outrigger_queue_keys{"));
        let busy: Vec<&str> = busy.filter(|line| line.contains("Busy") && !line.ends_with(" 0")).collect();
        holds(busy.is_empty(), format!("{busy:?}"))
    }

    /// Opens a stream on the shared manager, and sends all of a tenant's workloads.
    pub(crate) async fn open_stream(&self, t: &Tenant, names: &[&str]) -> Opened {
        open_stream(self.o.grpc_port, t, names).await
    }
}

/// A manager of a test's own, behind a proxy of its own. It ends with the test.
pub(crate) struct Replica {
    pub(crate) proxy: Proxy,
    pub(crate) port: u16,
    name: String,
    o: &'static Outrigger,
}

impl Replica {
    /// It is started, and ready unless a fault keeps it from that.
    pub(crate) async fn start(stage: &'static Stage, name: &str) -> Self {
        let this = Self::starting(stage, name, |_| {}).await;
        let admin = this.1;
        stage.o.ready_at(name, admin).await;
        this.0
    }

    /// It is started with these faults. Also its admin port.
    pub(crate) async fn starting(
        stage: &'static Stage,
        name: &str,
        faults: impl FnOnce(&Proxy),
    ) -> (Self, u16) {
        let o = &stage.o;
        let [port, admin] = ports().unwrap();
        let proxy = Proxy::start(&o.plane.infra, &o.plane.dir).unwrap();
        faults(&proxy);
        let kubeconfig = proxy.account(&o.plane.infra, "outrigger-manager").unwrap();
        o.start_replica(name, port, admin, &[kubeconfig]).unwrap();
        (Self { proxy, port, name: name.to_owned(), o }, admin)
    }

    /// Opens a stream on it, and sends all of a tenant's workloads.
    pub(crate) async fn open_stream(&self, t: &Tenant, names: &[&str]) -> Opened {
        open_stream(self.port, t, names).await
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // The control plane ends it too; a failure here is none of the test.
        let _ = self.o.plane.command(&format!("stop {}", self.name));
    }
}

async fn open_stream(port: u16, t: &Tenant, names: &[&str]) -> Opened {
    t.opens_stream_at(port, t.on_a(names)).await
}
