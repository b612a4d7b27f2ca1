//! Two clusters as in a rack, with Outrigger installed as docs/installation.md says, with cert-manager.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outrigger_core::keys;
use outrigger_tests::control_plane::Cluster;
use outrigger_tests::outrigger::{INFRASTRUCTURE, SYSTEM, TENANT};
use outrigger_tests::rack::{IMAGE, Machine, Rack};
use outrigger_tests::shipped::{kustomize, of_kind};
use outrigger_tests::tenant::tenant;
use outrigger_tests::{InWords, eventually, holds, root, within};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// Where webhook and manager run.
pub(super) const CONTROL: Machine = Machine { cluster: "infra", name: "control", number: 10 };
/// The DPU of [`HOST`].
pub(super) const DPU: Machine = Machine { cluster: "infra", name: "dpu-1", number: 11 };
/// A host of the tenant's.
pub(super) const HOST: Machine = Machine { cluster: "tenant", name: "host-1", number: 21 };

/// The tenant of the shipped settings.
pub(super) const BLUE: &str = "blue";

/// The namespace of the plugin on hosts.
const HOSTS: &str = "outrigger-hosts";

/// The port of every Node of the infrastructure cluster that leads to the manager.
const NODE_PORT: u16 = 30_090;

/// A rack in which Outrigger runs. Tests take turns: what one switches off, another one would miss.
pub(super) struct Turn {
    pub(super) rack: &'static Rack,
    _turn: MutexGuard<'static, ()>,
}

/// The rack that all tests of this process share, when it is this test's turn.
pub(super) async fn turn() -> Turn {
    static TURN: Mutex<()> = Mutex::const_new(());
    static SHARED: OnceCell<Rack> = OnceCell::const_new();
    let turn = TURN.lock().await;
    Turn { rack: SHARED.get_or_init(installed).await, _turn: turn }
}

async fn installed() -> Rack {
    let rack = Rack::start().unwrap();
    for machine in [CONTROL, DPU, HOST] {
        rack.on(machine).unwrap();
    }
    for machine in [CONTROL, DPU, HOST] {
        let node = format!("node/{}", machine.name);
        eventually(&format!("{node} is there"), || async {
            rack.cluster(machine.cluster).kubectl(&["get", &node])
        })
        .await;
    }
    let (infra, hosts) = (&rack.plane.infra, &rack.plane.tenant);
    infra.patch("node/dpu-1", &[], &json!({"metadata": {"labels": {(keys::DPU_HOST): HOST.name}}})).unwrap();
    infra.apply(&overlay(&rack, INFRASTRUCTURE, &["cert-manager"], BLUE)).unwrap();
    infra
        .patch(
            "service/outrigger-manager",
            &["-n", SYSTEM],
            &json!({"spec": {"type": "NodePort",
            "ports": [{"name": "grpc", "port": 9090, "targetPort": "grpc", "nodePort": NODE_PORT}]}}),
        )
        .unwrap();
    ready(infra, &["deployment/outrigger-webhook", "deployment/outrigger-manager"]).await;
    hosts.apply(&overlay(&rack, TENANT, &["companions-first"], BLUE)).unwrap();
    hosts.apply(&[lead_to_the_manager("Service"), lead_to_the_manager("EndpointSlice")]).unwrap();
    connect(&rack, hosts, BLUE, HOST).await;
    ready(hosts, &["deployment/outrigger-agent"]).await;
    eventually("rules are taken", || async {
        let tenant = infra.get(&["tenant", BLUE]).in_words()?;
        let conditions = tenant["status"]["conditions"].as_array().into_iter().flatten();
        let is_ready = conditions.clone().any(|c| c["type"] == "Ready" && c["status"] == "True");
        holds(is_ready, tenant["status"].to_string())
    })
    .await;
    rack
}

/// Creates a tenant with one host, and gives a cluster the certificate of the tenant's agent, as docs/installation.md says.
pub(super) async fn connect(rack: &Rack, cluster: &Cluster, id: &str, host: Machine) {
    let infra = &rack.plane.infra;
    let certificate =
        std::fs::read_to_string(root().join("certs/examples/agent.yaml")).unwrap().replace(BLUE, id);
    infra.kubectl_with(&["apply", "-f", "-"], &certificate).unwrap();
    let identity = format!("spiffe://example.org/agent/{id}");
    infra.apply(&[tenant(id, json!({"identities": [identity], "hosts": [host.name]}))]).unwrap();
    let name = format!("outrigger-agent-{id}-tls");
    let agent = eventually("the agent has a certificate", || async { secret(infra, &name) }).await;
    let ca = secret(infra, "outrigger-manager-tls").unwrap()["ca.crt"].as_str().unwrap().to_owned();
    let ca = String::from_utf8(STANDARD.decode(ca).unwrap()).unwrap();
    let metadata = |name: &str| json!({"name": name, "namespace": SYSTEM});
    cluster
        .apply(&[
            json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata("outrigger-agent-tls"),
                "data": {"tls.crt": agent["tls.crt"], "tls.key": agent["tls.key"]}}),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("outrigger-ca"), "data": {"ca.crt": ca}}),
        ])
        .unwrap();
}

/// An overlay with components and the image of the tests, as a user's own kustomization makes it. Its agent is that of a tenant, and finds
/// the manager by a Service of its own cluster.
pub(super) fn overlay(rack: &Rack, overlay: &str, components: &[&str], id: &str) -> Vec<Value> {
    let dir = tempfile::tempdir_in(&rack.plane.dir).unwrap();
    let relative = |path: PathBuf| format!("../../../../{}", path.display());
    let components: Vec<_> =
        components.iter().map(|name| relative(PathBuf::from("deploy/components").join(name))).collect();
    let (name, tag) = IMAGE.rsplit_once(':').unwrap();
    let kustomization = json!({"resources": [relative(overlay.into())], "components": components,
        "images": [{"name": "registry.example/outrigger", "newName": name, "newTag": tag}]});
    std::fs::write(dir.path().join("kustomization.yaml"), kustomization.to_string()).unwrap();
    let mut objects = kustomize(&dir.path().display().to_string()).unwrap();
    let address = json!(format!("https://outrigger-manager.{SYSTEM}.svc:9090"));
    for object in &mut objects {
        let env = object.pointer_mut("/spec/template/spec/containers/0/env").and_then(Value::as_array_mut);
        for variable in env.into_iter().flatten() {
            match variable["name"].as_str() {
                Some("OUTRIGGER_MANAGER_ADDRESS") => variable["value"] = address.clone(),
                Some("OUTRIGGER_TENANT_ID") => variable["value"] = json!(id),
                _ => {}
            }
        }
    }
    assert!(of_kind(&objects, "Deployment").count() > 0);
    objects
}

/// How the tenant's cluster reaches the manager: a Service whose endpoint is a Node of the infrastructure cluster.
fn lead_to_the_manager(kind: &str) -> Value {
    let metadata = json!({"name": "outrigger-manager", "namespace": SYSTEM, "labels": {"kubernetes.io/service-name": "outrigger-manager"}});
    match kind {
        "Service" => {
            json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": {"ports": [{"name": "grpc", "port": 9090}]}})
        }
        _ => {
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": kind, "metadata": metadata, "addressType": "IPv4",
            "endpoints": [{"addresses": [format!("10.77.0.{}", CONTROL.number)]}], "ports": [{"name": "grpc", "port": NODE_PORT}]})
        }
    }
}

fn secret(cluster: &Cluster, name: &str) -> anyhow::Result<Value> {
    Ok(cluster.get(&["secret", name, "-n", SYSTEM])?["data"].clone())
}

/// Waits until all Pods of Deployments or DaemonSets are ready. Those of hosts are in a namespace of their own.
pub(super) async fn ready(cluster: &Cluster, parts: &[&str]) {
    for part in parts {
        let namespace = if part.starts_with("daemonset/") { HOSTS } else { SYSTEM };
        within(Instant::now(), Duration::from_secs(120), &format!("{part} is ready"), || async {
            let args = ["rollout", "status", part, "-n", namespace, "--timeout=1s"];
            let said = cluster.kubectl(&args);
            said.map_err(|error| {
                match cluster.kubectl(&["describe", "replicasets,daemonsets,pods", "-n", namespace]) {
                    Ok(described) => error.context(described),
                    Err(_) => error,
                }
            })
        })
        .await;
    }
}
