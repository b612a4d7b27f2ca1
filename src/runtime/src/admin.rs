//! The admin port: health and metrics, in plain HTTP, apart from everything that tenants can reach.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::ready::Readiness;

/// Upper bounds of latency buckets, in seconds: 0.1 ms to 10 s, about three a decade.
pub const LATENCY_BUCKETS: [f64; 16] =
    [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];

/// A registry whose metrics are called `outrigger_...`, with what is known of the build.
pub fn registry() -> Registry {
    let mut registry = Registry::with_prefix("outrigger");
    registry.register(
        "build",
        "What is running",
        Info::new(vec![("version", env!("CARGO_PKG_VERSION").to_owned())]),
    );
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

async fn readyz(State(readiness): State<Readiness>) -> Response {
    let missing = readiness.missing();
    if missing.is_empty() {
        return "ok\n".into_response();
    }
    let body = format!("not ready: {}\n", missing.join(", "));
    (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
}

async fn metrics(State(registry): State<Arc<Registry>>) -> Response {
    let mut body = String::new();
    if let Err(error) = encode(&mut body, &registry) {
        return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}
