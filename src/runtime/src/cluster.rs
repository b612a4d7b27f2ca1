//! The cluster that a process connects to.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::calls;

/// Settings of the cluster.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Kubeconfig of the cluster. Default: the service account of the Pod, else $KUBECONFIG or ~/.kube/config.
    #[arg(long, env = "OUTRIGGER_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Context in the kubeconfig. Default: its current context.
    #[arg(long, env = "OUTRIGGER_CONTEXT", value_name = "NAME")]
    pub context: Option<String>,
}

impl ClusterArgs {
    /// A client of the cluster, with the deadlines of [`calls`].
    ///
    /// # Errors
    /// If no configuration is found, or it is invalid.
    pub async fn client(&self) -> anyhow::Result<Client> {
        let config = self.config().await?;
        calls::client(config).context("the cluster's configuration can't be used")
    }

    /// Whether it is the cluster in which this process runs as a Pod.
    pub async fn is_own(&self) -> bool {
        self.config().await.is_ok_and(|config| is_same(&config, Config::incluster().ok().as_ref()))
    }

    async fn config(&self) -> anyhow::Result<Config> {
        let options = || KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        Ok(if let Some(file) = &self.kubeconfig {
            let kubeconfig = Kubeconfig::read_from(file)
                .with_context(|| format!("--kubeconfig {} can't be read", file.display()))?;
            Config::from_custom_kubeconfig(kubeconfig, &options())
                .await
                .with_context(|| format!("--kubeconfig {} can't be used", file.display()))?
        } else if self.context.is_some() {
            Config::from_kubeconfig(&options()).await.context("the kubeconfig can't be used")?
        } else {
            Config::infer().await.context("no cluster is configured; use --kubeconfig")?
        })
    }
}

/// Whether a cluster is the one of the Pod's service account, if there is one.
fn is_same(config: &Config, own: Option<&Config>) -> bool {
    own.is_some_and(|own| own.cluster_url == config.cluster_url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_cluster_of_the_service_account_is_own() {
        let of = |url: &'static str| Config::new(url.parse().unwrap());
        let own = of("https://10.0.0.1:443");
        assert!(is_same(&of("https://10.0.0.1:443"), Some(&own)));
        // $KUBECONFIG of a Pod may name any cluster.
        assert!(!is_same(&of("https://10.0.0.2:443"), Some(&own)));
        assert!(!is_same(&of("https://10.0.0.1:443"), None));
    }
}
