//! Ways between an agent and its manager other than a direct connection over IPv4.

use std::convert::Infallible;
use std::sync::Arc;

use http::header::PROXY_AUTHORIZATION;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use outrigger_tests::outrigger::{Outrigger, ports};
use outrigger_tests::tenant::Tenant;
use outrigger_tests::{eventually, holds};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};

/// The name in the manager's certificate, which only the proxy can resolve.
const NAME: &str = "api-gateway.local";

/// `user` and `secret`.
const CREDENTIALS: &str = "Basic dXNlcjpzZWNyZXQ=";

/// An HTTP proxy that tunnels to loopback, for clients with the credentials. It ends with the process.
struct Proxy {
    port: u16,
    /// What was asked for, with the status of the answer.
    asked: Arc<Mutex<Vec<(String, u16)>>>,
}

impl Proxy {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::<Mutex<Vec<(String, u16)>>>::default();
        let all = asked.clone();
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let asked = all.clone();
                let service = service_fn(move |request| {
                    let asked = asked.clone();
                    async move { Ok::<_, Infallible>(answer(request, &asked)) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(client), service);
                tokio::spawn(connection.with_upgrades());
            }
        });
        Self { port, asked }
    }

    fn variable(&self, credentials: &str) -> String {
        format!("HTTPS_PROXY=http://{credentials}127.0.0.1:{}", self.port)
    }
}

fn answer(request: Request<Incoming>, asked: &Mutex<Vec<(String, u16)>>) -> Response<Empty<bytes::Bytes>> {
    let authorized = request.headers().get(PROXY_AUTHORIZATION).is_some_and(|value| value == CREDENTIALS);
    let target = request.uri().authority().filter(|_| request.method() == Method::CONNECT).cloned();
    let (status, port) = match target.as_ref().map(|target| (target.host(), target.port_u16())) {
        Some((NAME, Some(port))) if authorized => (StatusCode::OK, Some(port)),
        Some((NAME, Some(_))) => (StatusCode::PROXY_AUTHENTICATION_REQUIRED, None),
        _ => (StatusCode::BAD_GATEWAY, None),
    };
    asked.lock().push((target.map(|target| target.to_string()).unwrap_or_default(), status.as_u16()));
    if let Some(port) = port {
        tokio::spawn(async move {
            let mut client = TokioIo::new(hyper::upgrade::on(request).await.unwrap());
            let mut manager = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut client, &mut manager).await;
        });
    }
    let mut response = Response::new(Empty::new());
    *response.status_mut() = status;
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_connects_through_the_proxy_that_its_environment_names() {
    let o = Outrigger::shared().await;
    let proxy = Proxy::start().await;
    let t = Tenant::with_rule_only(o, "through-proxy").await;
    let manager = format!("{NAME}:{}", o.grpc_port);
    t.start_agent_in(&[format!("--manager-address=https://{manager}")], &[proxy.variable("user:secret@")]);
    t.web("w").await;
    t.companion().await;
    assert_eq!(proxy.asked.lock().first(), Some(&(manager, 200)));
    let log = std::fs::read_to_string(o.plane.log("agent-through-proxy")).unwrap();
    assert!(log.contains("connecting to the manager through a proxy"), "{log}");
    assert!(!log.contains("secret") && !log.contains("dXNlcjpzZWNyZXQ"), "{log}");
}

/// The agent says which proxy refuses it, and why.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_its_proxy_refuses_says_so() {
    let o = Outrigger::shared().await;
    let proxy = Proxy::start().await;
    let t = Tenant::with_rule_only(o, "refused-by-proxy").await;
    let manager = format!("{NAME}:{}", o.grpc_port);
    t.start_agent_in(&[format!("--manager-address=https://{manager}")], &[proxy.variable("")]);
    let words = format!("HTTPS_PROXY: 127.0.0.1:{} doesn't connect to {manager}", proxy.port);
    eventually("the agent says why it isn't connected", || async {
        let log = std::fs::read_to_string(o.plane.log("agent-refused-by-proxy")).unwrap();
        holds(log.contains(&words) && log.contains("proxy authorization required"), log)
    })
    .await;
    assert!(proxy.asked.lock().iter().all(|(_, status)| *status == 407));
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_and_manager_connect_over_ipv6_alone() {
    let o = Outrigger::shared().await;
    let [port, admin] = ports().unwrap();
    let bind = format!("--bind-address=tcp://[::1]:{port}");
    o.start_replica("manager-ipv6", port, admin, &[bind]).unwrap();
    o.ready_at("manager-ipv6", admin).await;
    let t = Tenant::with_rule_only(o, "over-ipv6").await;
    t.start_agent(&[format!("--manager-address=https://[::1]:{port}"), format!("--server-name={NAME}")]);
    t.web("w").await;
    t.companion().await;
    o.plane.command("term manager-ipv6").unwrap();
}
