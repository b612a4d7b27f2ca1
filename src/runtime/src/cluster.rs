//! The cluster that a process connects to.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
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
        let mut config = self.named().await?;
        let environment = ["HTTPS_PROXY", "https_proxy"].map(|name| std::env::var(name).unwrap_or_default());
        config.proxy_url = proxy(config.proxy_url, &environment, &Matcher::from_env(), &config.cluster_url);
        Ok(config)
    }

    async fn named(&self) -> anyhow::Result<Config> {
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

/// The proxy for an API server, as kubectl decides: one that the kubeconfig names, or that of the environment unless `NO_PROXY`
/// excludes the API server or it is on this machine. The library compares `NO_PROXY` with the name of the proxy instead.
fn proxy(found: Option<Uri>, environment: &[String], matcher: &Matcher, server: &Uri) -> Option<Uri> {
    let is_from_environment = found
        .as_ref()
        .is_some_and(|found| environment.iter().any(|url| url.parse().ok().as_ref() == Some(found)));
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    found.filter(|_| !is_from_environment || !is_here && matcher.intercept(server).is_some())
}

/// Whether a cluster is the one of the Pod's service account, if there is one.
fn is_same(config: &Config, own: Option<&Config>) -> bool {
    own.is_some_and(|own| own.cluster_url == config.cluster_url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_s_proxy_has_exceptions_and_the_kubeconfig_s_has_none() {
        let url = "http://proxy.example:3128";
        let to = |found: &str, server: &str| {
            let matcher =
                Matcher::builder().https(url.to_owned()).no("10.0.0.0/8,excluded.example".to_owned()).build();
            let found = Some(found.parse().unwrap());
            proxy(found, &[url.to_owned()], &matcher, &server.parse().unwrap()).is_some()
        };
        assert!(to(url, "https://api.example:6443"));
        for excluded in
            ["10.1.2.3:443", "excluded.example", "a.excluded.example", "127.0.0.1:1", "[::1]:1", "localhost"]
        {
            assert!(!to(url, &format!("https://{excluded}")), "{excluded}");
            assert!(to("http://own.example:1", &format!("https://{excluded}")), "{excluded}");
        }
        let matcher = Matcher::builder().build();
        assert_eq!(proxy(None, &[], &matcher, &"https://api.example".parse().unwrap()), None);
    }

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
