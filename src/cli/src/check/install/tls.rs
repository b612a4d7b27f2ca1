//! Certificates, as judges take them, and connections to who shows them.

use std::time::Duration;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::Api;
use outrigger_runtime::expiry::Validity;
use outrigger_runtime::probe::{self, Shown, Verdict, Who};
use rustls_pki_types::CertificateDer;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::check::install::judge::certificates::{Bundle, Life};
use crate::check::install::judge::reach::Outcome;

/// How long a connection may take until a certificate is shown.
const PATIENCE: Duration = Duration::from_secs(10);

/// Somebody who serves TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    /// A DNS name or an IP address.
    pub(super) host: String,
    pub(super) port: u16,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Address {
    /// That of an `https` URL.
    pub(super) fn of_url(url: &str) -> Option<Self> {
        let uri: http::Uri = url.parse().ok()?;
        let host = uri.host()?.trim_matches(['[', ']']).to_owned();
        (uri.scheme_str() == Some("https")).then(|| Self { host, port: uri.port_u16().unwrap_or(443) })
    }

    /// What is shown there to who trusts these CAs and asks for `name`.
    pub(super) async fn shown(&self, who: Who, ca: &[u8], name: &str) -> anyhow::Result<Shown> {
        let connect = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            probe::handshake(who, stream, ca, name).await
        };
        in_time(connect).await
    }
}

/// What a port of a Pod shows to an API server that trusts these CAs and asks for `name`, reached through the API server.
pub(super) async fn forwarded(
    client: &Client,
    (namespace, pod, port): (&str, &str, u16),
    ca: &[u8],
    name: &str,
) -> anyhow::Result<Shown> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let connect = async {
        let forwarder = pods.portforward(pod, &[port]).await;
        let mut forwarder = forwarder.map_err(|error| match error {
            kube::Error::Api(status) => anyhow::anyhow!("{}", status.message),
            other => other.into(),
        })?;
        let stream = forwarder.take_stream(port).context("no stream")?;
        let shown = probe::handshake(Who::ApiServer, stream, ca, name).await;
        forwarder.abort();
        shown
    };
    in_time(connect).await
}

async fn in_time<T>(connect: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    match tokio::time::timeout(PATIENCE, connect).await {
        Ok(done) => done,
        Err(_) => bail!("no answer within {} s", PATIENCE.as_secs()),
    }
}

/// What came of a connection, or of a look at files in its place.
pub(super) fn outcome(shown: &anyhow::Result<Shown>) -> Outcome {
    match shown {
        Ok(shown) => judged(&shown.verdict),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// What becomes of a certificate, as judges take it.
pub(super) fn judged(verdict: &Verdict) -> Outcome {
    match verdict {
        Verdict::Trusted => Outcome::Trusted,
        Verdict::Untrusted(why) => Outcome::Untrusted(why.clone()),
        Verdict::Untimely(why) => Outcome::Untimely(why.clone()),
        Verdict::CaUntimely => Outcome::CaUntimely,
    }
}

/// A CA bundle, base64 as in a webhook configuration, as PEM.
pub(super) fn decoded(bundle: &str) -> Result<Vec<u8>, Bundle> {
    STANDARD.decode(bundle).map_err(|error| Bundle::Unreadable(error.to_string()))
}

/// What is in a CA bundle.
pub(super) fn bundle(pem: &[u8]) -> Bundle {
    if pem.iter().all(u8::is_ascii_whitespace) {
        return Bundle::Empty;
    }
    match probe::certificates(pem) {
        Ok(all) => Bundle::Of(all.iter().filter_map(|certificate| life(certificate).ok()).collect()),
        Err(error) => Bundle::Unreadable(format!("{error:#}")),
    }
}

/// The dates of a certificate. The thresholds are those of the running parts.
pub(super) fn life(certificate: &CertificateDer<'_>) -> anyhow::Result<Life> {
    let validity = Validity::of(certificate)?;
    let date = |seconds| Timestamp::from_second(seconds).map_or_else(|_| "?".to_owned(), |at| at.to_string());
    Ok(Life {
        not_before: validity.not_before,
        not_after: validity.not_after,
        warning: validity.warning(),
        end: date(validity.not_after),
        beginning: date(validity.not_before),
        renewal: date(validity.renewal()),
    })
}

/// A key of a Secret or a ConfigMap.
pub(super) fn data(object: &Value, key: &str) -> Option<Vec<u8>> {
    let value = object.get("data")?.get(key)?.as_str()?;
    if object.get("kind").and_then(Value::as_str) == Some("Secret") {
        STANDARD.decode(value).ok()
    } else {
        Some(value.as_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests;
