//! Who calls: names out of a verified client certificate.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outrigger_core::tenant::Identity;
use outrigger_runtime::serve::Peer;
use rustls_pki_types::CertificateDer;
use tonic::Status;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// Most DNS names of a certificate that are looked at.
const MAX_DNS_NAMES: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Whoever reaches an address that is served in plain text: loopback or a socket file, and only when an administrator
    /// has asked for that.
    Local,
    /// The holder of a client certificate.
    Certificate {
        /// What it is called: its only URI SAN, or its DNS SANs.
        names: Vec<Identity>,
        not_after: SystemTime,
    },
}

impl Caller {
    /// The caller at the other end of a connection. `plain`: connections are in plain text, because the settings say so. Returns
    /// UNAUTHENTICATED when there is no certificate, or it is none of a client.
    pub(crate) fn of(peer: Option<&Peer>, plain: bool) -> Result<Self, Status> {
        if plain {
            return Ok(Self::Local);
        }
        let leaf = peer.and_then(|peer| peer.certificates.first());
        let leaf = leaf.ok_or_else(|| Status::unauthenticated("a client certificate is needed"))?;
        read(leaf).map_err(|why| Status::unauthenticated(format!("client certificate: {why}")))
    }

    pub(crate) fn not_after(&self) -> Option<SystemTime> {
        match self {
            Self::Local => None,
            Self::Certificate { not_after, .. } => Some(*not_after),
        }
    }

    /// Whether it bears one of these names.
    pub(crate) fn is_one_of(&self, identities: &[Identity]) -> bool {
        match self {
            Self::Local => false,
            Self::Certificate { names, .. } => names.iter().any(|name| identities.contains(name)),
        }
    }
}

impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Certificate { names, .. } if names.is_empty() => f.write_str("nameless certificate"),
            Self::Certificate { names, .. } => {
                let names: Vec<&str> = names.iter().map(Identity::as_str).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

/// The names of a certificate's holder; empty where it is not a client's certificate.
pub(crate) fn name(certificate: &CertificateDer<'_>) -> String {
    read(certificate).map(|caller| caller.to_string()).unwrap_or_default()
}

/// Reads a certificate whose chain, dates and purpose TLS has verified. That it is no CA's and names exactly one workload
/// is what an X.509-SVID has to say besides (SPIFFE X509-SVID, sections 2 and 4); the former is checked again, because
/// everything else rests on it.
fn read(certificate: &CertificateDer<'_>) -> Result<Caller, String> {
    let (_, certificate) =
        X509Certificate::from_der(certificate).map_err(|e| format!("can't be parsed: {e}"))?;
    if certificate.is_ca() {
        return Err("is a CA's, not a client's".to_owned());
    }
    let usage = certificate.key_usage().map_err(|e| format!("its key usage can't be read: {e}"))?;
    if usage.is_some_and(|usage| usage.value.key_cert_sign() || usage.value.crl_sign()) {
        return Err("its key may sign certificates, so it is not a client's".to_owned());
    }
    let alternatives = certificate
        .subject_alternative_name()
        .map_err(|e| format!("its subject alternative names can't be read: {e}"))?;
    let general = alternatives.as_ref().map_or(&[][..], |names| names.value.general_names.as_slice());
    let uris: Vec<&str> = general
        .iter()
        .filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        })
        .collect();
    let names = match uris.as_slice() {
        [] => dns_names(general)?,
        [one] => vec![Identity::new(one).map_err(|e| format!("its URI SAN is no SPIFFE id: {e}"))?],
        many => return Err(format!("has {} URI SANs, exactly one is allowed", many.len())),
    };
    let end = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or_default();
    Ok(Caller::Certificate { names, not_after: UNIX_EPOCH + Duration::from_secs(end) })
}

fn dns_names(general: &[GeneralName<'_>]) -> Result<Vec<Identity>, String> {
    let names: Vec<&str> = general
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(*name),
            _ => None,
        })
        .collect();
    if names.len() > MAX_DNS_NAMES {
        return Err(format!("has {} DNS SANs, at most {MAX_DNS_NAMES} are allowed", names.len()));
    }
    // A wildcard names no caller.
    Ok(names.into_iter().filter_map(|name| Identity::new(name).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, KeyUsagePurpose, SanType};

    fn certificate(change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        change(&mut params);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn uri(name: &str) -> SanType {
        SanType::URI(name.try_into().unwrap())
    }

    fn dns(name: &str) -> SanType {
        SanType::DnsName(name.try_into().unwrap())
    }

    fn names(sans: Vec<SanType>) -> Result<Vec<String>, String> {
        match read(&certificate(|params| params.subject_alt_names = sans))? {
            Caller::Certificate { names, .. } => Ok(names.iter().map(ToString::to_string).collect()),
            Caller::Local => unreachable!(),
        }
    }

    #[test]
    fn the_one_uri_counts_and_else_the_dns_names() {
        assert_eq!(names(vec![uri("spiffe://x/a"), dns("b.example")]).unwrap(), ["spiffe://x/a"]);
        assert_eq!(names(vec![dns("b.example"), dns("*.example"), dns("c")]).unwrap(), ["b.example", "c"]);
        assert_eq!(names(vec![]).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn what_is_no_clients_certificate_is_refused() {
        assert!(names(vec![uri("spiffe://x/a"), uri("spiffe://x/b")]).unwrap_err().contains("2 URI SANs"));
        assert!(names(vec![uri("https://x/a")]).unwrap_err().contains("no SPIFFE id"));
        assert!(names((0..33).map(|i| dns(&format!("n{i}"))).collect()).unwrap_err().contains("33 DNS SANs"));
        let ca = certificate(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
        assert!(read(&ca).unwrap_err().contains("is a CA's"));
        let signer = certificate(|params| params.key_usages = vec![KeyUsagePurpose::KeyCertSign]);
        assert!(read(&signer).unwrap_err().contains("may sign"));
        assert!(read(&CertificateDer::from(vec![1, 2, 3])).unwrap_err().contains("can't be parsed"));
    }

    #[test]
    fn without_a_certificate_nobody_is_known() {
        assert_eq!(Caller::of(None, true).unwrap(), Caller::Local);
        assert_eq!(Caller::of(None, false).unwrap_err().code(), tonic::Code::Unauthenticated);
        let empty = Peer::default();
        assert_eq!(Caller::of(Some(&empty), false).unwrap_err().code(), tonic::Code::Unauthenticated);
    }
}
