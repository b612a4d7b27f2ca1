//! Certificates for tests.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};

/// A certificate authority in a directory.
pub struct Authority {
    dir: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key.
#[derive(Debug, Clone)]
pub struct Pair {
    /// Chain, PEM.
    pub cert: PathBuf,
    /// Key, PEM.
    pub key: PathBuf,
}

impl Pair {
    /// The arguments by which a server shows it.
    pub fn serving_flags(&self) -> [String; 2] {
        let (cert, key) = (self.cert.display(), self.key.display());
        [format!("--tls-cert-file={cert}"), format!("--tls-key-file={key}")]
    }
}

impl Authority {
    /// A new authority.
    pub fn new(dir: &Path, name: &str) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let mut params = CertificateParams::new(vec![])?;
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        std::fs::write(dir.join("ca.crt"), issuer.pem())?;
        Ok(Self { dir: dir.to_owned(), issuer })
    }

    /// The authority's certificate as a file.
    pub fn file(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// The authority's certificate, PEM.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for servers on loopback and for clients, with these names: IP addresses, `spiffe://` URIs, or DNS
    /// names.
    pub fn issue(&self, file: &str, names: &[&str]) -> anyhow::Result<Pair> {
        self.issue_with(file, names, |_| {})
    }

    /// As [`Self::issue`], with something else about it.
    pub fn issue_with(
        &self,
        file: &str,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> anyhow::Result<Pair> {
        let mut params = CertificateParams::new(vec![])?;
        params.distinguished_name.push(rcgen::DnType::CommonName, file);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        for name in names {
            params.subject_alt_names.push(if let Ok(ip) = name.parse() {
                SanType::IpAddress(ip)
            } else if name.starts_with("spiffe://") {
                SanType::URI((*name).try_into()?)
            } else {
                SanType::DnsName((*name).try_into()?)
            });
        }
        change(&mut params);
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer)?;
        let pair =
            Pair { cert: self.dir.join(format!("{file}.crt")), key: self.dir.join(format!("{file}.key")) };
        std::fs::write(&pair.cert, cert.pem())?;
        std::fs::write(&pair.key, key.serialize_pem())?;
        Ok(pair)
    }
}
