//! Connections to the manager.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::Uri;
use http::uri::Authority;
use hyper_util::rt::TokioIo;
use outrigger_runtime::tls::ClientTls;
use rustls_pki_types::ServerName;
use tokio::net::UnixStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::proxy::{self, Proxy};

/// Address of the manager: `https://HOST:PORT`, `http://HOST:PORT` or `unix:///PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// TLS.
    Https {
        /// Host and port.
        authority: String,
        /// The expected name in the certificate.
        host: String,
    },
    /// Plain text.
    Http(String),
    /// Plain text over a Unix socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix://") {
            return Ok(Self::Unix(path.into()));
        }
        let uri: Uri = text.parse().map_err(|e| format!("{text:?} is not an address: {e}"))?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let (Some(authority), Some(_)) = (uri.authority(), uri.port_u16()) else {
            return Err(format!(
                "{text:?} is not an address: use https://HOST:PORT, http://HOST:PORT or unix:///PATH"
            ));
        };
        match uri.scheme_str() {
            Some("https") => Ok(Self::Https { authority: authority.to_string(), host }),
            Some("http") => Ok(Self::Http(authority.to_string())),
            _ => Err(format!("{text:?} is not an address: it must start with https://, http:// or unix://")),
        }
    }
}

impl Address {
    /// Reports whether the connection is not encrypted.
    pub(crate) fn is_plain(&self) -> bool {
        !matches!(self, Self::Https { .. })
    }

    /// Reports whether plain text is allowed, because it doesn't leave the machine.
    pub(crate) fn may_be_plain(&self) -> bool {
        matches!(self, Self::Unix(_)) || self.is_loopback()
    }

    /// Reports whether the host is a loopback address: `127.example.com` is a DNS name.
    pub(crate) fn is_loopback(&self) -> bool {
        let (Self::Https { authority, .. } | Self::Http(authority)) = self else { return false };
        let Ok(authority) = authority.parse::<Authority>() else { return false };
        let host = authority.host().trim_matches(['[', ']']);
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

/// Opens connections to the manager. Cheap to clone.
#[derive(Clone)]
pub struct Connector(Arc<dyn Fn() -> BoxFuture<'static, anyhow::Result<Channel>> + Send + Sync>);

impl Connector {
    /// Creates a connector that calls `open`.
    pub fn new(
        open: impl Fn() -> BoxFuture<'static, anyhow::Result<Channel>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(open))
    }

    /// Creates a connector that calls [`connect`], through a proxy if there is one.
    pub(crate) fn to(
        address: Address,
        tls: ClientTls,
        server_name: Option<String>,
        proxy: Option<Proxy>,
    ) -> Self {
        let target = Arc::new((address, tls, server_name, proxy));
        Self::new(move || {
            let target = target.clone();
            async move { through(&target.0, &target.1, target.2.as_deref(), target.3.as_ref()).await }.boxed()
        })
    }

    /// Opens a connection, as [`connect`] does.
    pub(crate) async fn connect(&self) -> anyhow::Result<Channel> {
        (self.0)().await
    }
}

/// The settings of every connection to the manager.
pub fn endpoint() -> Endpoint {
    // A half-open connection is detected within 20 s, as by the server.
    Endpoint::from_static("http://manager.outrigger")
        .connect_timeout(Duration::from_secs(10))
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true)
        .tcp_nodelay(true)
}

/// Connects to the manager. The certificate files are read for each connection, so that renewed certificates are used.
///
/// # Errors
/// If the files are invalid, the manager is unreachable, or its certificate is not trusted.
pub async fn connect(
    address: &Address,
    tls: &ClientTls,
    server_name: Option<&str>,
) -> anyhow::Result<Channel> {
    through(address, tls, server_name, None).await
}

/// As [`connect`], through a proxy if there is one.
async fn through(
    address: &Address,
    tls: &ClientTls,
    server_name: Option<&str>,
    proxy: Option<&Proxy>,
) -> anyhow::Result<Channel> {
    let endpoint = endpoint();
    match address {
        Address::Unix(path) => {
            let path = path.clone();
            let connector = service_fn(move |_: Uri| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            });
            Ok(endpoint.connect_with_connector(connector).await?)
        }
        Address::Http(authority) => {
            let authority = authority.clone();
            let connector = service_fn(move |_: Uri| {
                let authority = authority.clone();
                async move { proxy::open(&authority, None).await.map(TokioIo::new) }
            });
            Ok(endpoint.connect_with_connector(connector).await?)
        }
        Address::Https { authority, host } => {
            if tls.ca.as_os_str().is_empty() {
                bail!("--ca-file is required for https");
            }
            let config = TlsConnector::from(Arc::new(tls.config(&[b"h2"])?));
            let name = server_name.unwrap_or(host).to_owned();
            let name = ServerName::try_from(name.clone())
                .with_context(|| format!("{name:?} is not a server name"))?;
            let (authority, proxy) = (authority.clone(), proxy.cloned());
            let connector = service_fn(move |_: Uri| {
                let (authority, config, name) = (authority.clone(), config.clone(), name.clone());
                let proxy = proxy.clone();
                async move {
                    let stream = proxy::open(&authority, proxy.as_ref()).await?;
                    anyhow::Ok(TokioIo::new(config.connect(name, stream).await?))
                }
            });
            // tonic wraps the connector's error and omits it from its own message.
            endpoint
                .connect_with_connector(connector)
                .await
                .map_err(|e| anyhow::Error::from(e).context("connecting"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let parse = |text: &str| text.parse::<Address>();
        assert_eq!(
            parse("https://gw.example:9090").unwrap(),
            Address::Https { authority: "gw.example:9090".into(), host: "gw.example".into() }
        );
        assert_eq!(parse("unix:///run/x").unwrap(), Address::Unix("/run/x".into()));
        assert!(parse("http://127.0.0.1:1").unwrap().may_be_plain());
        assert!(!parse("http://10.0.0.1:1").unwrap().may_be_plain());
        assert!(parse("http://[::1]:1").unwrap().may_be_plain());
        assert!(parse("http://localhost:1").unwrap().may_be_plain());
        assert!(!parse("http://127.example.com:1").unwrap().may_be_plain());
        assert!(!parse("http://127.0.0.1@example.com:1").unwrap().may_be_plain());
        for bad in ["gw:9090", "https://gw", "ftp://gw:1", ""] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
