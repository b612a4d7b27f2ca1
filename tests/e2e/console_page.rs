//! `outrigger console` on real clusters, as a browser sees it: every view, and what a user with few rights gets.

use std::path::Path;

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use outrigger_core::reason::Cause;
use outrigger_tests::console::ConsoleProcess;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, dpu as new_dpu, is_ready, rule, rule_for};
use outrigger_tests::{create, eventually, holds};
use serde_json::{Value, json};

/// A running console, and the session of its browser.
pub(crate) struct Console {
    _process: ConsoleProcess,
    port: u16,
    cookie: String,
}

impl Console {
    /// Starts it, and opens the URL that it prints.
    pub(crate) async fn start(args: &[&str]) -> Self {
        let args: Vec<String> = ["--interval=1"].iter().chain(args).map(|arg| (*arg).to_owned()).collect();
        let process = ConsoleProcess::start(&args).unwrap();
        let url = process.url.clone();
        let address = url.strip_prefix("http://127.0.0.1:").unwrap();
        let (port, token) = address.split_once("/?token=").unwrap();
        let mut this = Self { _process: process, port: port.parse().unwrap(), cookie: String::new() };
        let answer = this.ask(&format!("/?token={token}"), &this.own_host()).await;
        assert_eq!(answer.status(), 303, "{url}");
        let cookie = answer.headers()[header::SET_COOKIE].to_str().unwrap();
        this.cookie = cookie.split(';').next().unwrap().to_owned();
        this
    }

    fn own_host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    async fn ask(&self, path: &str, host: &str) -> Response<Incoming> {
        self.send(Request::get(path).header(header::HOST, host), String::new()).await
    }

    async fn send(&self, request: http::request::Builder, body: String) -> Response<Incoming> {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let io = hyper_util::rt::TokioIo::new(stream);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let request = request.header(header::COOKIE, &self.cookie);
        sender.send_request(request.body(Full::new(Bytes::from(body))).unwrap()).await.unwrap()
    }

    /// What the page predicts of rules of a tenant.
    pub(crate) async fn what_if(&self, tenant: &str, rules: &Value) -> String {
        let form = form_urlencoded::Serializer::new(String::new())
            .append_pair("tenant", tenant)
            .append_pair("rules", &rules.to_string())
            .finish();
        let own = self.own_host();
        let request = Request::post("/what-if").header(header::ORIGIN, format!("http://{own}"));
        let answer = self.send(request.header(header::HOST, own), form).await;
        let status = answer.status();
        let page =
            String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
        assert_eq!(status, 200, "{page}");
        page
    }

    /// A page of the session.
    async fn page(&self, path: &str) -> String {
        let answer = self.ask(path, &self.own_host()).await;
        let status = answer.status();
        let policy = answer.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let page = String::from_utf8(body.to_vec()).unwrap();
        assert_eq!(status, 200, "{path}: {page}");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'"), "{path}: {policy}");
        page
    }

    /// Waits until a page has all of these words.
    pub(crate) async fn shows(&self, path: &str, words: &[&str]) -> String {
        eventually(&format!("{path} shows {words:?}"), || async {
            let page = self.page(path).await;
            let missing: Vec<_> = words.iter().filter(|word| !page.contains(**word)).collect();
            holds(missing.is_empty(), format!("lacks {missing:?}: {page}")).map(|()| page)
        })
        .await
    }
}

/// A flag that names a kubeconfig.
pub(crate) fn kubeconfig(flag: &str, file: &Path) -> String {
    format!("--{flag}={}", file.display())
}

#[tokio::test]
async fn a_browser_sees_every_view_of_what_there_is() {
    let o = Outrigger::shared().await;
    let t = Tenant::new(o, "console", &[("a", 1), ("b", 0)]).await;
    t.rule("web", rule_for("app", "web")).await;
    t.web("web").await;
    t.start("lonely", "b", json!({"app": "web"})).await;
    t.start("db", "a", json!({"app": "db"})).await;
    t.has("one of two companions is ready", 1, 2, is_ready).await;
    let (infra, tenant) = (&o.plane.infra.kubeconfig, &o.plane.tenant.kubeconfig);
    let args = [kubeconfig("kubeconfig", infra), kubeconfig("tenant-kubeconfig", tenant)];
    let console = Console::start(&args.each_ref().map(String::as_str)).await;

    console.shows("/", &["installation", "MutatingWebhookConfiguration: ", "tenants (", "DPUs ("]).await;
    let shown = format!("{}/web", t.namespace);
    console.shows("/rules?tenant=console", &[&shown, "1 found"]).await;
    console
        .shows("/missing?tenant=console", &["NoDPU", Cause::NoDpu.meaning(), Cause::NoDpu.platform_remedy()])
        .await;
    let (with, without) = (t.node("a"), t.node("b"));
    let companions =
        console.shows("/companions?tenant=console", &["2 found", "Ready", "Unschedulable", "NoDPU"]).await;
    assert!(companions.contains(&with) && companions.contains(&without), "{companions}");
    console.shows("/companions?tenant=console&cause=NoDPU", &["1 found", &without]).await;
    let dpu = format!("{with}-dpu1");
    console.shows("/hosts?tenant=console", &["2 found", &dpu, "1/1", "NoDPU", &without]).await;
    console.shows("/tenants", &["/tenants?tenant=console"]).await;
    console.shows("/tenants?tenant=console", &["Accepted=True", &shown, "2 found"]).await;

    let workload = |name: &str| format!("/chain?tenant=console&workload={}/{name}", t.source);
    console.shows("/chain?tenant=console", &["/chain?tenant=console&amp;workload=", "/lonely"]).await;
    console.shows(&workload("web"), &["pass", "companion", "ready", "fits", &dpu]).await;
    console
        .shows(&workload("lonely"), &["companion", "Pending", &format!("no DPU for host {without}")])
        .await;
    console.shows(&workload("db"), &["no companion", "fail", "the rule wants &quot;web&quot;"]).await;
    console.shows(&workload("other"), &["there is no workload"]).await;

    // What rules would do, which changes nothing.
    let with = |name: &str, app: &str| rule(&t.namespace, name, rule_for("app", app));
    let page = console.what_if("console", &with("second", "db")).await;
    for shown in ["What would happen", "/second: ", "created</span>", "1 created", "/db</td>", &dpu] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    let mut wrong = with("wrong", "db");
    wrong["spec"]["workloadTerms"][0]["matchExpressions"][0]["operator"] = json!("Like");
    let page = console.what_if("console", &wrong).await;
    assert!(page.contains("refused") && page.contains("matchExpressions[0].operator"), "{page}");
    let page = console.what_if("console", &json!({"kind": "WorkloadRule"})).await;
    assert!(page.contains("the text: document 1: apiVersion: is missing"), "{page}");
    t.has("nothing was applied", 1, 2, is_ready).await;

    // A page that is open hears of each reading.
    let mut events = console.ask("/events", &console.own_host()).await.into_body();
    let event = events.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(event.starts_with(b"event: reading"), "{event:?}");

    // Nobody else gets anything.
    assert_eq!(console.ask("/", "rebound.example").await.status(), 403);
    let mut stranger = console;
    stranger.cookie.clear();
    assert_eq!(stranger.ask("/", &stranger.own_host()).await.status(), 401);
}

#[tokio::test]
async fn a_user_with_few_rights_sees_what_these_allow_and_what_is_missing() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "console-few", &[("a", 1)]).await;
    t.own_rule("fw", rule_for("app", "web")).await.unwrap();
    t.web("w").await;
    let infra = &o.plane.infra;
    let file = o.plane.dir.join("console-nodes.kubeconfig");
    infra.viewer("console-nodes", &["list"], &[("", "nodes")], &file).unwrap();
    let console = Console::start(&[&kubeconfig("kubeconfig", &file)]).await;
    let dpu = format!("{}-dpu1", t.node("a"));
    let hosts = console.shows(&format!("/hosts?text={dpu}"), &["1 found", &dpu, "Not visible:"]).await;
    for hidden in ["tenants: ", "workloadrules: ", "pods: ", "installation: "] {
        assert!(hosts.contains(&format!("<li>{hidden}")), "{hidden}: {hosts}");
    }
    console.shows("/tenants", &["Tenants are not visible", "0 found"]).await;
    console.shows("/companions", &["0 found"]).await;
    // It may list Nodes and not watch them.
    let later = format!("{}-later", t.id);
    create(&t.nodes(), &new_dpu(&later, &t.node("b"))).await.unwrap();
    console.shows(&format!("/hosts?text={later}"), &["1 found", &later]).await;
    console.shows("/chain", &["the cluster's tenants", "forbidden"]).await;

    // In a tenant's cluster a user of one namespace sees that namespace's workload.
    let file = o.plane.dir.join("console-reader.kubeconfig");
    o.plane.tenant.reader(&t.source, "console-reader", &["pods", "workloadrules"], &file).unwrap();
    let console = Console::start(&[&kubeconfig("kubeconfig", &file)]).await;
    let workload = format!("/chain?workload={}/w", t.source);
    console
        .shows(&workload, &["Rule", "/fw", "pass", &format!("only rules of {} may be read", t.source)])
        .await;
    console.shows("/chain", &["with -n NAMESPACE those of one namespace are enough"]).await;
}
