//! The admin port: probes and metrics in plain HTTP, on a separate port that tenants can't reach, and [`crate::debug`] if it is
//! enabled.

use std::sync::atomic::AtomicI64;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::api_metrics;
use crate::debug::Debug;
use crate::environment::Clock;
use crate::metrics::{self, ProcessMetrics, TaskMetrics};
use crate::ready::{Readiness, Task};

pub use crate::metrics::LATENCY_BUCKETS;

/// The commit of the source, if the program has set it.
static COMMIT: OnceLock<&str> = OnceLock::new();

/// Sets the commit of the source, once, before the servers start. Only the program's own crate is built again for each commit, so
/// only that one knows it.
pub fn set_commit(commit: &'static str) {
    let _ = COMMIT.set(commit);
}

/// The commit of the source, or `unknown`.
pub fn commit() -> &'static str {
    COMMIT.get().copied().unwrap_or("unknown")
}

/// A registry with the prefix `outrigger_` and the metrics of every server: build, start time, watches and requests to the API
/// server. All metrics are defined in [`crate::metrics`].
pub fn registry() -> Registry {
    let mut registry = Registry::with_prefix(metrics::PREFIX);
    let build = vec![("version", env!("CARGO_PKG_VERSION")), ("commit", commit())];
    metrics::BUILD.register(&mut registry, Info::new(build));
    let started = Gauge::<i64, AtomicI64>::default();
    started.set(Clock::system().unix());
    metrics::STARTED.register(&mut registry, started);
    metrics::collect(&mut registry, TaskMetrics::default());
    api_metrics::register(&mut registry);
    registry
}

/// `/livez`, `/readyz` and `/metrics`, and `/debug` if it is enabled.
///
/// `/livez` succeeds whenever the process can respond, and depends on no other component. `/readyz` succeeds when all tasks are
/// done.
pub fn router(readiness: Readiness, registry: Registry, debug: Option<Debug>) -> Router {
    // The standard metrics of a process have no prefix.
    let mut standard = Registry::default();
    metrics::collect(&mut standard, ProcessMetrics::default());
    let router = Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz).with_state(readiness.clone()))
        .route("/metrics", get(show).with_state(Arc::new([registry, standard])));
    match debug {
        Some(debug) => router.nest("/debug", debug.router(readiness)),
        None => router,
    }
}

/// Names the tasks that aren't done. With `?verbose` there is a line for each task, as in the API server, and for each warning.
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

async fn show(State(registries): State<Arc<[Registry; 2]>>) -> Response {
    let mut body = String::new();
    let encoded = registries.iter().try_for_each(|registry| encode_registry(&mut body, registry));
    if let Err(error) = encoded.and_then(|()| encode_eof(&mut body)) {
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
    async fn readiness_names_missing_tasks_and_liveness_ignores_them() {
        let readiness = Readiness::default();
        let router = router(readiness.clone(), registry(), None);
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
        assert_eq!((status.as_u16(), body.as_str()), (200, "ok\n"), "a warning doesn't affect readiness");
        let (_, _, body) = get(&router, "/readyz?verbose").await;
        assert_eq!(body, "[+] rules\n[+] peers\n[!] certificate: ends soon\nok\n");
        readiness.end();
        let (status, _, body) = get(&router, "/readyz").await;
        assert_eq!((status.as_u16(), body.as_str()), (503, "not ready: shutting down\n"));
        assert_eq!(get(&router, "/livez").await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn metrics_are_open_metrics() {
        let (status, kind, body) = get(&router(Readiness::default(), registry(), None), "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
        for name in [
            "outrigger_build_info{version=",
            "outrigger_process_start_time_seconds 1",
            "\nprocess_cpu_seconds_total ",
            "\nprocess_resident_memory_bytes ",
            "# EOF",
        ] {
            assert!(body.contains(name), "{name} in {body}");
        }
    }
}
