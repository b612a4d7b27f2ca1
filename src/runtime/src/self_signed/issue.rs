//! Creation of keys and certificates.

use anyhow::{Context, bail};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use time::OffsetDateTime;

use super::state::{Certificate, Pair};

/// Tolerance for clocks of clients that are behind, in seconds. It is less for short lifetimes.
const SKEW: i64 = 3600;

/// Creates a CA with this name that is valid for so many seconds from now on (Unix time in seconds). Each has a unique subject,
/// so that clients find the right one in a bundle.
pub(super) fn authority(name: &str, now: i64, life: i64) -> anyhow::Result<Pair> {
    let mut params = CertificateParams::new(vec![])?;
    let serial = serial();
    let unique: String = serial.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name.push(DnType::CommonName, common_name(name, &unique));
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid(&mut params, now, life)?;
    let key = KeyPair::generate()?;
    let certificate = Certificate::read(&params.self_signed(&key)?.pem())?;
    Ok(Pair { certificate, key: key.serialize_pem() })
}

pub(super) fn common_name(name: &str, unique: &str) -> String {
    format!("{name} CA {unique}")
}

/// Creates a serving certificate with these DNS names and IP addresses, valid for so many seconds, but not longer than its CA.
pub(super) fn leaf(signer: &Pair, names: &[String], now: i64, life: i64) -> anyhow::Result<Pair> {
    // `new` detects IP addresses among the names.
    let mut params = CertificateParams::new(names.to_vec())?;
    if let Some(SanType::DnsName(first)) = params.subject_alt_names.first() {
        let first = first.to_string();
        // A common name has 64 characters at most.
        params.distinguished_name.push(DnType::CommonName, first.chars().take(64).collect::<String>());
    }
    params.serial_number = Some(SerialNumber::from_slice(&serial()));
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    valid(&mut params, now, life.min(signer.certificate.validity.not_after.saturating_sub(now)))?;
    let issuer = Issuer::from_ca_cert_pem(&signer.certificate.pem, KeyPair::from_pem(&signer.key)?)?;
    let key = KeyPair::generate()?;
    let certificate = Certificate::read(&params.signed_by(&key, &issuer)?.pem())?;
    Ok(Pair { certificate, key: key.serialize_pem() })
}

#[allow(clippy::disallowed_methods, reason = "serial numbers must be unpredictable")]
fn serial() -> [u8; 16] {
    let mut serial: [u8; 16] = rand::random();
    // A serial number is positive and has no leading zeros.
    serial[0] = serial[0] & 0x7f | 0x40;
    serial
}

fn valid(params: &mut CertificateParams, now: i64, life: i64) -> anyhow::Result<()> {
    let at =
        |seconds: i64| OffsetDateTime::from_unix_timestamp(seconds).context("the wall clock is out of range");
    params.not_before = at(now.saturating_sub((life / 20).clamp(0, SKEW)))?;
    params.not_after = at(now.saturating_add(life.max(1)))?;
    Ok(())
}

/// Checks that a private key belongs to a certificate.
pub(super) fn belong_together(certificate: &Certificate, key: &str) -> anyhow::Result<()> {
    let key = KeyPair::from_pem(key).context("not a private key")?;
    let der = CertificateDer::from_pem_slice(certificate.pem.as_bytes())?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&der)?;
    if parsed.public_key().raw != key.subject_public_key_info() {
        bail!("the key of another certificate");
    }
    Ok(())
}
