//! The cluster that a process connects to.

use std::future::ready;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request, Response, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use kube::client::{Body, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use parking_lot::Mutex;
use tower::util::BoxCloneService;
use tower::{BoxError, Layer, ServiceExt, service_fn};

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

    /// The bearer token of the configuration's user, for servers that review tokens as the API server does; `None` if the user is
    /// identified by other means, as by a certificate.
    ///
    /// # Errors
    /// If no configuration is found, or it is invalid.
    pub async fn token(&self) -> anyhow::Result<Option<UserToken>> {
        UserToken::of(&self.config().await?)
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

/// The bearer token of a user. One that ends is obtained again, as for calls of the API server.
pub struct UserToken(Mutex<BoxCloneService<Request<Body>, Response<Option<HeaderValue>>, BoxError>>);

impl UserToken {
    /// The library hands tokens out to requests only, so that each call of this makes one, which goes nowhere.
    fn of(config: &Config) -> anyhow::Result<Option<Self>> {
        let layer = config.auth_layer().context("the user's credentials can't be used")?;
        let echo = service_fn(|request: Request<Body>| {
            let header = request.headers().get(AUTHORIZATION).cloned();
            ready(Ok::<_, BoxError>(Response::new(header)))
        });
        Ok(layer.map(|layer| Self(Mutex::new(BoxCloneService::new(layer.layer(echo))))))
    }

    /// The value of the header `Authorization`.
    ///
    /// # Errors
    /// If there is no token now.
    pub async fn header(&self) -> anyhow::Result<HeaderValue> {
        let service = self.0.lock().clone();
        let answer = service.oneshot(Request::new(Body::empty())).await;
        let header =
            answer.map_err(|error| anyhow::anyhow!("the user's token can't be obtained: {error}"))?;
        let header = header.into_body().filter(|header| header.as_bytes().starts_with(b"Bearer "));
        header.context("the user has no bearer token")
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

    #[tokio::test]
    async fn only_a_bearer_token_is_handed_out() {
        let of = async |auth: serde_json::Value| {
            let mut config = Config::new("https://10.0.0.1:443".parse().unwrap());
            config.auth_info = serde_json::from_value(auth).unwrap();
            match UserToken::of(&config).unwrap() {
                None => None,
                Some(token) => Some(token.header().await.map_err(|error| error.to_string())),
            }
        };
        let token = of(serde_json::json!({"token": "a.b"})).await.unwrap().unwrap();
        assert_eq!((token.to_str().unwrap(), token.is_sensitive()), ("Bearer a.b", true));
        assert_eq!(of(serde_json::json!({})).await, None);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "from.file").unwrap();
        let token = of(serde_json::json!({"tokenFile": file.path()})).await.unwrap().unwrap();
        assert_eq!(token.to_str().unwrap(), "Bearer from.file");
        let basic = of(serde_json::json!({"username": "jane", "password": "x"})).await.unwrap();
        assert_eq!(basic.unwrap_err(), "the user has no bearer token");
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
