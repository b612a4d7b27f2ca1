//! Certificates as an installation has them: `certs/` on the real cert-manager, and its Secrets in Pods' directories.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use serde_json::{Value, json};

use crate::control_plane::Cluster;
use crate::kubelet::Mount;
use crate::outrigger::{SYSTEM, tenant_identity};
use crate::pki::Pair;
use crate::{eventually, holds, root};

/// What cert-manager has issued, in directories that follow their Secrets.
#[derive(Debug)]
pub struct Issued {
    dir: PathBuf,
}

impl Issued {
    /// Applies `certs/` and waits for what webhook and manager mount. The control plane has cert-manager.
    pub async fn new(infra: &Cluster, dir: &Path) -> anyhow::Result<Self> {
        let this = Self { dir: dir.join("mounted") };
        infra.kubectl(&["apply", "-k", &root().join("certs").display().to_string()])?;
        for name in ["outrigger-webhook-tls", "outrigger-manager-tls", "outrigger-agent-ca"] {
            this.mount(infra, name).await?;
        }
        Ok(this)
    }

    /// Has a tenant's agent get its certificate, as `certs/examples/agent.yaml` tells.
    pub async fn agent(&self, infra: &Cluster, tenant: &str) -> anyhow::Result<()> {
        infra.apply(&[agent_certificate(tenant)?])?;
        self.mount(infra, &format!("outrigger-agent-{tenant}-tls")).await
    }

    /// Mounts a Secret when it is there.
    async fn mount(&self, infra: &Cluster, secret: &str) -> anyhow::Result<()> {
        let mount = Arc::new(Mount::new(self.dir.join(secret)));
        let secrets: Api<Secret> = Api::namespaced(infra.client().await, SYSTEM);
        let (kubelet, name) = (mount.clone(), secret.to_owned());
        tokio::spawn(async move { kubelet.follow(&secrets, &name).await });
        eventually(&format!("{secret} is issued"), || async {
            holds(mount.path("tls.key").exists(), "not yet")
        })
        .await;
        Ok(())
    }

    /// Chain and key of `webhook`, `manager` or `agent-<tenant>`.
    pub fn pair(&self, whose: &str) -> anyhow::Result<Pair> {
        let file = |file: &str| self.dir.join(format!("outrigger-{whose}-tls")).join(file);
        let pair = Pair { cert: file("tls.crt"), key: file("tls.key") };
        if !pair.cert.exists() {
            bail!("{}: nothing is issued for {whose}", pair.cert.display());
        }
        Ok(pair)
    }

    /// Whom agents trust: the file of the ConfigMap `outrigger-ca`.
    pub fn serving_ca(&self) -> PathBuf {
        self.dir.join("outrigger-manager-tls/ca.crt")
    }

    /// Whom the manager trusts.
    pub fn agent_ca(&self) -> PathBuf {
        self.dir.join("outrigger-agent-ca/ca.crt")
    }
}

/// What `certs/examples/agent.yaml` is for a tenant.
pub fn agent_certificate(tenant: &str) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(root().join("certs/examples/agent.yaml"))?;
    let mut certificate: Value = serde_yaml::from_str(&text.replace("blue", tenant))?;
    certificate["spec"]["uris"] = json!([tenant_identity(tenant)]);
    Ok(certificate)
}

/// The bundles of all entries of both webhook configurations, each once, PEM.
pub fn bundles(infra: &Cluster) -> anyhow::Result<Vec<String>> {
    let mut all = BTreeSet::new();
    for kinds in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        let found = infra.read(&format!("/apis/admissionregistration.k8s.io/v1/{kinds}/outrigger"))?;
        for webhook in found["webhooks"].as_array().into_iter().flatten() {
            let bundle = webhook["clientConfig"]["caBundle"].as_str().unwrap_or_default();
            all.insert(String::from_utf8(STANDARD.decode(bundle)?)?);
        }
    }
    Ok(all.into_iter().collect())
}

/// How many certificates a PEM text has.
pub fn count(pem: &str) -> usize {
    pem.matches("BEGIN CERTIFICATE").count()
}

/// The shipped configuration with the one change that loopback forces: another port. cert-manager injects the CA.
pub fn on_port(mut configuration: Value, port: u16) -> anyhow::Result<Value> {
    for webhook in configuration["webhooks"].as_array_mut().context("no webhooks")? {
        let service = webhook.pointer_mut("/clientConfig/service").context("no Service")?;
        service["port"] = json!(port);
    }
    Ok(configuration)
}

/// The Service of a server of webhooks, leading to loopback: Services of this control plane lead nowhere, but API servers follow
/// such names.
pub fn to_loopback(service: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": service, "namespace": SYSTEM},
        "spec": {"type": "ExternalName", "externalName": "localhost"}})
}
