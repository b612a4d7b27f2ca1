//! Command-line options of the agent.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use outrigger_core::admin::namespace;
use outrigger_core::ids::TenantId;
use outrigger_runtime::cluster::ClusterArgs;
use outrigger_runtime::duration;
use outrigger_runtime::process::ProcessArgs;

use crate::annotations::{Allowed, Pattern};
use crate::connect::Address;
use crate::gate::GateArgs;
use crate::host::HostArgs;
use crate::namespaces::Scope;

/// Command-line options of the agent.
#[derive(Debug, Clone, Args)]
pub struct AgentArgs {
    /// Address of the manager: https://HOST:PORT, or with --insecure http://HOST:PORT on loopback or unix:///PATH. An IPv6 address
    /// has brackets. The connection goes through the HTTP proxy that HTTPS_PROXY names, unless NO_PROXY excludes the host.
    #[arg(long, env = "OUTRIGGER_MANAGER_ADDRESS", value_name = "ADDRESS")]
    pub manager_address: Address,

    /// Id of the tenant that owns this cluster.
    #[arg(long, env = "OUTRIGGER_TENANT_ID", value_name = "ID", value_parser = TenantId::new)]
    pub tenant_id: TenantId,

    /// Namespace whose Pods are sent to the manager; "*" for all namespaces. Can be repeated, or separated by commas.
    /// Defaults to the namespaces in the ConfigMap workload-plugin-config in the namespace of the rules (key config:
    /// "namespaces: [a, b]", or "namespaces: ['*']"), which the agent watches. Without either, no Pods are sent.
    #[arg(long = "namespace", env = "OUTRIGGER_NAMESPACES", value_delimiter = ',', value_name = "NAME")]
    pub namespaces: Vec<String>,

    /// Annotation of Pods that is sent in addition to those that rules in this cluster name: a key, example.com/* for
    /// all keys with a prefix, or "*" for all. Can be repeated, or separated by commas.
    /// kubectl.kubernetes.io/last-applied-configuration is never sent.
    #[arg(
        long = "send-annotation",
        env = "OUTRIGGER_SEND_ANNOTATIONS",
        value_delimiter = ',',
        value_name = "KEY"
    )]
    pub send_annotations: Vec<String>,

    /// Annotation of Pods that is sent if the manager asks for it: a rule names it that was created in the infrastructure cluster, such
    /// as a rule of the platform. A key, example.com/* for all keys with a prefix, or "*" for all. Can be repeated, or separated by
    /// commas. By default none is sent for that, and the agent says so: for such rules these annotations are unknown.
    #[arg(
        long = "allow-annotation",
        env = "OUTRIGGER_ALLOW_ANNOTATIONS",
        value_delimiter = ',',
        value_name = "KEY"
    )]
    pub allow_annotations: Vec<String>,

    /// Attribute of devices that is sent of those that are allocated to a workload's claims, by its full name: gpu.example.com/model,
    /// gpu.example.com/* for all with that domain, or "*" for all. Can be repeated, or separated by commas. Needs resource.k8s.io/v1
    /// (Kubernetes 1.34 or later). The role outrigger-agent-devices permits it. By default none is sent.
    #[arg(
        long = "send-device-attribute",
        env = "OUTRIGGER_SEND_DEVICE_ATTRIBUTES",
        value_delimiter = ',',
        value_name = "NAME"
    )]
    pub send_device_attributes: Vec<String>,

    /// Namespace of the tenant's rules in this cluster, which are synchronized to the infrastructure cluster. Empty: no
    /// rules are synchronized.
    #[arg(long, env = "OUTRIGGER_RULES_NAMESPACE", default_value = "universe", value_name = "NAMESPACE")]
    pub rules_namespace: String,

    /// Interval at which the rules of both clusters are compared in the absence of changes: 5s, 1m.
    #[arg(long, env = "OUTRIGGER_PERIODIC_CHECK_INTERVAL", default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub periodic_check_interval: Duration,

    /// Number of rules that are synchronized concurrently.
    #[arg(long, env = "OUTRIGGER_MAX_CONCURRENT_RECONCILES", default_value_t = 10, value_name = "COUNT")]
    pub max_concurrent_reconciles: usize,

    /// Time for which a companion has to be wrong before the Pod of its workload says so for the first time, in the condition
    /// outrigger.dev/Companions: 15s, 1m. Pods of which a rule asks that they wait for their companions say it at once.
    #[arg(long, env = "OUTRIGGER_REPORT_COMPANIONS_AFTER", default_value = "15s", value_parser = duration, value_name = "DURATION")]
    pub report_companions_after: Duration,

    /// Write the condition outrigger.dev/DPUReady on the Nodes of this cluster that are hosts of the Tenant. The role and policy
    /// outrigger-agent-nodes permit it.
    #[arg(long, env = "OUTRIGGER_NODE_CONDITIONS")]
    pub node_conditions: bool,

    /// Also taint these Nodes with outrigger.dev/dpu-not-ready:NoSchedule while their DPUs take no companions, which keeps new
    /// Pods away that don't tolerate it. The role outrigger-agent-node-taints permits it.
    #[arg(long, env = "OUTRIGGER_NODE_TAINTS", requires = "node_conditions")]
    pub node_taints: bool,

    /// Enforce the orderings BeforeStart and BeforeBinding: publish a device for each Pod that a host with a DPU can run, and have Pods
    /// claim one that don't start before their companions. Needs resource.k8s.io/v1 (Kubernetes 1.34 or later), for BeforeBinding
    /// binding conditions of devices (1.36), and `outrigger host` on every host: without it these Pods don't start. The role and policy
    /// outrigger-agent-companions-first permit it. It needs --gate-address and --host-address.
    #[arg(long, env = "OUTRIGGER_COMPANIONS_FIRST", requires_all = ["gate_address", "host_address"])]
    pub companions_first: bool,

    /// PEM file with the CA certificates that verify the manager's certificate.
    #[arg(long, env = "OUTRIGGER_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,

    /// PEM file with the agent's client certificate, which authenticates the tenant.
    #[arg(long, env = "OUTRIGGER_CLIENT_CERT_FILE", requires = "client_key_file", value_name = "FILE")]
    pub client_cert_file: Option<PathBuf>,

    /// PEM file with the private key of the client certificate.
    #[arg(long, env = "OUTRIGGER_CLIENT_KEY_FILE", requires = "client_cert_file", value_name = "FILE")]
    pub client_key_file: Option<PathBuf>,

    /// Expected name in the manager's certificate. Defaults to the host of its address.
    #[arg(long, env = "OUTRIGGER_SERVER_NAME", value_name = "NAME")]
    pub server_name: Option<String>,

    /// Connect without TLS. Only allowed to loopback addresses and Unix sockets.
    #[arg(long, env = "OUTRIGGER_INSECURE")]
    pub insecure: bool,

    #[command(flatten)]
    pub(crate) gate: GateArgs,

    #[command(flatten)]
    pub(crate) host: HostArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    #[command(flatten)]
    pub(crate) process: ProcessArgs,
}

impl AgentArgs {
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.manager_address.is_plain() {
            if !self.insecure {
                bail!("--manager-address: plain text requires --insecure; use https://HOST:PORT");
            }
            if !self.manager_address.may_be_plain() {
                bail!("--insecure is only allowed with loopback addresses and Unix sockets");
            }
        }
        let rules = &self.rules_namespace;
        if !rules.is_empty() {
            namespace(rules).map_err(|error| anyhow::anyhow!("--rules-namespace: {rules:?} {error}"))?;
        }
        scope(&self.namespaces, rules)?;
        self.annotations()?;
        self.device_attributes()?;
        Ok(())
    }

    /// The annotations that may be sent.
    pub(crate) fn annotations(&self) -> anyhow::Result<Allowed> {
        Ok(Allowed {
            always: patterns("--send-annotation", &self.send_annotations)?,
            asked: patterns("--allow-annotation", &self.allow_annotations)?,
        })
    }

    /// The attributes of devices that are sent.
    pub(crate) fn device_attributes(&self) -> anyhow::Result<Arc<[Pattern]>> {
        patterns("--send-device-attribute", &self.send_device_attributes)
    }
}

/// Returns the namespaces of the command line; `None` if a ConfigMap names them.
pub(crate) fn scope(names: &[String], rules_namespace: &str) -> anyhow::Result<Option<Scope>> {
    let mut names = names.iter().map(String::as_str).filter(|name| !name.is_empty()).peekable();
    if names.peek().is_some() {
        return Scope::new(names).map(Some).map_err(|error| anyhow::anyhow!("--namespace: {error}"));
    }
    if rules_namespace.is_empty() {
        bail!("--namespace is required if --rules-namespace is empty: set the namespaces, or \"*\" for all");
    }
    Ok(None)
}

fn patterns(flag: &str, patterns: &[String]) -> anyhow::Result<Arc<[Pattern]>> {
    let given = patterns.iter().filter(|pattern| !pattern.is_empty());
    let read = given.map(|pattern| pattern.parse().map_err(|error| anyhow::anyhow!("{flag}: {error}")));
    read.collect()
}
