//! What is shipped in `deploy/`: rendered by kubectl's kustomize and by Helm, compared, and applied to a real cluster.

mod additions;
mod alerts;
mod chart;
mod cluster;
mod console_manifests;
mod live;
mod references;
mod uninstallation;
mod upgrade;

use outrigger_tests::root;
use outrigger_tests::shipped::{kustomize, rendered};

/// Each overlay with the chart's values that make the same of it.
const OVERLAYS: [(&str, &[&str]); 4] = [
    ("infrastructure", &[]),
    ("tenant", &["-f", "deploy/helm/values/tenant.yaml"]),
    ("all-in-one", &["-f", "deploy/helm/values/all-in-one.yaml"]),
    ("webhook-only", &["-f", "deploy/helm/values/webhook-only.yaml"]),
];

/// What is added to an overlay: the overlay, the component, and the chart's values that make the same of it.
const COMPONENTS: [(&str, &str, &[&str]); 18] = [
    ("infrastructure", "liqo", &["--set", "crds.liqo=false,manager.manageOffloading=false"]),
    (
        "infrastructure",
        "imperator",
        &["--set", "crds.imperator=false,manager.manageMachines=false,machines.createNamespace=false"],
    ),
    ("infrastructure", "cert-manager", &["--set", "certManager.enabled=true"]),
    ("infrastructure", "self-signed", &["--set", "selfSigned.enabled=true"]),
    (
        "infrastructure",
        "autoscaling",
        &["--set", "webhook.autoscaling.enabled=true,manager.autoscaling.enabled=true"],
    ),
    ("infrastructure", "console", &["--set", "console.enabled=true"]),
    ("infrastructure", "reports", &["--set", "reports.enabled=true"]),
    ("infrastructure", "queries", &["--set", "manager.queries.enabled=true"]),
    ("infrastructure", "console-queries", &["--set", "console.enabled=true,manager.queries.enabled=true"]),
    ("infrastructure", "client-certificates", &["--set", "webhook.clientCaSecret=outrigger-webhook-clients"]),
    (
        "webhook-only",
        "self-signed-webhook",
        &["-f", "deploy/helm/values/webhook-only.yaml", "--set", "selfSigned.enabled=true"],
    ),
    (
        "tenant",
        "no-pod-conditions",
        &["-f", "deploy/helm/values/tenant.yaml", "--set", "agent.podConditions=false"],
    ),
    (
        "tenant",
        "node-conditions",
        &["-f", "deploy/helm/values/tenant.yaml", "--set", "agent.nodes.conditions=true"],
    ),
    ("tenant", "node-taints", &["-f", "deploy/helm/values/tenant.yaml", "--set", "agent.nodes.taints=true"]),
    (
        "tenant",
        "device-attributes",
        &["-f", "deploy/helm/values/tenant.yaml", "--set", "agent.sendDeviceAttributes={*}"],
    ),
    ("tenant", "gate", &["-f", "deploy/helm/values/tenant.yaml", "--set", "agent.gate.enabled=true"]),
    (
        "tenant",
        "gate+gate-client-certificates",
        &[
            "-f",
            "deploy/helm/values/tenant.yaml",
            "--set",
            "agent.gate.enabled=true,agent.gate.clientCaSecret=outrigger-gate-clients",
        ],
    ),
    (
        "tenant",
        "companions-first",
        &["-f", "deploy/helm/values/tenant.yaml", "--set", "agent.companionsFirst.enabled=true"],
    ),
];

/// The objects of an overlay with a component, or with several joined by `+`, as a user's own kustomization makes them.
fn with_component(name: &str, component: &str) -> Vec<serde_json::Value> {
    let render = || {
        std::fs::create_dir_all(root().join("target"))?;
        let dir = tempfile::tempdir_in(root().join("target"))?;
        let components: Vec<_> =
            component.split('+').map(|name| format!("../../deploy/components/{name}")).collect();
        let own = format!("resources: [../../{}]\ncomponents: [{}]\n", overlay(name), components.join(", "));
        std::fs::write(dir.path().join("kustomization.yaml"), own)?;
        kustomize(&dir.path().to_string_lossy())
    };
    rendered(format!("{name} with {component}"), render).unwrap()
}

fn overlay(name: &str) -> String {
    format!("deploy/overlays/{name}")
}
