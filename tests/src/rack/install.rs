//! Outrigger on real Nodes, installed as docs/installation.md says, with cert-manager.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{IMAGE, Machine, Rack};
use crate::control_plane::Cluster;
use crate::outrigger::{INFRASTRUCTURE, SYSTEM, TENANT};
use crate::shipped::kustomize;
use crate::tenant::namespace;
use crate::{InWords, eventually, holds, is_true, issued, within};

/// The namespace of the plugin on hosts.
pub const HOSTS: &str = "outrigger-hosts";

/// The port of every Node of the infrastructure cluster that leads to the manager.
const NODE_PORT: u16 = 30_090;

impl Rack {
    /// Installs webhook and manager in the infrastructure cluster, and waits until they are ready. Agents reach the manager by a port of
    /// each Node.
    pub async fn install(&self) -> anyhow::Result<()> {
        let infra = &self.plane.infra;
        infra.apply(&self.overlay(INFRASTRUCTURE, &["cert-manager"], "")?)?;
        let ports = json!([{"name": "grpc", "port": 9090, "targetPort": "grpc", "nodePort": NODE_PORT}]);
        let patch = json!({"spec": {"type": "NodePort", "ports": ports}});
        infra.patch("service/outrigger-manager", &["-n", SYSTEM], &patch)?;
        ready(infra, &["deployment/outrigger-webhook", "deployment/outrigger-manager"]).await;
        Ok(())
    }

    /// Installs a tenant's agent in the tenant's cluster, with the plugin for hosts, and waits until the tenant's rules are taken. The
    /// Tenant is there. `manager` is a Node of the infrastructure cluster.
    pub async fn install_agent(&self, id: &str, manager: Machine) -> anyhow::Result<()> {
        let tenant = &self.plane.tenant;
        // The Secret first: a kubelet that misses one looks again after ever longer times.
        self.connect(tenant, id).await?;
        tenant.apply(&way_to_manager(manager))?;
        tenant.apply(&self.overlay(TENANT, &["companions-first"], id)?)?;
        ready(tenant, &["deployment/outrigger-agent", "daemonset/outrigger-host"]).await;
        eventually("rules are taken", || async {
            let tenant = self.plane.infra.get(&["tenant", id]).in_words()?;
            holds(is_true(&tenant, "Ready"), tenant["status"].to_string())
        })
        .await;
        Ok(())
    }

    /// Gives a cluster the certificate of a tenant's agent, and the manager's CA.
    pub async fn connect(&self, cluster: &Cluster, id: &str) -> anyhow::Result<()> {
        let infra = &self.plane.infra;
        infra.apply(&[issued::agent_certificate(id)?])?;
        let secret = |name: &str| infra.get(&["secret", name, "-n", SYSTEM]).map(|mut s| s["data"].take());
        let name = format!("outrigger-agent-{id}-tls");
        let agent = eventually("the agent has a certificate", || async { secret(&name) }).await;
        let manager = secret("outrigger-manager-tls")?;
        let ca = STANDARD.decode(manager["ca.crt"].as_str().context("no CA")?)?;
        let metadata = |name: &str| json!({"name": name, "namespace": SYSTEM});
        cluster.apply(&[
            namespace(SYSTEM),
            json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata("outrigger-agent-tls"),
                "data": {"tls.crt": agent["tls.crt"], "tls.key": agent["tls.key"]}}),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("outrigger-ca"),
                "data": {"ca.crt": String::from_utf8(ca)?}}),
        ])
    }

    /// An overlay with components and the tested image, as a user's own kustomization makes it. Its agent is that of a tenant, and finds
    /// the manager by a Service of its own cluster.
    pub fn overlay(&self, overlay: &str, components: &[&str], id: &str) -> anyhow::Result<Vec<Value>> {
        let dir = tempfile::tempdir_in(&self.plane.dir)?;
        let relative = |path: PathBuf| format!("../../../../{}", path.display());
        let component = |name: &&str| relative(PathBuf::from("deploy/components").join(name));
        let (name, tag) = IMAGE.rsplit_once(':').context("no tag")?;
        let kustomization = json!({"resources": [relative(overlay.into())],
            "components": components.iter().map(component).collect::<Vec<_>>(),
            "images": [{"name": "registry.example/outrigger", "newName": name, "newTag": tag}]});
        std::fs::write(dir.path().join("kustomization.yaml"), kustomization.to_string())?;
        let mut objects = kustomize(&dir.path().display().to_string())?;
        let address = json!(format!("https://outrigger-manager.{SYSTEM}.svc:9090"));
        for object in &mut objects {
            let env =
                object.pointer_mut("/spec/template/spec/containers/0/env").and_then(Value::as_array_mut);
            for variable in env.into_iter().flatten() {
                match variable["name"].as_str() {
                    Some("OUTRIGGER_MANAGER_ADDRESS") => variable["value"] = address.clone(),
                    Some("OUTRIGGER_TENANT_ID") => variable["value"] = json!(id),
                    _ => {}
                }
            }
        }
        Ok(objects)
    }
}

/// How the tenant's cluster reaches the manager: a Service whose endpoint is a Node of the infrastructure cluster.
pub fn way_to_manager(node: Machine) -> [Value; 2] {
    let metadata = json!({"name": "outrigger-manager", "namespace": SYSTEM, "labels": {"kubernetes.io/service-name": "outrigger-manager"}});
    [
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"ports": [{"name": "grpc", "port": 9090}]}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4",
            "endpoints": [{"addresses": [node.address()]}], "ports": [{"name": "grpc", "port": NODE_PORT}]}),
    ]
}

/// Waits until all Pods of Deployments or DaemonSets are ready. Those of hosts are in a namespace of their own.
pub async fn ready(cluster: &Cluster, parts: &[&str]) {
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
