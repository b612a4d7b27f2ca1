//! The content of the Secret: the serving certificate, the CAs, and the CA bundle.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context, bail};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::extensions::GeneralName;

use crate::expiry::Validity;

/// The serving certificate and its key.
pub(super) const LEAF: (&str, &str) = ("tls.crt", "tls.key");
/// The CA bundle.
pub(super) const CA_BUNDLE: &str = "ca.crt";
/// The current CA and its key.
pub(super) const SIGNER: (&str, &str) = ("signer.crt", "signer.key");
/// The next CA and its key.
pub(super) const NEXT: (&str, &str) = ("next.crt", "next.key");
/// Since when all targets have contained the next CA, Unix time in seconds.
pub(super) const NEXT_TRUSTED_SINCE: &str = "next-trusted-since";
/// Inherited CAs of others, and until when they stay trusted, Unix time in seconds.
pub(super) const INHERITED: (&str, &str) = ("inherited.crt", "inherited-until");
/// All keys, so that keys which are no longer needed are removed.
const KEYS: [&str; 10] = [
    LEAF.0,
    LEAF.1,
    CA_BUNDLE,
    SIGNER.0,
    SIGNER.1,
    NEXT.0,
    NEXT.1,
    NEXT_TRUSTED_SINCE,
    INHERITED.0,
    INHERITED.1,
];

/// Maximum number of CAs in the bundle; the oldest are left out. Each stays until it expires, and is replaced after two thirds of
/// its lifetime.
const MAX_TRUSTED: usize = 8;

/// Maximum number and size in bytes of the certificates that are read from a bundle of others.
const MAX_FOUND: (usize, usize) = (32, 16 << 10);

/// A certificate as PEM, with its parsed fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Certificate {
    pub(super) pem: String,
    pub(super) validity: Validity,
    pub(super) subject: String,
    pub(super) issuer: String,
    /// DNS names and IP addresses.
    pub(super) names: Vec<String>,
}

/// A certificate with its private key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) certificate: Certificate,
    pub(super) key: String,
}

/// Leaves out the private key.
impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// A CA that will sign once it has been published for long enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NextCa {
    pub(super) ca: Pair,
    /// Since when all targets have contained it, Unix time in seconds.
    pub(super) published_since: Option<i64>,
}

/// CAs of others that stay trusted for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Inherited {
    pub(super) cas: Vec<Certificate>,
    /// Until when they are trusted, Unix time in seconds.
    pub(super) until: i64,
}

/// The certificates that all replicas share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    pub(super) leaf: Pair,
    pub(super) signer: Pair,
    pub(super) next: Option<NextCa>,
    /// Former CAs, whose keys have been deleted.
    pub(super) former: Vec<Certificate>,
    pub(super) inherited: Option<Inherited>,
}

impl Certificate {
    /// The first certificate in a PEM text.
    pub(super) fn read(pem: &str) -> anyhow::Result<Self> {
        Self::all(pem)?.into_iter().next().context("there is no certificate in it")
    }

    fn all(pem: &str) -> anyhow::Result<Vec<Self>> {
        CertificateDer::pem_slice_iter(pem.as_bytes())
            .map(|der| Self::parse(&der.context("invalid PEM")?))
            .collect()
    }

    /// The certificates of a bundle of others, without those that can't be parsed.
    pub(super) fn found(pem: &str) -> Vec<Self> {
        let all = CertificateDer::pem_slice_iter(pem.as_bytes()).take(MAX_FOUND.0).map_while(Result::ok);
        all.filter(|der| der.len() <= MAX_FOUND.1).filter_map(|der| Self::parse(&der).ok()).collect()
    }

    /// SHA-256 of the certificate in hex, like `openssl x509 -fingerprint -sha256` without colons.
    pub(super) fn fingerprint(&self) -> String {
        use sha2::{Digest, Sha256};
        let der = CertificateDer::from_pem_slice(self.pem.as_bytes());
        format!("{:x}", Sha256::digest(der.as_deref().unwrap_or_default()))
    }

    fn parse(der: &CertificateDer<'_>) -> anyhow::Result<Self> {
        let (_, parsed) =
            x509_parser::parse_x509_certificate(der).context("the certificate can't be parsed")?;
        let mut names = Vec::new();
        for name in parsed.subject_alternative_name()?.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::DNSName(name) => names.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => names.extend(address(bytes)),
                _ => {}
            }
        }
        Ok(Self {
            pem: pem_of(der),
            validity: Validity::of(der)?,
            subject: parsed.subject().to_string(),
            issuer: parsed.issuer().to_string(),
            names,
        })
    }
}

fn address(bytes: &[u8]) -> Option<String> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let ip = v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
    ip.ok().map(|ip| ip.to_string())
}

pub(super) fn pem_of(der: &[u8]) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        rest = more;
    }
    pem + "-----END CERTIFICATE-----\n"
}

impl State {
    /// Reads the data of a Secret; `None` if it is empty. Fails if the data is invalid. The Secret isn't changed then, because
    /// others may use it.
    pub(super) fn read(data: &BTreeMap<String, Vec<u8>>) -> anyhow::Result<Option<Self>> {
        if data.is_empty() {
            return Ok(None);
        }
        let text = |key: &str| -> anyhow::Result<Option<&str>> {
            data.get(key).map(|value| std::str::from_utf8(value).with_context(|| key.to_owned())).transpose()
        };
        let seconds = |key: &str| -> anyhow::Result<Option<i64>> {
            let parse = |text: &str| text.trim().parse::<i64>().with_context(|| format!("{key}: {text:?}"));
            text(key)?.map(parse).transpose()
        };
        let pair = |keys: (&str, &str)| -> anyhow::Result<Option<Pair>> {
            match (text(keys.0)?, text(keys.1)?) {
                (Some(pem), Some(key)) => {
                    let certificate = Certificate::read(pem).with_context(|| keys.0.to_owned())?;
                    super::issue::belong_together(&certificate, key).with_context(|| keys.1.to_owned())?;
                    Ok(Some(Pair { certificate, key: key.to_owned() }))
                }
                (None, None) => Ok(None),
                _ => bail!("{} and {} are needed together", keys.0, keys.1),
            }
        };
        let needed =
            |keys: (&'static str, &str)| pair(keys)?.with_context(|| format!("{} is missing", keys.0));
        let (leaf, signer) = (needed(LEAF)?, needed(SIGNER)?);
        let published_since = seconds(NEXT_TRUSTED_SINCE)?;
        let next = pair(NEXT)?.map(|ca| NextCa { ca, published_since });
        let until = seconds(INHERITED.1)?;
        let trusted = text(CA_BUNDLE)?.unwrap_or_default();
        let cas = Certificate::all(text(INHERITED.0)?.unwrap_or_default()).context(INHERITED.0)?;
        // A CA that was removed from the bundle is no longer trusted.
        let cas: Vec<_> = cas.into_iter().filter(|ca| trusted.contains(ca.pem.trim())).collect();
        let inherited = until.filter(|_| !cas.is_empty()).map(|until| Inherited { cas, until });
        let known = [Some(&signer), next.as_ref().map(|next| &next.ca)];
        let mut former = Certificate::all(trusted).context(CA_BUNDLE)?;
        former.retain(|ca| !known.iter().flatten().any(|pair| pair.certificate == *ca));
        former.retain(|ca| !inherited.iter().any(|inherited| inherited.cas.contains(ca)));
        former.truncate(MAX_TRUSTED);
        Ok(Some(Self { leaf, signer, next, former, inherited }))
    }

    /// The data of the Secret: the value of each key; `None` if the key is removed.
    pub(super) fn write(&self) -> BTreeMap<&'static str, Option<String>> {
        let mut data: BTreeMap<_, _> = KEYS.iter().map(|key| (*key, None)).collect();
        let mut pair = |keys: (&'static str, &'static str), pair: &Pair| {
            data.insert(keys.0, Some(pair.certificate.pem.clone()));
            data.insert(keys.1, Some(pair.key.clone()));
        };
        pair(LEAF, &self.leaf);
        pair(SIGNER, &self.signer);
        if let Some(next) = &self.next {
            pair(NEXT, &next.ca);
            data.insert(NEXT_TRUSTED_SINCE, next.published_since.map(|since| since.to_string()));
        }
        if let Some(inherited) = &self.inherited {
            data.insert(INHERITED.0, Some(inherited.cas.iter().map(|ca| ca.pem.as_str()).collect()));
            data.insert(INHERITED.1, Some(inherited.until.to_string()));
        }
        data.insert(CA_BUNDLE, Some(self.ca_bundle()));
        data
    }

    /// The CA bundle, PEM: the current, the next, the former and the inherited CAs. It is sorted by their start, so that promoting
    /// a CA doesn't change it.
    pub(super) fn ca_bundle(&self) -> String {
        let next = self.next.iter().map(|next| &next.ca.certificate);
        let mut all: Vec<_> =
            std::iter::once(&self.signer.certificate).chain(next).chain(&self.former).collect();
        all.extend(self.inherited.iter().flat_map(|inherited| &inherited.cas));
        all.sort_by_key(|ca| (Reverse(ca.validity.not_before), &ca.pem));
        all.into_iter().take(MAX_TRUSTED).map(|ca| ca.pem.as_str()).collect()
    }
}
