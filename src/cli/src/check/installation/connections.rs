//! Connections to webhooks and managers, as far as their certificates.

use std::time::Duration;

use anyhow::bail;
use outrigger_runtime::probe::{self, Shown, Who};
use tokio::net::TcpStream;

/// How long a connection may take until a certificate is shown.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Address {
    pub(super) fn of_url(url: &str) -> Option<Self> {
        let uri: http::Uri = url.parse().ok()?;
        let host = uri.host()?.trim_matches(['[', ']']).to_owned();
        (uri.scheme_str() == Some("https")).then(|| Self { host, port: uri.port_u16().unwrap_or(443) })
    }

    /// The certificate that is shown there to a client that trusts these CAs and asks for `name`.
    pub(super) async fn shown(&self, who: Who, ca: &[u8], name: &str) -> anyhow::Result<Shown> {
        let connect = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            probe::handshake(who, stream, ca, name).await
        };
        match tokio::time::timeout(PATIENCE, connect).await {
            Ok(done) => done,
            Err(_) => bail!("no answer within {} s", PATIENCE.as_secs()),
        }
    }
}
