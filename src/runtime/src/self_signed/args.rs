//! Settings of self-signed certificates.

use std::time::Duration;

use anyhow::bail;
use clap::{Args, ValueEnum};
use outrigger_core::admin::namespace;
use rustls_pki_types::{DnsName, IpAddr};

use super::plan::{CertificateSpec, MAX_NAMES};
use crate::duration;

/// Shortest lifetime of a certificate: the times in it have a resolution of a second.
const SHORTEST: Duration = Duration::from_secs(5);

/// Default namespace of the servers.
const NAMESPACE: &str = "outrigger-system";

const DAY: u64 = 24 * 3600;

/// Source of a server's certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum TlsSource {
    /// The files in --tls-cert-file and --tls-key-file, for example from cert-manager.
    #[default]
    Files,
    /// A CA that Outrigger creates. It is stored with the certificate in a Secret that all replicas share, and published by
    /// Outrigger.
    SelfSigned,
}

/// Settings of self-signed certificates.
#[derive(Debug, Clone, Args)]
pub struct SelfSignedArgs {
    /// Source of the server's certificate.
    #[arg(long, env = "OUTRIGGER_TLS", value_enum, default_value_t, value_name = "SOURCE")]
    pub tls: TlsSource,

    /// Additional DNS name or IP address of the server, besides the names of its Service. Can be given several times, or
    /// as a list separated by commas.
    #[arg(long, env = "OUTRIGGER_SELF_SIGNED_NAME", value_delimiter = ',', value_name = "NAME")]
    pub self_signed_name: Vec<String>,

    /// Namespace of the Service, of the Secret, and of the ConfigMap outrigger-ca.
    #[arg(long, env = "OUTRIGGER_SELF_SIGNED_NAMESPACE", default_value = NAMESPACE, value_parser = namespace, value_name = "NAMESPACE")]
    pub self_signed_namespace: String,

    /// Lifetime of a certificate: 90d. It is renewed after two thirds of it.
    #[arg(long, env = "OUTRIGGER_SELF_SIGNED_LIFETIME", default_value = "90d", value_parser = duration, value_name = "DURATION")]
    pub self_signed_lifetime: Duration,

    /// Lifetime of a CA: 1825d. The next CA is created after two thirds of it.
    #[arg(long, env = "OUTRIGGER_SELF_SIGNED_CA_LIFETIME", default_value = "1825d", value_parser = duration, value_name = "DURATION")]
    pub self_signed_ca_lifetime: Duration,

    /// How long a new CA is published before it signs certificates: 7d. Clients need this time to load it.
    #[arg(long, env = "OUTRIGGER_SELF_SIGNED_OVERLAP", default_value = "7d", value_parser = duration, value_name = "DURATION")]
    pub self_signed_overlap: Duration,

    /// When the first CA is created, keep up to three CAs that the bundles contain trusted for up to 30 days, while servers
    /// with certificates from another source are replaced. Anybody who can write the bundles can choose these CAs, so set
    /// it only for that time.
    #[arg(long, env = "OUTRIGGER_SELF_SIGNED_INHERIT")]
    pub self_signed_inherit: bool,
}

impl SelfSignedArgs {
    /// Validates the combination of settings. Fails if it is invalid; the message names the flag.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let (life, ca_life) = (self.self_signed_lifetime, self.self_signed_ca_lifetime);
        if life < SHORTEST {
            bail!("--self-signed-lifetime is {life:?}; use {SHORTEST:?} or more");
        }
        if ca_life > Duration::from_secs(36500 * DAY) {
            bail!("--self-signed-ca-lifetime is more than a hundred years; use less");
        }
        // The next CA is created in the last third of a CA's lifetime. That has to be long enough to publish it, and for the last
        // certificates of the old CA to be renewed.
        if ca_life / 3 < life {
            bail!("--self-signed-ca-lifetime is {ca_life:?}; use three times --self-signed-lifetime or more");
        }
        if self.self_signed_overlap > ca_life / 6 {
            bail!("--self-signed-overlap must be a sixth of --self-signed-ca-lifetime at most");
        }
        // The Service itself has four names.
        if self.self_signed_name.len() > MAX_NAMES / 2 {
            bail!("--self-signed-name is given more than {} times", MAX_NAMES / 2);
        }
        for name in &self.self_signed_name {
            if DnsName::try_from(name.as_str()).is_err() && IpAddr::try_from(name.as_str()).is_err() {
                bail!("--self-signed-name is {name:?}, neither a DNS name nor an IP address");
            }
        }
        Ok(())
    }

    pub(super) fn spec(&self, component: &super::Component) -> CertificateSpec {
        let service = component.service;
        let namespace = &self.self_signed_namespace;
        let mut names = vec![
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.cluster.local"),
            format!("{service}.{namespace}"),
            service.to_owned(),
        ];
        for name in &self.self_signed_name {
            // Normalized as in a certificate: an IPv6 address can be written in several ways.
            let name = name.parse::<std::net::IpAddr>().map_or_else(|_| name.clone(), |ip| ip.to_string());
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        CertificateSpec {
            name: service.to_owned(),
            names,
            life: seconds(self.self_signed_lifetime),
            ca_life: seconds(self.self_signed_ca_lifetime),
            overlap: seconds(self.self_signed_overlap),
            inherit: self.self_signed_inherit,
        }
    }
}
