//! What is shipped in `deploy/`: rendered by kubectl's kustomize and by Helm, compared, and applied to a real cluster.
// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod alerts;
mod chart;
mod cluster;
mod live;
mod references;

/// Each overlay with the chart's values that make the same of it.
const OVERLAYS: [(&str, &[&str]); 4] = [
    ("infrastructure", &[]),
    ("tenant", &["-f", "deploy/helm/values/tenant.yaml"]),
    ("all-in-one", &["-f", "deploy/helm/values/all-in-one.yaml"]),
    ("webhook-only", &["-f", "deploy/helm/values/webhook-only.yaml"]),
];

/// The path of an overlay.
fn overlay(name: &str) -> String {
    format!("deploy/overlays/{name}")
}
