//! `outrigger console-server` on a real cluster: users log in with tokens and see what these allow.

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use outrigger_runtime::tls::ClientTls;
use outrigger_tests::attacks::dial;
use outrigger_tests::outrigger::{Outrigger, ports};
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{eventually, holds};
use serde_json::json;

/// Every page.
const PAGES: [&str; 8] =
    ["/", "/missing", "/companions", "/chain", "/hosts", "/tenants", "/rules", "/what-if"];

/// A running console.
struct Console {
    outrigger: &'static Outrigger,
    port: u16,
}

/// A user who has logged in.
struct Browser<'a> {
    console: &'a Console,
    cookie: String,
}

impl Console {
    async fn start(outrigger: &'static Outrigger, name: &str) -> Self {
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
        outrigger.run(name, &[&own[..], &more, &pair.serving_flags()].concat()).unwrap();
        outrigger.ready_at(name, admin).await;
        Self { outrigger, port }
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
