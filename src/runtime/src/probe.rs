//! Verification of certificates from the view of a client: which certificate a server presents, and whether it is trusted.

use std::sync::Arc;

use anyhow::{Context, bail};
use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::expiry::Validity;

/// Maximum number of certificates in a file, because bundles come from outside.
const MAX_CERTIFICATES: usize = 1000;

/// A certificate, and the result of its verification.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The certificate itself, without its chain.
    pub certificate: CertificateDer<'static>,
    /// The result of the verification.
    pub verdict: Verdict,
}

/// The result of verifying a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is trusted.
    Trusted,
    /// It is not trusted, for this reason.
    Untrusted(String),
    /// It, or a certificate of its chain, has expired or isn't valid yet, for this reason.
    Untimely(String),
    /// The CA has expired or isn't valid yet, and the client checks that.
    CaUntimely,
}

/// The client that verifies a server certificate. Clients have different rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// An agent, with rustls: the validity of CAs isn't checked.
    Agent,
    /// An API server, with Go's crypto/x509: a CA has to be valid now, a CA that can't be used is ignored, and a certificate that is
    /// itself in the bundle is trusted.
    ApiServer,
}

/// The certificates of a PEM text.
///
/// # Errors
/// If it isn't PEM, or has too many certificates.
pub fn certificates(pem: &[u8]) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let mut all = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        if all.len() == MAX_CERTIFICATES {
            bail!("has more than {MAX_CERTIFICATES} certificates");
        }
        let certificate = certificate?;
        Validity::of(&certificate)?;
        all.push(certificate);
    }
    Ok(all)
}

/// The number of CAs that can't be used for verification.
///
/// # Errors
/// If it isn't PEM, or has too many certificates.
pub fn unusable(ca: &[u8]) -> anyhow::Result<usize> {
    let is_unusable = |of: &CertificateDer<'static>| RootCertStore::empty().add(of.clone()).is_err();
    Ok(certificates(ca)?.iter().filter(|of| is_unusable(of)).count())
}

/// Verifies this chain of a server called `name`, a DNS name or an IP address, with this CA bundle.
///
/// # Errors
/// If the chain, the bundle or the name is invalid.
pub fn server(who: Who, chain: &[u8], ca: &[u8], name: &str) -> anyhow::Result<Shown> {
    let chain = certificates(chain)?;
    let (first, rest) = chain.split_first().context("there is no certificate in it")?;
    let verdict = ClientRules::new(who, ca)?.verdict(first, rest, &server_name(name)?, UnixTime::now());
    Ok(Shown { certificate: first.clone(), verdict })
}

/// Verifies this chain of a client with this CA bundle.
///
/// # Errors
/// If the chain or the bundle is invalid.
pub fn client(chain: &[u8], ca: &[u8]) -> anyhow::Result<Shown> {
    let chain = certificates(chain)?;
    let (first, rest) = chain.split_first().context("there is no certificate in it")?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate)?;
    }
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots.into(), crate::tls::provider()).build()?;
    let now = UnixTime::now();
    let verified = verifier.verify_client_cert(first, rest, now).map(drop);
    Ok(Shown { certificate: first.clone(), verdict: verdict(verified, first, rest, now) })
}

/// Opens a TLS connection to the server `name`, and verifies its certificate with this CA bundle. No data is sent.
///
/// # Errors
/// If the server presents no certificate, or the bundle is invalid.
pub async fn handshake<S>(who: Who, stream: S, ca: &[u8], name: &str) -> anyhow::Result<Shown>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (rules, provider) = (ClientRules::new(who, ca)?, crate::tls::provider());
    let recorder = Arc::new(RecordingVerifier { rules, provider: provider.clone(), shown: Mutex::new(None) });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(recorder.clone())
        .with_no_client_auth();
    let connected = TlsConnector::from(Arc::new(config)).connect(server_name(name)?, stream).await;
    if let Some(shown) = recorder.shown.lock().take() {
        return Ok(shown);
    }
    connected?;
    bail!("the server presented no certificate")
}

#[derive(Debug)]
struct ClientRules {
    who: Who,
    /// Verifiers with the CAs that are valid now, and with all CAs. `None`: there are none that can be used.
    in_force: Option<Arc<WebPkiServerVerifier>>,
    all: Option<Arc<WebPkiServerVerifier>>,
    /// The CAs themselves.
    trusted: Vec<CertificateDer<'static>>,
}

impl ClientRules {
    fn new(who: Who, ca: &[u8]) -> anyhow::Result<Self> {
        let trusted = certificates(ca)?;
        let now = UnixTime::now();
        let (mut all, mut in_force) = (RootCertStore::empty(), RootCertStore::empty());
        for certificate in &trusted {
            match all.add(certificate.clone()) {
                Ok(()) if untimely(certificate, now).is_none() => in_force.add(certificate.clone())?,
                Err(error) if who == Who::Agent => return Err(error.into()),
                Ok(()) | Err(_) => {}
            }
        }
        if who == Who::Agent && all.is_empty() {
            bail!("there is no CA in it");
        }
        let verifier = |roots: RootCertStore| {
            let build =
                || WebPkiServerVerifier::builder_with_provider(roots.clone().into(), crate::tls::provider());
            (!roots.is_empty()).then(|| build().build()).transpose()
        };
        Ok(Self { who, in_force: verifier(in_force)?, all: verifier(all)?, trusted })
    }

    fn verdict(
        &self,
        first: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Verdict {
        let by = |verifier: Option<&Arc<WebPkiServerVerifier>>| match verifier {
            Some(verifier) => {
                let verified = verifier.verify_server_cert(first, rest, name, &[], now).map(drop);
                verdict(verified, first, rest, now)
            }
            None => Verdict::Untrusted("none of the CAs that are trusted can be used".to_owned()),
        };
        if self.who == Who::Agent {
            return by(self.all.as_ref());
        }
        if self.trusted.contains(first) {
            let named =
                ParsedCertificate::try_from(first).and_then(|parsed| verify_server_name(&parsed, name));
            return match untimely(first, now) {
                Some(why) => Verdict::Untimely(format!("it {why}")),
                None => verdict(named, first, rest, now),
            };
        }
        match (by(self.in_force.as_ref()), by(self.all.as_ref())) {
            (Verdict::Trusted, _) => Verdict::Trusted,
            (_, Verdict::Trusted) => Verdict::CaUntimely,
            (_, Verdict::Untimely(why)) => Verdict::Untimely(why),
            // The result with all CAs says more.
            (_, otherwise) => otherwise,
        }
    }
}

#[derive(Debug)]
struct RecordingVerifier {
    rules: ClientRules,
    provider: Arc<CryptoProvider>,
    shown: Mutex<Option<Shown>>,
}

impl ServerCertVerifier for RecordingVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verdict = self.rules.verdict(end_entity, intermediates, server_name, now);
        let is_trusted = verdict == Verdict::Trusted;
        *self.shown.lock() = Some(Shown { certificate: end_entity.clone().into_owned(), verdict });
        if is_trusted {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::UnknownIssuer.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn verdict(
    verified: Result<(), Error>,
    first: &CertificateDer<'_>,
    rest: &[CertificateDer<'_>],
    now: UnixTime,
) -> Verdict {
    use CertificateError as Wrong;
    match verified {
        Ok(()) => Verdict::Trusted,
        Err(Error::InvalidCertificate(
            wrong @ (Wrong::Expired
            | Wrong::ExpiredContext { .. }
            | Wrong::NotValidYet
            | Wrong::NotValidYetContext { .. }),
        )) => {
            let beside = || rest.iter().zip(2..).find_map(|(of, n)| Some((n, untimely(of, now)?)));
            Verdict::Untimely(match (untimely(first, now), beside()) {
                (Some(why), _) => format!("it {why}"),
                (None, Some((n, why))) => format!("certificate {n} of its chain {why}"),
                (None, None) => wrong.to_string(),
            })
        }
        Err(Error::InvalidCertificate(Wrong::UnknownIssuer | Wrong::BadSignature)) => {
            Verdict::Untrusted("none of the CAs that are trusted has signed it".to_owned())
        }
        Err(Error::InvalidCertificate(wrong)) => Verdict::Untrusted(wrong.to_string()),
        Err(other) => Verdict::Untrusted(other.to_string()),
    }
}

/// Why a certificate isn't valid at a time, if it isn't.
fn untimely(certificate: &CertificateDer<'_>, now: UnixTime) -> Option<&'static str> {
    let Validity { not_before, not_after } = Validity::of(certificate).ok()?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    match now {
        _ if now > not_after => Some("has ended"),
        _ if now < not_before => Some("isn't good yet"),
        _ => None,
    }
}

fn server_name(name: &str) -> anyhow::Result<ServerName<'static>> {
    ServerName::try_from(name.to_owned()).with_context(|| format!("{name:?} is not a valid server name"))
}

#[cfg(test)]
mod tests;
