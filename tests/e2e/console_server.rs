//! `outrigger console-server` on a real cluster: users log in with tokens and see what these allow.

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use outrigger_runtime::metrics::Server;
use outrigger_runtime::tls::ClientTls;
use outrigger_tests::attacks::dial;
use outrigger_tests::openmetrics::parse;
use outrigger_tests::outrigger::{Outrigger, ports};
use outrigger_tests::queries::{Manager, User};
use outrigger_tests::stream::update;
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{eventually, holds};
use serde_json::json;

use crate::operation::compare;

/// Every page.
const PAGES: [&str; 9] =
    ["/", "/missing", "/companions", "/workloads", "/chain", "/hosts", "/tenants", "/rules", "/what-if"];

/// A running console.
struct Console {
    outrigger: &'static Outrigger,
    port: u16,
    /// Of probes and metrics.
    admin: u16,
}

/// A user who has logged in.
struct Browser<'a> {
    console: &'a Console,
    cookie: String,
}

impl Console {
    async fn start(outrigger: &'static Outrigger, name: &str) -> Self {
        Self::with(outrigger, name, &[]).await
    }

    /// As [`Self::start`], with further arguments.
    async fn with(outrigger: &'static Outrigger, name: &str, flags: &[String]) -> Self {
        let [port, admin] = ports().unwrap();
        let infra = &outrigger.plane.infra;
        let pair = outrigger.authority.issue(name, &["127.0.0.1"]).unwrap();
        let own =
            ["console-server", "--interval=1", "--log-format=text", "--shutdown-delay=0s"].map(str::to_owned);
        let more = [
            format!("--bind-address=127.0.0.1:{port}"),
            format!("--admin-address=127.0.0.1:{admin}"),
            // As the shipped one: an address and a CA, and no credentials.
            format!("--api-server={}", infra.server),
            format!("--api-server-ca-file={}", infra.ca.display()),
        ];
        outrigger.run(name, &[&own[..], &more, flags, &pair.serving_flags()].concat()).unwrap();
        outrigger.ready_at(name, admin).await;
        Self { outrigger, port, admin }
    }

    async fn send(&self, request: http::request::Builder, body: &str) -> Response<Incoming> {
        let tls = ClientTls { ca: self.outrigger.authority.file(), identity: None };
        let io = hyper_util::rt::TokioIo::new(dial(&tls, self.port, b"http/1.1").await.unwrap());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let request = request.header(header::HOST, format!("127.0.0.1:{}", self.port));
        sender.send_request(request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()).await.unwrap()
    }

    async fn post(&self, path: &str, cookie: &str, body: &str) -> Response<Incoming> {
        let origin = format!("https://127.0.0.1:{}", self.port);
        self.send(Request::post(path).header(header::COOKIE, cookie).header(header::ORIGIN, origin), body)
            .await
    }

    async fn get(&self, path: &str, cookie: &str) -> (u16, String) {
        let answer = self.send(Request::get(path).header(header::COOKIE, cookie), "").await;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn login(&self, token: &str, namespace: &str) -> Browser<'_> {
        let form = form_urlencoded::Serializer::new(String::new())
            .append_pair("token", token)
            .append_pair("namespace", namespace)
            .finish();
        let answer = self.post("/login", "", &form).await;
        let status = answer.status();
        let cookie =
            answer.headers().get(header::SET_COOKIE).map(|cookie| cookie.to_str().unwrap().to_owned());
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(status, 303, "{}", String::from_utf8_lossy(&body));
        Browser { console: self, cookie: cookie.unwrap().split(';').next().unwrap().to_owned() }
    }
}

impl Browser<'_> {
    async fn page(&self, path: &str) -> (u16, String) {
        self.console.get(path, &self.cookie).await
    }

    /// Waits until a page has this text.
    async fn shows(&self, path: &str, text: &str) -> String {
        eventually(&format!("{path} shows {text}"), || async {
            let (status, page) = self.page(path).await;
            holds(status == 200 && page.contains(text), format!("{status}: {page}")).map(|()| page)
        })
        .await
    }
}

/// The token of a service account in a namespace, which may read Pods and rules there and nothing else.
fn reader(o: &Outrigger, namespace: &str, name: &str) -> String {
    let file = o.plane.dir.join(format!("{name}.kubeconfig"));
    o.plane.infra.reader(namespace, name, &["pods", "workloadrules"], &file).unwrap();
    o.plane.infra.kubectl(&["create", "token", name, "-n", namespace]).unwrap().trim().to_owned()
}

/// The token of a service account that may read everything.
fn administrator(o: &Outrigger, name: &str) -> String {
    let group = "rbac.authorization.k8s.io";
    o.plane
        .infra
        .apply(&[
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "default"}}),
            json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}]}),
        ])
        .unwrap();
    o.plane.infra.kubectl(&["create", "token", name, "-n", "default"]).unwrap().trim().to_owned()
}

#[tokio::test]
async fn users_of_two_tenants_walk_every_route_and_find_nothing_of_each_other() {
    let o = Outrigger::shared().await;
    let mut names = Vec::new();
    for id in ["served-blue", "served-red"] {
        let t = Tenant::new(o, id, &[("a", 1)]).await;
        t.rule(&format!("rule-{id}"), rule_for("app", "web")).await;
        t.web("web").await;
        t.ready(1).await;
        let companion = t.companions().await.unwrap()[0].metadata.name.clone().unwrap();
        names.push([t.namespace.clone(), format!("rule-{id}"), companion, t.node("a")]);
    }
    let console = Console::start(o, "console-served").await;
    // Without a session there is nothing.
    for path in PAGES {
        assert_eq!(console.get(path, "").await, (303, String::new()), "{path}");
    }
    for path in ["/events", "/console.js"] {
        assert_eq!(console.get(path, "").await.0, 401, "{path}");
    }
    for (own, other) in [(&names[0], &names[1]), (&names[1], &names[0])] {
        let user = console.login(&reader(o, &own[0], &format!("user-{}", own[0])), &own[0]).await;
        for shown in &own[1..3] {
            let path = if shown == &own[1] { "/rules" } else { "/companions" };
            user.shows(path, shown).await;
        }
        for path in PAGES {
            for query in ["", "?tenant=served-blue", "?tenant=served-red", "?workload=default%2Fweb"] {
                let (status, page) = user.page(&format!("{path}{query}")).await;
                assert_eq!(status, 200, "{path}{query}: {page}");
                for what in other {
                    assert!(!page.contains(what.as_str()), "{path}{query} shows {what}: {page}");
                }
            }
        }
        let answer = console.post("/what-if", &user.cookie, "tenant=served-red&rules=x").await;
        let page = answer.into_body().collect().await.unwrap().to_bytes();
        let page = String::from_utf8_lossy(&page).into_owned();
        assert!(!other.iter().any(|what| page.contains(what.as_str())), "{page}");
    }
    let all = console.login(&administrator(o, "console-admin"), "").await;
    for own in &names {
        all.shows("/companions", &own[2]).await;
    }
}

#[tokio::test]
async fn users_see_the_workloads_that_managers_know_and_whether_a_manager_serves_a_tenant() {
    let o = Outrigger::shared().await;
    let infra = &o.plane.infra;
    let blue = Tenant::without_agent(o, "asked-blue", &[("a", 0)]).await;
    let red = Tenant::without_agent(o, "asked-red", &[("a", 0)]).await;
    let manager = Manager::start(o, "manager-asked").await;
    blue.rule("web", rule_for("app", "web")).await;
    let mut idle = update("idle-blue", &blue.node("a"));
    idle.workload_state.as_mut().unwrap().extra.clear();
    let own = blue.on_a(&["web-blue"]).into_iter().chain([idle]);
    let _streams =
        [blue.tells_at(manager.grpc, own).await, red.tells_at(manager.grpc, red.on_a(&["web-red"])).await];
    let users =
        [("asked-blue", &blue), ("asked-red", &red)].map(|(name, t)| User::of(infra, name, &t.namespace));
    let console = Console::with(o, "console-asked", &manager.flags()).await;
    let first = console.login(&users[0].token, &blue.namespace).await;
    let page = first.shows("/workloads?tenant=asked-blue", "default/web-blue").await;
    assert!(page.contains("default/idle-blue") && page.contains("none: no rule matches"), "{page}");
    let second = console.login(&users[1].token, &red.namespace).await;
    second.shows("/workloads?tenant=asked-red", "default/web-red").await;
    for (user, other, secret) in [(&first, "asked-red", "web-red"), (&second, "asked-blue", "web-blue")] {
        let page =
            user.shows(&format!("/workloads?tenant={other}"), "may not list workloads.outrigger.dev").await;
        assert!(!page.contains(secret), "{page}");
    }
    // What the Tenant says of its stream was written before the manager was killed, and stays.
    let all = console.login(&administrator(o, "asked-admin"), "").await;
    all.shows("/tenants?tenant=asked-blue", "served</span> by manager").await;
    o.plane.command("stop manager-asked").unwrap();
    let page = all.shows("/tenants?tenant=asked-blue", "no manager answers").await;
    assert!(page.contains("connected since"), "{page}");
    first.shows("/workloads?tenant=asked-blue", "can't be reached at https://127.0.0.1:").await;
    let families = eventually("the table of metrics is what is shown", || async {
        let text = Outrigger::metrics_of(console.admin).await?;
        let families = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        compare(Server::Console, &families).map(|()| families)
    })
    .await;
    let sum = |name: &str, suffix: &str, labels: &[(&str, &str)]| families[name].sum(suffix, labels);
    let answered = [("route", "Workloads"), ("outcome", "Answered")];
    assert!(sum("outrigger_console_requests", "_total", &answered) >= 5.0);
    for outcome in ["Answered", "Refused", "Unreachable"] {
        assert!(sum("outrigger_console_queries", "_total", &[("outcome", outcome)]) >= 1.0, "{outcome}");
    }
    assert!((sum("outrigger_console_sessions", "", &[]) - 3.0).abs() < 0.5);
    let log = std::fs::read_to_string(o.plane.log("console-asked")).unwrap();
    assert!(users.iter().all(|user| !log.contains(&user.token)), "no token is in a log");
}

#[tokio::test]
async fn a_session_ends_with_its_token() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "served-ends", &[]).await;
    let console = Console::start(o, "console-ends").await;
    let token = reader(o, &t.namespace, "console-ends-user");
    let user = console.login(&token, &t.namespace).await;
    user.shows("/", "console-ends-user").await;
    let mut events =
        console.send(Request::get("/events").header(header::COOKIE, &user.cookie), "").await.into_body();
    o.plane.infra.kubectl(&["delete", "serviceaccount", "console-ends-user", "-n", &t.namespace]).unwrap();
    eventually("the session ends", || async {
        let (status, page) = user.page("/").await;
        holds(status == 303, format!("{status}: {page}"))
    })
    .await;
    // The stream of events has ended, or ends now.
    while let Some(frame) = events.frame().await {
        frame.unwrap();
    }
    let answer = console.post("/login", "", &format!("token={token}")).await;
    assert_eq!(answer.status(), 401, "the token is no longer accepted");
    let log = std::fs::read_to_string(o.plane.log("console-ends")).unwrap();
    assert!(!log.contains(&token) && log.contains("user logged in"), "{log}");
}
