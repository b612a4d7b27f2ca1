//! Where pages are run: a copy of the work tree, the programs that readers have, and clusters.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use outrigger_tests::control_plane::{Cluster, ControlPlane, kubectl, remove_old, tool};
use outrigger_tests::outrigger::{ADMIN, INFRASTRUCTURE, Outrigger, SYSTEM, TENANT, binary, tenant_identity};
use outrigger_tests::page::slug;
use outrigger_tests::pki::Pair;
use outrigger_tests::shipped::{kustomize, of_kind, operators_definitions, output};
use outrigger_tests::tenant::{dpu, host, tenant};
use outrigger_tests::{InWords, eventually, holds, root};
use serde_json::{Value, json};

/// What no copy of the work tree needs.
const LEFT_OUT: [&str; 2] = ["target", ".git"];

/// Where one page is run. Its directory goes with it.
pub(crate) struct Place {
    /// For what the test itself writes.
    pub(crate) dir: PathBuf,
    /// Copy of the work tree: the working directory.
    pub(crate) tree: PathBuf,
    /// The programs that readers have.
    pub(crate) programs: PathBuf,
    /// `NAME`, value.
    pub(crate) variables: Vec<(String, String)>,
}

impl Drop for Place {
    fn drop(&mut self) {
        // What went wrong has been reported; nobody looks into it afterwards.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Place {
    /// A place for a page that needs no cluster.
    pub(crate) fn without_cluster(page: &str) -> Self {
        Self::new(page).unwrap()
    }

    /// Two clusters for one page, where nothing is installed but cert-manager. They have nodes, so that what is installed
    /// is scheduled.
    pub(crate) fn with_empty_clusters(page: &str) -> anyhow::Result<(ControlPlane, Self)> {
        let plane = ControlPlane::start_with(&["--cert-manager"])?;
        plane.infra.apply(&[host("control-1"), host("control-2")])?;
        plane.tenant.apply(&[host("host-a"), host("host-b")])?;
        operators_definitions(&plane.infra)?;
        let place = Self::new(page)?.on(&plane, &plane.infra)?;
        Ok((plane, place))
    }

    fn new(page: &str) -> anyhow::Result<Self> {
        let runs = root().join("target/docs");
        remove_old(&runs);
        let dir = runs.join(format!("{}-{}", std::process::id(), slug(page)));
        let (tree, programs) = (dir.join("outrigger"), dir.join("programs"));
        for dir in [&dir, &programs, &dir.join("out"), &dir.join("steps"), &dir.join("home")] {
            std::fs::create_dir_all(dir)?;
        }
        copy(&root(), &tree)?;
        for (name, program) in [
            ("kubectl", kubectl()?),
            ("helm", tool("helm")?),
            ("grpcurl", tool("grpcurl")?),
            ("promtool", tool("prometheus")?.join("promtool")),
            ("outrigger", binary()?),
            ("kubectl-outrigger", binary()?),
        ] {
            symlink(program, programs.join(name))?;
        }
        Ok(Self { dir, tree, programs, variables: Vec::new() })
    }

    /// Gives the page both clusters, one of them as the one that kubectl asks. It may change its kubeconfigs.
    fn on(mut self, plane: &ControlPlane, cluster: &Cluster) -> anyhow::Result<Self> {
        for (cluster, file) in [(&plane.infra, "infra.kubeconfig"), (&plane.tenant, "tenant.kubeconfig")] {
            std::fs::copy(&cluster.kubeconfig, self.tree.join(file))?;
        }
        let file = if cluster.server == plane.infra.server { "infra" } else { "tenant" };
        let file = self.tree.join(format!("{file}.kubeconfig"));
        self.variables.push(("KUBECONFIG".to_owned(), file.display().to_string()));
        Ok(self)
    }

    /// A command that sees of our surroundings only what is the same everywhere.
    pub(crate) fn command(&self, program: &str) -> Command {
        let system = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command.current_dir(&self.tree).env_clear().stdin(std::process::Stdio::null());
        command.env("PATH", format!("{}:{system}", self.programs.display()));
        command.env("HOME", self.dir.join("home")).env("LANG", "C.UTF-8");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Outrigger as it is installed, with a tenant `blue` of two hosts, each with a DPU, whose agent is connected, and another
/// tenant `red`. What runs are processes here; Deployments are there too, so that what is asked about them has an answer.
pub(crate) struct Running {
    outrigger: Outrigger,
    certificates: PathBuf,
}

impl Running {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let outrigger = Outrigger::new(ControlPlane::start_with(&["--cert-manager"])?)?;
        let (infra, cluster) = (&outrigger.plane.infra, &outrigger.plane.tenant);
        infra.apply(&[host("control-1"), host("control-2")])?;
        operators_definitions(infra)?;
        outrigger.install()?;
        outrigger.start_webhook()?;
        outrigger.start_manager()?;
        outrigger.ready().await;
        for (cluster, overlay) in [(infra, INFRASTRUCTURE), (cluster, TENANT)] {
            cluster.apply(&of_kind(&kustomize(overlay)?, "Deployment").cloned().collect::<Vec<_>>())?;
        }
        infra.apply(&[device_class()])?;
        eventually("the tenants are taken", || async { infra.apply(&objects()).in_words() }).await;
        cluster.apply(&[host("host-a"), host("host-b")])?;
        infra.kubectl(&["wait", "--for=condition=Ready", "tenants", "--all", "--timeout=120s"])?;
        outrigger.start_agent_with("blue", &["--namespace=*".to_owned()])?;
        eventually("blue's agent is connected", || async {
            let connected = ["get", "tenant", "blue", "-o", "jsonpath={.status.stream.connected}"];
            let said = infra.kubectl(&connected).in_words()?;
            holds(said == "true", said)
        })
        .await;

        let certificates = outrigger.plane.dir.join("certificates");
        std::fs::create_dir(&certificates)?;
        let pair = outrigger.authority.issue("docs", &[ADMIN])?;
        let ca = outrigger.authority.file();
        for (from, to) in [(&ca, "ca.crt"), (&pair.cert, "admin.crt"), (&pair.key, "admin.key")] {
            std::fs::copy(from, certificates.join(to))?;
        }
        let served = ["webhook", "manager"].map(|part| format!("outrigger-{part}.{SYSTEM}.svc"));
        // The last is what the shipped agent connects to.
        let names = [served[0].as_str(), served[1].as_str(), "outrigger.example.com"];
        let serving = outrigger.authority.issue("docs-serving", &names)?;
        for name in ["outrigger-webhook-tls", "outrigger-manager-tls"] {
            secret(infra, name, &serving)?;
        }
        let trusted = format!("--from-file={}", ca.display());
        infra.kubectl(&["create", "secret", "generic", "outrigger-agent-ca", "-n", SYSTEM, &trusted])?;
        let agent = outrigger.authority.issue("docs-agent", &[&tenant_identity("blue")])?;
        secret(cluster, "outrigger-agent-tls", &agent)?;
        cluster.kubectl(&["create", "configmap", "outrigger-ca", "-n", SYSTEM, &trusted])?;
        Ok(Self { outrigger, certificates })
    }

    /// A place for a page: what kubectl asks is the tenant's cluster, or the infrastructure cluster.
    pub(crate) fn place(&self, page: &str, tenant: bool) -> Place {
        let plane = &self.outrigger.plane;
        let cluster = if tenant { &plane.tenant } else { &plane.infra };
        let mut place = Place::new(page).and_then(|place| place.on(plane, cluster)).unwrap();
        place.variables.extend([
            ("MANAGER".to_owned(), format!("127.0.0.1:{}", self.outrigger.grpc_port)),
            ("CERTIFICATES".to_owned(), self.certificates.display().to_string()),
        ]);
        place
    }
}

/// Makes a Secret of a certificate.
fn secret(cluster: &Cluster, name: &str, pair: &Pair) -> anyhow::Result<()> {
    let [cert, key] =
        [("cert", &pair.cert), ("key", &pair.key)].map(|(k, v)| format!("--{k}={}", v.display()));
    cluster.kubectl(&["create", "secret", "tls", name, "-n", SYSTEM, &cert, &key]).map(drop)
}

/// Who is there, and what the commands of the pages look at.
fn objects() -> Vec<Value> {
    let self_signed = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": SYSTEM},
            "stringData": {"ca.crt": "a CA of its own"}})
    };
    vec![
        dpu("host-a-dpu", "host-a"),
        dpu("host-b-dpu", "host-b"),
        dpu("host-c-dpu", "host-c"),
        tenant(
            "blue",
            json!({"hosts": ["host-a", "host-b"], "identities": [tenant_identity("blue")],
                "deviceClasses": ["regex.dpu.example.com"]}),
        ),
        tenant("red", json!({"hosts": ["host-c"], "identities": [tenant_identity("red")]})),
        self_signed("outrigger-webhook-self-signed"),
        self_signed("outrigger-manager-self-signed"),
    ]
}

/// The class of the devices in docs/devices.md. The webhook has to know it before a tenant may have it.
fn device_class() -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": {"name": "regex.dpu.example.com"}, "spec": {}})
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    let entries = std::fs::read_dir(from)?.collect::<Result<Vec<_>, _>>()?;
    let wanted = entries.iter().filter(|entry| !LEFT_OUT.iter().any(|name| entry.file_name() == *name));
    let mut command = Command::new("cp");
    command.arg("-a").args(wanted.map(std::fs::DirEntry::path)).arg(to);
    output(command).map(drop).context("the work tree can't be copied")
}
