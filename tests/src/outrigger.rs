//! Outrigger, installed on a control plane and running as real processes.

use std::net::TcpListener;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outrigger_admission::webhooks::WRITER_TIMEOUT;
use outrigger_runtime::tls::ClientTls;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::control_plane::ControlPlane;
use crate::issued::{self, Issued};
use crate::pki::{Authority, Pair};
use crate::{InWords, attacks, eventually, holds, openmetrics, root, shipped};

mod requests;

pub(crate) use requests::exchange;
pub use requests::{ask, get};

/// What is installed in the infrastructure cluster.
pub const INFRASTRUCTURE: &str = "deploy/overlays/infrastructure";

/// What is installed in tenants' clusters.
pub const TENANT: &str = "deploy/overlays/tenant";

/// The namespace of Outrigger's own service accounts.
pub const SYSTEM: &str = "outrigger-system";

/// Who may speak for every tenant.
pub const ADMIN: &str = "spiffe://outrigger/admin";

/// Who may speak for this one.
pub fn tenant_identity(tenant: &str) -> String {
    format!("spiffe://outrigger/tenant/{tenant}")
}

/// A control plane with webhook and manager on it.
pub struct Outrigger {
    /// Where it runs.
    pub plane: ControlPlane,
    /// Who signs all certificates but for [`Self::issued`].
    pub authority: Authority,
    /// Certificates by cert-manager, for those parts that are started with [`Self::install_issued`].
    pub issued: Option<Issued>,
    /// Port of the manager's gRPC.
    pub grpc_port: u16,
    /// Port of the webhook.
    pub webhook_port: u16,
    /// Settings of its processes beside those that all tests have: environment variables for flags, `NAME=value`.
    pub settings: Vec<String>,
    /// Admin port of the manager.
    pub manager_admin: u16,
    /// Admin port of the webhook.
    pub webhook_admin: u16,
    /// The program that its processes run.
    pub binary: PathBuf,
    /// The tree whose manifests are installed: the work tree.
    pub tree: PathBuf,
}

/// An installation that only one test uses. It ends with the test, also with one that panics: control planes that nobody uses any
/// longer would take about a tenth of a core each from the other tests.
pub struct OfOneTest(&'static Outrigger);

impl Deref for OfOneTest {
    type Target = &'static Outrigger;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for OfOneTest {
    fn drop(&mut self) {
        self.0.plane.end();
    }
}

impl Outrigger {
    /// The one that all tests of a process share, which are those of a suite.
    pub async fn shared() -> &'static Self {
        // A failure is kept too: starting again for each test would only take longer to say the same.
        static SHARED: OnceCell<Result<Outrigger, String>> = OnceCell::const_new();
        let started = SHARED.get_or_init(async || Self::start().await.in_words()).await;
        started.as_ref().expect("Outrigger starts")
    }

    /// Keeps it in memory, for those who refer to it as long as their process runs, and its processes until the end of the test.
    pub fn of_one_test(self) -> OfOneTest {
        OfOneTest(Box::leak(Box::new(self)))
    }

    /// Starts a control plane, installs Outrigger and waits until it is ready.
    pub async fn start() -> anyhow::Result<Self> {
        Self::new(ControlPlane::start()?)?.started().await
    }

    /// Installs Outrigger, starts webhook and manager, and waits until they are ready.
    pub async fn started(self) -> anyhow::Result<Self> {
        self.install()?;
        self.start_both().await
    }

    /// Starts webhook and manager of what is installed, and waits until they are ready.
    pub async fn start_both(self) -> anyhow::Result<Self> {
        self.start_webhook()?;
        self.start_manager()?;
        self.ready().await;
        Ok(self)
    }

    /// Outrigger for a control plane; nothing is installed or runs yet.
    pub fn new(plane: ControlPlane) -> anyhow::Result<Self> {
        let authority = Authority::new(&plane.dir.join("pki"), "outrigger")?;
        let [grpc_port, webhook_port, manager_admin, webhook_admin] = ports()?;
        Ok(Self {
            plane,
            authority,
            issued: None,
            grpc_port,
            webhook_port,
            settings: Vec::new(),
            manager_admin,
            webhook_admin,
            binary: binary()?,
            tree: root(),
        })
    }

    /// Applies what is shipped for both clusters, apart from what needs nodes that run containers: the parts themselves
    /// run as processes here, and the webhook is reached on loopback.
    pub fn install(&self) -> anyhow::Result<()> {
        self.define()?;
        let mut objects = self.shipped(INFRASTRUCTURE)?;
        objects.retain(|object| is_admission(object) && object["webhooks"].is_null());
        objects.extend(self.webhook_configurations()?);
        self.plane.infra.apply(&objects)
    }

    /// As [`Self::install`], with the certificates that are shipped: cert-manager issues those of webhook and manager, and
    /// puts the CA into the webhook's configurations. The control plane was started with `--cert-manager`.
    pub async fn install_issued(&mut self) -> anyhow::Result<()> {
        let infra = &self.plane.infra;
        self.define()?;
        infra.kubectl(&["delete", "service", "outrigger-webhook", "-n", SYSTEM])?;
        infra.apply(&[issued::to_loopback("outrigger-webhook")])?;
        self.issued = Some(Issued::new(infra, &self.plane.dir).await?);
        let mut objects = shipped::kustomize(INFRASTRUCTURE)?;
        objects.retain(is_admission);
        for object in objects.iter_mut().filter(|object| !object["webhooks"].is_null()) {
            *object = issued::on_port(object.take(), self.webhook_port)?;
        }
        infra.apply(&objects)?;
        self.injected().await;
        Ok(())
    }

    /// Waits until every entry of both configurations has a CA.
    async fn injected(&self) {
        eventually("cert-manager injects the CA", || async {
            let bundles = "jsonpath={range .items[?(@.metadata.name=='outrigger')]}\
                           {range .webhooks[*]}{.clientConfig.caBundle}{'\\n'}{end}{end}";
            let kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations";
            let found = self.plane.infra.kubectl(&["get", kinds, "-o", bundles]).in_words()?;
            let missing = found.lines().filter(|line| line.is_empty()).count();
            holds(missing == 0 && !found.is_empty(), format!("{missing} have none: {found:?}"))
        })
        .await;
    }

    /// Chain and key that a server shows: what cert-manager has issued, or one for these names.
    fn serving(&self, part: &str, name: &str, names: &[&str]) -> anyhow::Result<Pair> {
        match &self.issued {
            Some(issued) => issued.pair(part),
            None => self.authority.issue(name, names),
        }
    }

    /// Applies definitions, roles, and what else there is but admission in the infrastructure cluster.
    pub fn define(&self) -> anyhow::Result<()> {
        for (cluster, overlay) in [(&self.plane.infra, INFRASTRUCTURE), (&self.plane.tenant, TENANT)] {
            if overlay == TENANT && cluster.server == self.plane.infra.server {
                break;
            }
            let mut objects = self.shipped(overlay)?;
            // The tenant's cluster has no webhook of Outrigger's that could be missing: its policies are always there.
            let wanted = |object: &Value| overlay == TENANT || !is_admission(object);
            objects.retain(|object| object["kind"] != "Deployment" && wanted(object));
            cluster.apply(&objects)?;
            cluster.established()?;
        }
        // The controllers for quotas and garbage look for new kinds every half a minute, and when they start.
        self.plane.command("restart infra/kube-controller-manager")
    }

    /// The objects of an overlay of [`Self::tree`].
    fn shipped(&self, overlay: &str) -> anyhow::Result<Vec<Value>> {
        shipped::kustomize(&self.tree.join(overlay).to_string_lossy())
    }

    /// Starts a part with the arguments of its installed container, and those that loopback and files in other places need.
    fn start_part(
        &self,
        name: &str,
        overlay: &str,
        part: &str,
        forced: &[String],
        environment: &[String],
    ) -> anyhow::Result<()> {
        let (args, _) = shipped::container(&self.shipped(overlay)?, &format!("outrigger-{part}"))?;
        // Whoever reads the log of a failed test is no machine, and nobody routes to it.
        let here = ["--log-format=text", "--shutdown-delay=0s"].map(str::to_owned);
        let args = shipped::with(&shipped::with(&args, &here), forced);
        self.run_in(name, &args, environment)
    }

    /// The shipped configurations, with the one change that loopback forces: a URL in place of a Service. A program without
    /// optimization takes many times as long for a large object, so the API server waits longer for it.
    pub fn webhook_configurations(&self) -> anyhow::Result<Vec<Value>> {
        let mut all = shipped::webhook_configurations_of(&self.tree)?;
        for webhook in all.iter_mut().filter_map(|one| one["webhooks"].as_array_mut()).flatten() {
            let path = webhook["clientConfig"]["service"]["path"].as_str().context("no path")?.to_owned();
            let bundle = STANDARD.encode(self.authority.pem());
            let url = format!("https://127.0.0.1:{}{path}", self.webhook_port);
            webhook["clientConfig"] = json!({"url": url, "caBundle": bundle});
            if cfg!(debug_assertions) {
                webhook["timeoutSeconds"] = json!(WRITER_TIMEOUT.as_secs());
            }
        }
        Ok(all)
    }

    /// Starts the webhook.
    pub fn start_webhook(&self) -> anyhow::Result<()> {
        self.start_webhook_with(&[])
    }

    /// As [`Self::start_webhook`], with these arguments in place of those that it would have.
    pub fn start_webhook_with(&self, more: &[String]) -> anyhow::Result<()> {
        self.start_webhook_replica("webhook", self.webhook_port, self.webhook_admin, more)
    }

    /// Starts a webhook of another name, on ports of its own, with these arguments in place of those that it would have.
    pub fn start_webhook_replica(
        &self,
        name: &str,
        port: u16,
        admin_port: u16,
        more: &[String],
    ) -> anyhow::Result<()> {
        let kubeconfig = self.plane.dir.join("webhook.kubeconfig");
        self.plane.infra.service_account(SYSTEM, "outrigger-webhook", &kubeconfig)?;
        let pair = self.serving("webhook", name, &["127.0.0.1"])?;
        let forced = [
            format!("--bind-address=127.0.0.1:{port}"),
            format!("--admin-address=127.0.0.1:{admin_port}"),
            format!("--kubeconfig={}", kubeconfig.display()),
        ];
        let forced = [&forced[..], &pair.serving_flags()].concat();
        self.start_part(name, INFRASTRUCTURE, "webhook", &shipped::with(&forced, more), &[])
    }

    /// Starts the manager.
    pub fn start_manager(&self) -> anyhow::Result<()> {
        self.start_replica("manager", self.grpc_port, self.manager_admin, &[])
    }

    /// Starts a manager of another name, on ports of its own, with these arguments in place of those that it would have.
    pub fn start_replica(
        &self,
        name: &str,
        grpc_port: u16,
        admin_port: u16,
        more: &[String],
    ) -> anyhow::Result<()> {
        let kubeconfig = self.plane.dir.join("manager.kubeconfig");
        self.plane.infra.service_account(SYSTEM, "outrigger-manager", &kubeconfig)?;
        let pair = self.serving("manager", name, &["127.0.0.1", "api-gateway.local"])?;
        let clients = self.issued.as_ref().map_or_else(|| self.authority.file(), Issued::agent_ca);
        let forced = [
            format!("--bind-address=tcp://127.0.0.1:{grpc_port}"),
            format!("--admin-address=127.0.0.1:{admin_port}"),
            format!("--admin-identity={ADMIN}"),
            format!("--tls-client-ca-file={}", clients.display()),
            format!("--kubeconfig={}", kubeconfig.display()),
        ];
        let forced = [&forced[..], &pair.serving_flags()].concat();
        self.start_part(name, INFRASTRUCTURE, "manager", &shipped::with(&forced, more), &[])
    }

    /// Starts a manager of another name on free ports, and waits until it is ready: its gRPC port and its admin port.
    pub async fn another_manager(&self, name: &str, more: &[String]) -> (u16, u16) {
        let [port, admin] = ports().expect("ports");
        self.start_replica(name, port, admin, more).expect("a manager");
        self.ready_at(name, admin).await;
        (port, admin)
    }

    /// Starts an agent for a tenant, named `agent-<tenant>`, with more arguments, which may also name another manager or admin address.
    pub fn start_agent_with(&self, tenant: &str, more: &[String]) -> anyhow::Result<()> {
        self.start_agent_in(tenant, more, &[])
    }

    /// As [`Self::start_agent_with`], with more variables of the environment, `NAME=value`.
    pub fn start_agent_in(
        &self,
        tenant: &str,
        more: &[String],
        environment: &[String],
    ) -> anyhow::Result<()> {
        // Its own: another test may be writing theirs.
        let kubeconfig = self.plane.dir.join(format!("agent-{tenant}.kubeconfig"));
        self.plane.tenant.service_account(SYSTEM, "outrigger-agent", &kubeconfig)?;
        let name = format!("agent-{tenant}");
        let pair = self.serving(&name, &name, &[&tenant_identity(tenant)])?;
        let trusted = self.issued.as_ref().map_or_else(|| self.authority.file(), Issued::serving_ca);
        let mut forced = vec![
            format!("--manager-address=https://127.0.0.1:{}", self.grpc_port),
            "--admin-address=127.0.0.1:0".to_owned(),
            format!("--tenant-id={tenant}"),
            format!("--ca-file={}", trusted.display()),
            format!("--client-cert-file={}", pair.cert.display()),
            format!("--client-key-file={}", pair.key.display()),
            format!("--kubeconfig={}", kubeconfig.display()),
        ];
        if self.issued.is_some() {
            forced.push(format!("--server-name=outrigger-manager.{SYSTEM}.svc"));
        }
        self.start_part(&name, TENANT, "agent", &shipped::with(&forced, more), environment)
    }

    /// A client certificate with these names, and whom it trusts.
    pub fn client_tls(&self, file: &str, names: &[&str]) -> ClientTls {
        // Tests run beside each other, and a file that is being written is no certificate.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let file = format!("{file}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let pair = self.authority.issue(&file, names).expect("a certificate");
        ClientTls { ca: self.authority.file(), identity: Some((pair.cert, pair.key)) }
    }

    /// Runs a part under its service account, with these arguments and none of those that are shipped.
    pub fn run_bare(&self, name: &str, part: &str, more: &[String]) -> anyhow::Result<()> {
        let cluster = if part == "agent" { &self.plane.tenant } else { &self.plane.infra };
        let kubeconfig = self.plane.dir.join(format!("{name}.kubeconfig"));
        cluster.service_account(SYSTEM, &format!("outrigger-{part}"), &kubeconfig)?;
        let own = ["--shutdown-delay=0s".to_owned(), format!("--kubeconfig={}", kubeconfig.display())];
        self.run(name, &[&[part.to_owned()][..], &shipped::with(&own, more)].concat())
    }

    /// Runs `outrigger` with these arguments until the control plane ends.
    pub fn run(&self, name: &str, args: &[String]) -> anyhow::Result<()> {
        self.run_in(name, args, &[])
    }

    fn run_in(&self, name: &str, args: &[String], environment: &[String]) -> anyhow::Result<()> {
        let mut command = vec![self.binary.display().to_string()];
        command.extend_from_slice(args);
        self.plane.run(name, &command, &[&self.settings, environment].concat())
    }

    /// Runs `outrigger` with these arguments to its end.
    pub fn output(&self, args: &[&str]) -> anyhow::Result<std::process::Output> {
        Ok(std::process::Command::new(&self.binary).args(args).output()?)
    }

    /// Exit code and report of a command of `outrigger` that prints one as JSON. An error has what it prints instead.
    pub fn report(&self, args: &[&str]) -> Result<(Option<i32>, Value), String> {
        let output = self.output(&[args, &["-o=json"]].concat()).in_words()?;
        let report = serde_json::from_slice(&output.stdout);
        let said = || String::from_utf8_lossy(&output.stderr);
        Ok((output.status.code(), report.map_err(|error| format!("{args:?}: {error}: {}", said()))?))
    }

    /// Waits until webhook and manager are ready.
    pub async fn ready(&self) {
        self.ready_at("webhook", self.webhook_admin).await;
        self.ready_at("manager", self.manager_admin).await;
    }

    /// Waits until a process with this admin port is ready.
    pub async fn ready_at(&self, name: &str, admin_port: u16) {
        eventually(&format!("{name} is ready"), || async move {
            let (status, body) = get(admin_port, "/readyz").await?;
            holds(status == 200, body)
        })
        .await;
    }

    /// The metrics of a manager that was started with [`Self::start_replica`].
    pub async fn metrics_of(admin_port: u16) -> Result<String, String> {
        get(admin_port, "/metrics").await.map(|(_, body)| body)
    }

    /// The sum of all samples of a family with this suffix, in the metrics of the process with this admin port.
    pub async fn metric(admin_port: u16, family: &str, suffix: &str) -> Result<f64, String> {
        let families = openmetrics::parse(&Self::metrics_of(admin_port).await?)?;
        Ok(families.get(family).ok_or("no such metric")?.sum(suffix, &[]))
    }

    /// Whether the manager with this admin port says that it leads.
    pub async fn leads(admin_port: u16) -> Result<bool, String> {
        Ok(Self::metric(admin_port, "outrigger_leader", "").await? > 0.5)
    }

    /// Posts a body to a webhook, as a client with these names or without a certificate: status and body of the answer.
    pub async fn post(
        &self,
        port: u16,
        names: Option<&[&str]>,
        request: http::request::Builder,
        body: impl Into<bytes::Bytes>,
    ) -> Result<(u16, String), String> {
        let tls = match names {
            Some(names) => self.client_tls("client", names),
            None => ClientTls { ca: self.authority.file(), identity: None },
        };
        let stream = attacks::dial(&tls, port, b"http/1.1").await.in_words()?;
        let request = request.method("POST").header("content-type", "application/json");
        exchange(stream, request, body.into()).await
    }

    /// The manager's metrics.
    pub async fn manager_metrics(&self) -> String {
        get(self.manager_admin, "/metrics").await.expect("metrics").1
    }

    /// The webhook's metrics.
    pub async fn webhook_metrics(&self) -> String {
        get(self.webhook_admin, "/metrics").await.expect("metrics").1
    }
}

/// Waits until the manager with this admin port says that it leads, or that it doesn't.
pub async fn leads(what: &str, admin_port: u16, expected: bool) {
    eventually(what, || async {
        holds(Outrigger::leads(admin_port).await? == expected, format!("leads: {}", !expected))
    })
    .await;
}

/// What requests are admitted by: the webhook's configurations and the policies.
fn is_admission(object: &Value) -> bool {
    object["apiVersion"] == "admissionregistration.k8s.io/v1"
}

/// Free ports on loopback, each handed out once. They are below those that the kernel gives to connections: nothing else takes one
/// before the process that it is for has started, or while that one is restarted.
pub fn ports<const N: usize>() -> anyhow::Result<[u16; N]> {
    const LOWEST: u16 = 10_000;
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    static FIRST: LazyLock<usize> = LazyLock::new(|| rand::random_range(0..usize::from(u16::MAX)));
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let dynamic: u16 = range.split_whitespace().next().and_then(|low| low.parse().ok()).unwrap_or(32_768);
    let count = usize::from(
        dynamic.checked_sub(LOWEST).filter(|count| *count > 0).context("no ports below the dynamic ones")?,
    );
    let mut free = (0..count).filter_map(|_| {
        let port = LOWEST + u16::try_from((*FIRST + TAKEN.fetch_add(1, Ordering::Relaxed)) % count).ok()?;
        TcpListener::bind(("127.0.0.1", port)).ok().map(|_| port)
    });
    let mut ports = [0; N];
    for port in &mut ports {
        *port = free.next().context("no free port")?;
    }
    Ok(ports)
}

/// The `outrigger` binary that was built beside the test.
pub fn binary() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("OUTRIGGER_BIN") {
        return Ok(path.into());
    }
    let this = std::env::current_exe()?;
    this.ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join("outrigger"))
        .find(|path| path.is_file())
        .context("the outrigger binary isn't built: run `cargo build --bin outrigger` first, or use make")
}
