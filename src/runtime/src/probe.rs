//! Certificates as those see them who verify them: what a server shows, and whether it would be trusted.

use std::sync::Arc;

use anyhow::{Context, bail};
use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::expiry::Validity;

/// Certificates of one file, at most: bundles come from outside.
const MAX_CERTIFICATES: usize = 1000;

/// A certificate, and what becomes of it where it is verified.
#[derive(Debug, Clone)]
pub struct Shown {
    /// Its own, without those that signed it.
    pub certificate: CertificateDer<'static>,
    /// Whether it would be trusted.
    pub verdict: Verdict,
}

/// What becomes of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is trusted.
    Trusted,
    /// It isn't, for this reason.
    Untrusted(String),
    /// It isn't now: it, or who signed it, has ended or begins later.
    Untimely,
}

/// The certificates of a PEM text.
///
/// # Errors
/// When it isn't PEM, or far too long.
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

/// Whether who trusts these CAs would trust this chain as the server `name`, a DNS name or an IP address.
///
/// # Errors
/// When something of it can't be used.
pub fn server(chain: &[u8], ca: &[u8], name: &str) -> anyhow::Result<Shown> {
    let chain = certificates(chain)?;
    let (first, rest) = chain.split_first().context("there is no certificate in it")?;
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(ca)?, crate::tls::provider()).build()?;
    let verified = verifier.verify_server_cert(first, rest, &server_name(name)?, &[], UnixTime::now());
    Ok(Shown { certificate: first.clone(), verdict: verdict(verified.map(drop)) })
}

/// Whether who trusts these CAs would trust this chain as a client's.
///
/// # Errors
/// When something of it can't be used.
pub fn client(chain: &[u8], ca: &[u8]) -> anyhow::Result<Shown> {
    let chain = certificates(chain)?;
    let (first, rest) = chain.split_first().context("there is no certificate in it")?;
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(ca)?, crate::tls::provider()).build()?;
    let verified = verifier.verify_client_cert(first, rest, UnixTime::now());
    Ok(Shown { certificate: first.clone(), verdict: verdict(verified.map(drop)) })
}

/// What a server shows to who trusts these CAs and asks for `name`. Nothing is sent to one that isn't trusted.
///
/// # Errors
/// When it shows nothing, or the CAs can't be used.
pub async fn handshake<S>(stream: S, ca: &[u8], name: &str) -> anyhow::Result<Shown>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let inner = WebPkiServerVerifier::builder_with_provider(roots(ca)?, crate::tls::provider()).build()?;
    let noting = Arc::new(Noting { inner, shown: Mutex::new(None) });
    let config = ClientConfig::builder_with_provider(crate::tls::provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(noting.clone())
        .with_no_client_auth();
    let connected = TlsConnector::from(Arc::new(config)).connect(server_name(name)?, stream).await;
    if let Some(shown) = noting.shown.lock().take() {
        return Ok(shown);
    }
    connected?;
    bail!("it showed no certificate")
}

/// The usual verifier, which also tells what it has seen.
#[derive(Debug)]
struct Noting {
    inner: Arc<WebPkiServerVerifier>,
    shown: Mutex<Option<Shown>>,
}

impl ServerCertVerifier for Noting {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        let verdict = verdict(verified.as_ref().map(drop).map_err(Clone::clone));
        *self.shown.lock() = Some(Shown { certificate: end_entity.clone().into_owned(), verdict });
        verified
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

fn verdict(verified: Result<(), Error>) -> Verdict {
    use CertificateError as Wrong;
    match verified {
        Ok(()) => Verdict::Trusted,
        Err(Error::InvalidCertificate(
            Wrong::Expired
            | Wrong::ExpiredContext { .. }
            | Wrong::NotValidYet
            | Wrong::NotValidYetContext { .. },
        )) => Verdict::Untimely,
        Err(Error::InvalidCertificate(Wrong::UnknownIssuer | Wrong::BadSignature)) => {
            Verdict::Untrusted("none of the CAs that are trusted has signed it".to_owned())
        }
        Err(Error::InvalidCertificate(wrong)) => Verdict::Untrusted(wrong.to_string()),
        Err(other) => Verdict::Untrusted(other.to_string()),
    }
}

fn roots(pem: &[u8]) -> anyhow::Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate)?;
    }
    Ok(Arc::new(roots))
}

fn server_name(name: &str) -> anyhow::Result<ServerName<'static>> {
    ServerName::try_from(name.to_owned()).with_context(|| format!("{name:?} is no name of a server"))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair};

    use super::*;
    use crate::expiry::now;

    struct Made {
        issuer: CertifiedIssuer<'static, KeyPair>,
    }

    impl Made {
        fn new(name: &str) -> Self {
            let mut params = CertificateParams::new(vec![]).unwrap();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
        }

        fn ca(&self) -> Vec<u8> {
            self.issuer.pem().into_bytes()
        }

        fn leaf(&self, from: i64, to: i64) -> (Vec<u8>, KeyPair) {
            let mut params = CertificateParams::new(vec!["webhook.svc".to_owned()]).unwrap();
            let at = |offset| time::OffsetDateTime::from_unix_timestamp(now() + offset).unwrap();
            (params.not_before, params.not_after) = (at(from), at(to));
            let key = KeyPair::generate().unwrap();
            (params.signed_by(&key, &self.issuer).unwrap().pem().into_bytes(), key)
        }
    }

    #[test]
    fn servers_and_clients() {
        let (ours, other) = (Made::new("ours"), Made::new("other"));
        let good = ours.leaf(-60, 600).0;
        let ended = ours.leaf(-600, -60).0;
        let foreign = other.leaf(-60, 600).0;
        let both = [ours.ca(), other.ca()].concat();
        for (chain, ca, name, expected) in [
            (&good, &ours.ca(), "webhook.svc", "Trusted"),
            (&foreign, &both, "webhook.svc", "Trusted"),
            (&ended, &ours.ca(), "webhook.svc", "Untimely"),
            (&foreign, &ours.ca(), "webhook.svc", "none of the CAs"),
            (&good, &ours.ca(), "manager.svc", "manager.svc"),
        ] {
            let shown = server(chain, ca, name).unwrap();
            let told = format!("{:?}", shown.verdict);
            assert!(told.contains(expected), "{name}: {told}");
        }
        for (chain, expected) in [(&good, "Trusted"), (&ended, "Untimely"), (&foreign, "none of the CAs")] {
            let told = format!("{:?}", client(chain, &ours.ca()).unwrap().verdict);
            assert!(told.contains(expected), "{told}");
        }
        assert!(server(b"", &ours.ca(), "webhook.svc").is_err());
        assert!(server(&good, b"", "webhook.svc").is_err());
        let half = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(certificates(half).is_err());
    }

    #[tokio::test]
    async fn what_is_shown_is_told_also_when_it_is_not_trusted() {
        let (ours, other) = (Made::new("ours"), Made::new("other"));
        let (chain, key) = ours.leaf(-60, 600);
        let config = rustls::ServerConfig::builder_with_provider(crate::tls::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                certificates(&chain).unwrap(),
                rustls_pki_types::PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
            )
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        for (ca, trusted) in [(ours.ca(), true), (other.ca(), false)] {
            let (near, far) = tokio::io::duplex(16 * 1024);
            let (shown, _) = tokio::join!(handshake(near, &ca, "webhook.svc"), acceptor.accept(far));
            let shown = shown.unwrap();
            assert_eq!(shown.verdict == Verdict::Trusted, trusted, "{:?}", shown.verdict);
            assert_eq!(shown.certificate, certificates(&chain).unwrap()[0]);
        }
        let (near, far) = tokio::io::duplex(1024);
        drop(far);
        assert!(handshake(near, &ours.ca(), "webhook.svc").await.is_err());
    }
}
