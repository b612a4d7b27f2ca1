//! The admin port: health and metrics, in plain HTTP, apart from everything that tenants can reach.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::ready::{Readiness, Task};

/// Upper bounds of latency buckets, in seconds: 0.1 ms to 10 s, about three a decade.
pub const LATENCY_BUCKETS: [f64; 16] =
    [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];

/// A registry whose metrics are called `outrigger_...`, with what is known of the build and since when it runs.
///
/// Labels are made from enums: what comes from outside, such as an object's name, would make as many series.
pub fn registry() -> Registry {
    let mut registry = Registry::with_prefix("outrigger");
    registry.register(
        "build",
        "What is running",
        Info::new(vec![("version", env!("CARGO_PKG_VERSION").to_owned())]),
    );
    let started = Gauge::<i64, AtomicI64>::default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    started.set(i64::try_from(now).unwrap_or(i64::MAX));
    registry.register("process_start_time_seconds", "When the process began, Unix time", started);
    registry
}

/// `/livez`, `/readyz` and `/metrics`.
///
/// Live is a process that can answer: it never depends on anybody else. Ready is one that has all it needs.
pub fn router(readiness: Readiness, registry: Registry) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz).with_state(readiness))
        .route("/metrics", get(metrics).with_state(Arc::new(registry)))
}

/// Says what is missing; with `?verbose` also what is not, a line each, as the API server does, and what to look after.
async fn readyz(State(readiness): State<Readiness>, RawQuery(query): RawQuery) -> Response {
    let tasks = readiness.tasks();
    let missing: Vec<_> = tasks.iter().filter(|task| !task.done).map(|task| task.name).collect();
    let (status, verdict) = if missing.is_empty() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", missing.join(", ")))
    };
    let verbose =
        query.is_some_and(|query| query.split('&').any(|key| key == "verbose" || key == "verbose="));
    let mut body = String::new();
    for Task { name, done } in tasks.iter().filter(|_| verbose) {
        body += &format!("[{}] {name}\n", if *done { '+' } else { '-' });
    }
    for (name, warning) in readiness.warnings().iter().filter(|_| verbose) {
        body += &format!("[!] {name}: {warning}\n");
    }
    (status, body + &verdict).into_response()
}

async fn metrics(State(registry): State<Arc<Registry>>) -> Response {
    let mut body = String::new();
    if let Err(error) = encode(&mut body, &registry) {
        return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    /// Status, type and text of an answer.
    async fn get(router: &Router, path: &str) -> (StatusCode, String, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        let kind = answer.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
        let (status, body) = (answer.status(), answer.into_body().collect().await.unwrap().to_bytes());
        (status, kind, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readiness_says_what_is_missing_and_liveness_does_not_care() {
        let readiness = Readiness::default();
        let router = router(readiness.clone(), registry());
        let (rules, peers) = (readiness.wait_for("rules"), readiness.wait_for("peers"));
        rules.done();
        let (status, _, body) = get(&router, "/readyz").await;
        assert_eq!((status.as_u16(), body.as_str()), (503, "not ready: peers\n"));
        let (_, _, body) = get(&router, "/readyz?verbose").await;
        assert_eq!(body, "[+] rules\n[-] peers\nnot ready: peers\n");
        assert_eq!(get(&router, "/livez").await.0, StatusCode::OK);
        peers.done();
        readiness.warning("certificate").set(Some("ends soon".to_owned()));
        let (status, _, body) = get(&router, "/readyz").await;
        assert_eq!((status.as_u16(), body.as_str()), (200, "ok\n"), "a warning hinders nothing");
        let (_, _, body) = get(&router, "/readyz?verbose").await;
        assert_eq!(body, "[+] rules\n[+] peers\n[!] certificate: ends soon\nok\n");
        readiness.end();
        let (status, _, body) = get(&router, "/readyz").await;
        assert_eq!((status.as_u16(), body.as_str()), (503, "not ready: shutting down\n"));
        assert_eq!(get(&router, "/livez").await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn metrics_are_open_metrics() {
        let (status, kind, body) = get(&router(Readiness::default(), registry()), "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
        for name in ["outrigger_build_info{version=", "outrigger_process_start_time_seconds 1", "# EOF"] {
            assert!(body.contains(name), "{name} in {body}");
        }
    }
}
