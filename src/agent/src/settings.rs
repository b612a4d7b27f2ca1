//! Settings of the agent.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use outrigger_core::ids::TenantId;
use outrigger_runtime::cluster::ClusterArgs;
use outrigger_runtime::duration;
use outrigger_runtime::process::ProcessArgs;

use crate::annotations::Pattern;
use crate::connect::Address;
use crate::namespaces::Scope;

/// Settings of the agent.
#[derive(Debug, Clone, Args)]
pub struct AgentArgs {
    /// Where the manager is: https://HOST:PORT, or with --insecure http://HOST:PORT on loopback or unix:///PATH.
    #[arg(long, env = "OUTRIGGER_MANAGER_ADDRESS", value_name = "ADDRESS")]
    pub manager_address: Address,

    /// Id of the tenant whose cluster this is.
    #[arg(long, env = "OUTRIGGER_TENANT_ID", value_name = "ID", value_parser = TenantId::new)]
    pub tenant_id: TenantId,

    /// Namespace whose Pods are told; "*" for all. May be given several times, or separated by commas. Without it: those that
    /// the ConfigMap workload-plugin-config in the rules' namespace names (key config: "namespaces: [a, b]", or
    /// "namespaces: ['*']"), followed while the agent runs. As long as neither says anything that can be used, nothing is told.
    #[arg(long = "namespace", env = "OUTRIGGER_NAMESPACES", value_delimiter = ',', value_name = "NAME")]
    pub namespaces: Vec<String>,

    /// Annotation of Pods that is sent besides those that the rules here name: a key, example.com/* for all keys of a prefix, or
    /// "*" for all. May be given several times, or separated by commas. kubectl.kubernetes.io/last-applied-configuration is
    /// never sent. Rules that are made in the infrastructure cluster see only what is named here or by rules here.
    #[arg(
        long = "send-annotation",
        env = "OUTRIGGER_SEND_ANNOTATIONS",
        value_delimiter = ',',
        value_name = "KEY"
    )]
    pub send_annotations: Vec<String>,

    /// Namespace of the tenant's rules in its own cluster. They are synced into the infrastructure cluster. Empty: none
    /// are.
    #[arg(long, env = "OUTRIGGER_RULES_NAMESPACE", default_value = "universe", value_name = "NAMESPACE")]
    pub rules_namespace: String,

    /// How often both sides' rules are compared when nothing happens: 5s, 1m.
    #[arg(long, env = "OUTRIGGER_PERIODIC_CHECK_INTERVAL", default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub periodic_check_interval: Duration,

    /// Rules that are synced at once.
    #[arg(long, env = "OUTRIGGER_MAX_CONCURRENT_RECONCILES", default_value_t = 10, value_name = "COUNT")]
    pub max_concurrent_reconciles: usize,

    /// Certificates, PEM, that the manager's certificate must be signed by.
    #[arg(long, env = "OUTRIGGER_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,

    /// The agent's own certificate, PEM. It tells the manager which tenant speaks.
    #[arg(long, env = "OUTRIGGER_CLIENT_CERT_FILE", requires = "client_key_file", value_name = "FILE")]
    pub client_cert_file: Option<PathBuf>,

    /// Private key of that certificate, PEM.
    #[arg(long, env = "OUTRIGGER_CLIENT_KEY_FILE", requires = "client_cert_file", value_name = "FILE")]
    pub client_key_file: Option<PathBuf>,

    /// Name that the manager's certificate must have, where it isn't the host of its address.
    #[arg(long, env = "OUTRIGGER_SERVER_NAME", value_name = "NAME")]
    pub server_name: Option<String>,

    /// Connect in plain text. Only to loopback addresses and socket files.
    #[arg(long, env = "OUTRIGGER_INSECURE")]
    pub insecure: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub cluster: ClusterArgs,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub process: ProcessArgs,
}

impl AgentArgs {
    /// Checks what a single setting can't tell.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.manager_address.is_plain() {
            if !self.insecure {
                bail!("--manager-address: plain text needs --insecure; use https://HOST:PORT");
            }
            if !self.manager_address.may_be_plain() {
                bail!("--insecure is only allowed to loopback or a socket file");
            }
        }
        Ok(())
    }
}

/// The namespaces of the command line; `None` where a ConfigMap names them.
pub(crate) fn scope(names: &[String], rules_namespace: &str) -> anyhow::Result<Option<Scope>> {
    let mut names = names.iter().map(String::as_str).filter(|name| !name.is_empty()).peekable();
    if names.peek().is_some() {
        return Scope::new(names).map(Some).map_err(|error| anyhow::anyhow!("--namespace: {error}"));
    }
    if rules_namespace.is_empty() {
        bail!(
            "--namespace is needed where --rules-namespace is empty: name the namespaces, or \"*\" for all"
        );
    }
    Ok(None)
}

/// The annotations that settings admit.
pub(crate) fn admitted(patterns: &[String]) -> anyhow::Result<Arc<[Pattern]>> {
    let given = patterns.iter().filter(|pattern| !pattern.is_empty());
    let read =
        given.map(|pattern| pattern.parse().map_err(|error| anyhow::anyhow!("--send-annotation: {error}")));
    read.collect()
}
