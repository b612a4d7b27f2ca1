//! What the tests look at: a tenant with good and missing companions, and a console with a browser before it.

use std::path::{Path, PathBuf};

use outrigger_tests::browser::Browser;
use outrigger_tests::console::ConsoleProcess;
use outrigger_tests::eventually;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, is_ready, rule_for};
use serde_json::json;

/// A console, and a browser that has opened the URL that it has printed.
pub(crate) struct Console {
    pub(crate) browser: Browser,
    /// `http://127.0.0.1:PORT`.
    pub(crate) origin: String,
    /// `None`: it has been killed.
    process: Option<ConsoleProcess>,
}

impl Console {
    /// Starts both. The console reads the infrastructure cluster with one kubeconfig, the tenant's with the other.
    pub(crate) async fn start(o: &'static Outrigger, infra: &Path, tenant: &Path) -> Self {
        Self::with(o, &[flag("kubeconfig", infra), flag("tenant-kubeconfig", tenant)]).await
    }

    /// As [`Self::start`], with these arguments alone.
    pub(crate) async fn with(o: &'static Outrigger, args: &[String]) -> Self {
        let args = [&["--interval=1".to_owned()], args].concat();
        let process = ConsoleProcess::start(&args).unwrap();
        let (origin, _) = process.url.split_once("/?").unwrap();
        let this = Self { browser: Browser::start(&o.plane).await, origin: origin.to_owned(), process: None };
        this.browser.open(&process.url).await;
        assert_eq!(this.path().await, "/", "the address no longer has the token");
        Self { process: Some(process), ..this }
    }

    /// One with all rights in both clusters.
    pub(crate) async fn of(o: &'static Outrigger) -> Self {
        Self::start(o, &o.plane.infra.kubeconfig, &o.plane.tenant.kubeconfig).await
    }

    /// Opens a page.
    pub(crate) async fn open(&self, path: &str) {
        self.browser.open(format!("{}{path}", self.origin)).await;
    }

    /// Opens a page, and waits until it shows these words.
    pub(crate) async fn shows(&self, path: &str, words: &[&str]) -> String {
        self.open(path).await;
        self.browser.shows(words).await
    }

    /// Path and query of the page that is open.
    pub(crate) async fn path(&self) -> String {
        let path = self.browser.run("return location.pathname + location.search").await;
        path.as_str().unwrap().to_owned()
    }

    /// Kills the console. The browser stays.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }
}

/// An argument that names a kubeconfig.
pub(crate) fn flag(name: &str, file: &Path) -> String {
    format!("--{name}={}", file.display())
}

/// A copy of a kubeconfig that leads to another port on loopback.
pub(crate) fn through(kubeconfig: &Path, port: u16, copy: PathBuf) -> PathBuf {
    let text = std::fs::read_to_string(kubeconfig).unwrap();
    let mut config: serde_json::Value = serde_yaml::from_str(&text).unwrap();
    config["clusters"][0]["cluster"]["server"] = json!(format!("https://127.0.0.1:{port}"));
    std::fs::write(&copy, config.to_string()).unwrap();
    copy
}

/// The port of a URL.
pub(crate) fn port(url: &str) -> u16 {
    url.rsplit_once(':').unwrap().1.trim_end_matches('/').parse().unwrap()
}

/// A tenant in several states: one companion is ready, one has no DPU, and a rule is refused.
pub(crate) async fn tenant(o: &'static Outrigger, id: &str) -> Tenant {
    let t = Tenant::new(o, id, &[("host-a", 1), ("host-b", 0)]).await;
    t.rule("firewall", rule_for("app", "web")).await;
    // It may be used, and doesn't exist: the API server refuses the companion.
    t.set(json!({"serviceAccounts": ["probe"]})).await.unwrap();
    let mut probe = rule_for("app", "db");
    probe["template"]["spec"]["serviceAccountName"] = json!("probe");
    eventually("the webhook knows which service accounts the tenant may use", || {
        t.try_rule("probe", probe.clone())
    })
    .await;
    t.start("shop-1", "host-a", json!({"app": "web"})).await;
    t.start("shop-2", "host-b", json!({"app": "web"})).await;
    t.start("orders-1", "host-a", json!({"app": "db"})).await;
    t.has("one of two companions is ready", 1, 2, is_ready).await;
    t
}
