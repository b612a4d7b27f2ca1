//! Kyverno's admission controller with policies that do what Outrigger's webhook does.
//!
//! Its definitions come from its module. It gets a namespace with what it looks for there, and the rights of the cluster's
//! administrator.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outrigger_core::keys;
use outrigger_tests::outrigger::{Outrigger, ports};
use outrigger_tests::reviews::SIZES;
use outrigger_tests::{root, shipped};
use serde_json::{Value, json};

use crate::peers::case::{self, Case, Review};
use crate::peers::{Peer, Started};

pub(crate) const PEER: Peer =
    Peer { name: "Kyverno", dir: "kyverno", module: "github.com/kyverno/kyverno", cases, start };

/// Its namespace, and the name of all that it looks for there.
const NAME: &str = "kyverno";

/// The Secrets with its CA's certificate and with its own.
const CA: &str = "kyverno-ca";
const TLS: &str = "kyverno-tls";

/// The definitions that it needs, in its module.
const DEFINITIONS: [&str; 3] = ["kyverno", "policies.kyverno.io", "reports"];

fn cases() -> Vec<Case> {
    let isolation = |policy: &str, path| Case {
        what: format!("Pod made by hand, {policy}"),
        path,
        review: Review::isolation(),
        others: vec![Review::isolation_of(1), Review::isolation_of(2)],
    };
    let [(what, selector, own), ..] = SIZES;
    let offloading = Case {
        what: format!("{what}, MutatingPolicy"),
        path: "/mpol/offloading",
        review: Review::offloading(selector, own),
        others: vec![Review::offloading(selector, own + 1)],
    };
    vec![
        isolation("MutatingPolicy", "/mpol/isolation"),
        isolation("ClusterPolicy", "/mutate/fail"),
        offloading,
    ]
}

fn start(o: &Outrigger, program: String) -> anyhow::Result<Started> {
    let infra = &o.plane.infra;
    for definitions in DEFINITIONS {
        let dir = module()?.join("config/crds").join(definitions);
        infra.kubectl(&["apply", "--server-side", "-f", &dir.display().to_string()])?;
    }
    infra.established()?;
    infra.apply(&objects(o)?)?;
    infra.apply_file("tests/peers/kyverno/policies.yaml")?;
    let [port, metrics] = ports()?;
    let argument = format!("--webhookServerPort={port}");
    let mut args = vec![program, argument.clone()];
    args.extend([
        format!("--kubeconfig={}", infra.kubeconfig.display()),
        // Everything listens on loopback, and the API server finds it there.
        "--webhookServerHost=127.0.0.1".to_owned(),
        format!("--serverIP=127.0.0.1:{port}"),
        "--metricsHost=127.0.0.1".to_owned(),
        format!("--metricsPort={metrics}"),
        "--controllerRuntimeMetricsAddress=0".to_owned(),
        format!("--caSecretName={CA}"),
        format!("--tlsSecretName={TLS}"),
        "--disableCertManagerController=true".to_owned(),
        // As its chart.
        "--omitEvents=PolicyApplied,PolicySkipped".to_owned(),
        // A report is an object that the API server stores for each review.
        "--admissionReports=false".to_owned(),
        "--enableReporting=validate".to_owned(),
    ]);
    let variables = [
        "KYVERNO_NAMESPACE",
        "KYVERNO_SERVICEACCOUNT_NAME",
        "KYVERNO_ROLE_NAME",
        "KYVERNO_DEPLOYMENT",
        "KYVERNO_POD_NAME",
        "INIT_CONFIG",
    ];
    let mut env = variables.map(|variable| format!("{variable}={NAME}")).to_vec();
    env.extend(["KYVERNO_SVC=kyverno-svc".to_owned(), "METRICS_CONFIG=kyverno-metrics".to_owned()]);
    o.plane.run(PEER.dir, &args, &env)?;
    Ok(Started { port, argument })
}

/// Where the module cache has it.
fn module() -> anyhow::Result<PathBuf> {
    let mut command = Command::new("go");
    command.args(["mod", "download", "-json", PEER.module]).current_dir(root().join("tests/peers/kyverno"));
    let found: Value = serde_json::from_str(&shipped::output(command)?)?;
    Ok(found["Dir"].as_str().context("no directory")?.into())
}

/// The namespaces of the Pods, and what it looks for in its own.
fn objects(o: &Outrigger) -> anyhow::Result<Vec<Value>> {
    let namespace = |name: &str, labels: Value| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
    let config = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAME}, "data": {}});
    let secret = |name: &str, cert: &[u8], key: &[u8]| {
        json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": name, "namespace": NAME},
            "data": {"tls.crt": STANDARD.encode(cert), "tls.key": STANDARD.encode(key)}})
    };
    let pair = o.authority.issue(PEER.dir, &["127.0.0.1"])?;
    let (cert, key) = (std::fs::read(pair.cert)?, std::fs::read(pair.key)?);
    let mut objects = vec![
        namespace("tenant-blue", json!({keys::TENANT: "blue"})),
        namespace(NAME, json!({})),
        config(NAME),
        config("kyverno-metrics"),
        // The CA's key stays with the bench: it signs nothing here.
        secret(CA, o.authority.pem().as_bytes(), b""),
        secret(TLS, &cert, &key),
    ];
    objects.extend(case::offloaded(1));
    Ok(objects)
}
