//! The webhook of an agent that adds readiness gates, in the tenant's cluster.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outrigger_core::keys;
use serde_json::{Value, json};

use crate::control_plane::Cluster;
use crate::outrigger::ports;
use crate::shipped::kustomize;
use crate::tenant::Tenant;
use crate::{InWords, dry_run, eventually, holds, issued, root};

/// Starts the tenant's agent with its gate, for Pods of these namespaces only: other tests share the cluster. Returns the gate's
/// port.
pub fn start_agent(t: &Tenant, namespaces: &[&str], more: &[String]) -> u16 {
    let [port] = ports().unwrap();
    let pair = t.outrigger.authority.issue(&format!("gate-{}", t.id), &["127.0.0.1"]).unwrap();
    let own = [&[format!("--gate-address=127.0.0.1:{port}")][..], &pair.serving_flags()].concat();
    t.start_agent(&[&own, more].concat());
    register(t, port, namespaces);
    port
}

/// As [`start_agent`], with what `deploy/components/gate` adds to the tenant's cluster, and a certificate that the agent signs
/// itself.
pub fn start_self_signed_agent(t: &Tenant, namespaces: &[&str]) {
    let flags = install(&t.outrigger.plane.tenant, |gate| only_for(namespaces, gate)).unwrap();
    t.start_agent(&flags);
}

/// Applies what `deploy/components/gate` adds to the tenant's cluster, with the configuration as it was changed; returns the agent's
/// flags.
pub fn install(cluster: &Cluster, change: impl FnOnce(Value) -> Value) -> anyhow::Result<[String; 2]> {
    let [port] = ports()?;
    let mut objects = kustomize("certs/self-signed/agent")?;
    objects.push(issued::to_loopback(keys::AGENT));
    objects.push(change(issued::on_port(configuration(), port)?));
    cluster.apply(&objects)?;
    Ok([format!("--gate-address=127.0.0.1:{port}"), "--tls=self-signed".to_owned()])
}

/// Waits until a new Pod of the tenant gets the readiness gate.
pub async fn is_added(t: &Tenant, pod: &Value) {
    eventually("the Pod gets the gate", || async {
        let created = dry_run(&t.work(), pod).await.in_words()?;
        let gates = created.spec.and_then(|spec| spec.readiness_gates).unwrap_or_default();
        holds(gates.iter().any(|gate| gate.condition_type == keys::COMPANIONS_GATE), format!("{gates:?}"))
    })
    .await;
}

fn configuration() -> Value {
    let text = std::fs::read_to_string(root().join("webhooks/gate/mutating.yaml")).unwrap();
    serde_yaml::from_str(&text).unwrap()
}

/// The configuration for Pods of these namespaces only.
fn only_for(namespaces: &[&str], mut configuration: Value) -> Value {
    for webhook in configuration["webhooks"].as_array_mut().unwrap() {
        webhook["namespaceSelector"]["matchExpressions"]
            .as_array_mut()
            .unwrap()
            .push(json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces}));
    }
    configuration
}

/// Has the tenant's API server ask this port about new Pods of these namespaces, as the shipped configuration says.
pub fn register(t: &Tenant, port: u16, namespaces: &[&str]) {
    let mut configuration = only_for(namespaces, configuration());
    configuration["metadata"]["name"] = json!(format!("gate-{}", t.id));
    for webhook in configuration["webhooks"].as_array_mut().unwrap() {
        let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap();
        let url = format!("https://127.0.0.1:{port}{path}");
        webhook["clientConfig"] =
            json!({"url": url, "caBundle": STANDARD.encode(t.outrigger.authority.pem())});
    }
    t.outrigger.plane.tenant.apply(&[configuration]).unwrap();
}
