//! `/debug` on the admin port, if it is enabled: the state of the process, and its log level.
//!
//! The admin port is plain HTTP, and open to every client that reaches the Pod, such as Prometheus. So these paths are served only
//! to clients on the same machine: by loopback, which `kubectl port-forward` uses, or by a Unix socket. The request has to name
//! this machine as its host, which prevents DNS rebinding by pages in a browser.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::uri::Authority;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Map, Value, json};
use tracing::warn;

use crate::admin::commit;
use crate::api_metrics;
use crate::metrics::ProcessMetrics;
use crate::ready::Readiness;
use crate::serve::Peer;
use crate::telemetry::LogLevel;

/// Maximum length of a log level, in bytes.
const MAX_LEVEL: usize = 1 << 10;

/// Returns the current state of a part of the process, as JSON.
pub type Report = Box<dyn Fn() -> Value + Send + Sync>;

/// The content of `/debug`.
#[derive(Default)]
pub struct Debug {
    /// The parts of the process, by name.
    pub parts: Vec<(&'static str, Report)>,
    /// The log level, if there is a log.
    pub level: Option<LogLevel>,
}

struct DebugState {
    debug: Debug,
    readiness: Readiness,
}

impl Debug {
    /// `/state` and `/log-level`.
    pub(crate) fn router(self, readiness: Readiness) -> Router {
        let shared = Arc::new(DebugState { debug: self, readiness });
        Router::new()
            .route("/state", get(state))
            .route("/log-level", get(level).put(set_level))
            .layer(DefaultBodyLimit::max(MAX_LEVEL))
            .layer(from_fn(only_local))
            .with_state(shared)
    }
}

/// Refuses clients on other machines, and pages in a browser, whose requests have an `Origin`.
async fn only_local(request: Request, next: Next) -> Response {
    let here = request.extensions().get::<Peer>().is_some_and(|peer| match peer.address {
        Some(address) => address.ip().to_canonical().is_loopback(),
        None => true,
    });
    if !here || !is_called_local(&request) || request.headers().contains_key(header::ORIGIN) {
        let text = "/debug is served only on loopback and Unix sockets, with the host localhost: use kubectl port-forward\n";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    next.run(request).await
}

/// Whether the request names this machine as its host, which HTTP/1 has in a header and HTTP/2 in the URI.
fn is_called_local(request: &Request) -> bool {
    let header = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let Some(name) = header.or_else(|| request.uri().authority().map(Authority::as_str)) else {
        return false;
    };
    let Ok(authority) = name.parse::<Authority>() else { return false };
    let host = authority.host().trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

async fn state(State(state): State<Arc<DebugState>>) -> Response {
    let mut all = Map::new();
    all.insert("version".to_owned(), json!({"version": env!("CARGO_PKG_VERSION"), "commit": commit()}));
    all.insert("not_ready".to_owned(), json!(state.readiness.missing()));
    all.insert("process".to_owned(), ProcessMetrics::state());
    all.insert("tokio".to_owned(), tokio_state());
    all.insert("watches".to_owned(), api_metrics::state());
    for (name, report) in &state.debug.parts {
        all.insert((*name).to_owned(), report());
    }
    let body = format!("{:#}\n", Value::Object(all));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn tokio_state() -> Value {
    let metrics = tokio::runtime::Handle::current().metrics();
    let workers = metrics.num_workers();
    let busy: Vec<f64> = (0..workers).map(|n| metrics.worker_total_busy_duration(n).as_secs_f64()).collect();
    json!({
        "workers": workers,
        "alive_tasks": metrics.num_alive_tasks(),
        "global_queue_depth": metrics.global_queue_depth(),
        "worker_busy_seconds": busy,
    })
}

async fn level(State(state): State<Arc<DebugState>>) -> Response {
    match &state.debug.level {
        Some(level) => format!("{}\n", level.get()).into_response(),
        None => (StatusCode::NOT_FOUND, "there is no log\n").into_response(),
    }
}

async fn set_level(State(state): State<Arc<DebugState>>, body: Bytes) -> Response {
    let Some(level) = &state.debug.level else {
        return (StatusCode::NOT_FOUND, "there is no log\n").into_response();
    };
    let wanted = String::from_utf8_lossy(&body).trim().to_owned();
    if wanted.is_empty() {
        let text = "the body is empty: send a level such as debug, or info,outrigger_manager=debug\n";
        return (StatusCode::BAD_REQUEST, text).into_response();
    }
    let before = level.get();
    // The change is logged at whichever of the two levels includes warnings.
    let logged = tracing::enabled!(tracing::Level::WARN);
    let log = || warn!(before, wanted, "changing the log level");
    if logged {
        log();
    }
    match level.set(&wanted) {
        Ok(()) => {
            if !logged {
                log();
            }
            format!("{wanted}\n").into_response()
        }
        Err(error) => {
            warn!(wanted, error, "failed to change the log level");
            (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    async fn ask(address: Option<&str>, host: &str, origin: bool, path: &str) -> (u16, String) {
        let debug = Debug { parts: vec![("part", Box::new(|| json!({"n": 1})))], level: None };
        let router = debug.router(Readiness::default());
        let mut request = axum::http::Request::get(path);
        if !host.is_empty() {
            request = request.header("host", host);
        }
        if origin {
            request = request.header("origin", "http://evil.example");
        }
        let mut request = request.body(Body::empty()).unwrap();
        if address != Some("unknown") {
            let address = address.map(|address| address.parse().unwrap());
            request.extensions_mut().insert(Peer { address, ..Peer::default() });
        }
        let answer = router.oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn only_local_clients_are_served() {
        for (address, host, origin, status) in [
            (Some("127.0.0.1:1"), "localhost:8080", false, 200),
            (Some("127.0.0.1:1"), "127.0.0.1", false, 200),
            (Some("[::1]:1"), "[::1]:8080", false, 200),
            (Some("[::ffff:127.0.0.1]:1"), "LOCALHOST", false, 200),
            (None, "localhost", false, 200),
            (Some("10.0.0.1:1"), "localhost", false, 403),
            (Some("[::ffff:10.0.0.1]:1"), "localhost", false, 403),
            (Some("unknown"), "localhost", false, 403),
            (Some("127.0.0.1:1"), "localhost", true, 403),
            (Some("127.0.0.1:1"), "", false, 403),
            (Some("127.0.0.1:1"), "evil.example:8080", false, 403),
            (Some("127.0.0.1:1"), "10.0.0.1", false, 403),
            (Some("127.0.0.1:1"), "localhost.evil.example", false, 403),
            (Some("127.0.0.1:1"), "localhost@evil.example", false, 403),
        ] {
            assert_eq!(ask(address, host, origin, "/state").await.0, status, "{address:?} {host}");
        }
        let (_, body) = ask(None, "localhost", false, "/state").await;
        let state: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(state["part"]["n"], 1);
        assert!(state["tokio"]["workers"].as_u64() > Some(0), "{body}");
        assert_eq!(ask(None, "localhost", false, "/log-level").await.0, 404);
    }
}
