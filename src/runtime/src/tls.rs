//! TLS from files that change while we run.
//!
//! A mounted Secret changes by a swap of its `..data` symlink: a watch on the file itself sees nothing of that. The files
//! are therefore read again every few seconds, by their paths, and a new pair is used when it is whole. What can't be
//! used leaves the last good one in place.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use anyhow::{Context, bail};
use arc_swap::ArcSwap;
use clap::Args;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tracing::{error, info};

use crate::duration;

/// How often files are looked at again by default. The kubelet itself takes up to a minute to renew them.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// Files of a server's certificate.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "TLS")]
pub struct ServerTlsArgs {
    /// Certificate chain of the server, PEM, its own certificate first. Read again when it changes.
    #[arg(long, env = "OUTRIGGER_TLS_CERT_FILE", value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,

    /// Private key of that certificate, PEM.
    #[arg(long, env = "OUTRIGGER_TLS_KEY_FILE", value_name = "FILE")]
    pub tls_key_file: Option<PathBuf>,

    /// Certificates, PEM, that clients' certificates must be signed by. Without it clients need none.
    #[arg(long, env = "OUTRIGGER_TLS_CLIENT_CA_FILE", value_name = "FILE")]
    pub tls_client_ca_file: Option<PathBuf>,

    /// How often these files are looked at: 5s, 1m. A change that can't be used is logged, and the last good files stay
    /// in use.
    #[arg(long, env = "OUTRIGGER_TLS_RELOAD_INTERVAL", default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub tls_reload_interval: Duration,
}

impl Default for ServerTlsArgs {
    /// No files: plain text.
    fn default() -> Self {
        Self {
            tls_cert_file: None,
            tls_key_file: None,
            tls_client_ca_file: None,
            tls_reload_interval: RELOAD_INTERVAL,
        }
    }
}

impl ServerTlsArgs {
    /// The server's TLS, or `None` where no files are named.
    ///
    /// # Errors
    /// When only one of certificate and key is named, or the files can't be used.
    pub fn load(&self) -> anyhow::Result<Option<Arc<ServerTls>>> {
        if self.tls_reload_interval.is_zero() {
            bail!("--tls-reload-interval must be longer than 0s");
        }
        match (&self.tls_cert_file, &self.tls_key_file) {
            (Some(cert), Some(key)) => {
                let mut tls = ServerTls::load(cert.clone(), key.clone(), self.tls_client_ca_file.clone())?;
                tls.interval = self.tls_reload_interval;
                Ok(Some(Arc::new(tls)))
            }
            (None, None) if self.tls_client_ca_file.is_none() => Ok(None),
            _ => bail!(
                "--tls-cert-file and --tls-key-file are needed together, --tls-client-ca-file only with them"
            ),
        }
    }
}

/// A server's TLS: the configuration now in use, and the files it came from.
#[derive(Debug)]
pub struct ServerTls {
    paths: Paths,
    interval: Duration,
    current: ArcSwap<ServerConfig>,
    last: Mutex<Last>,
    not_after: Gauge<i64, AtomicI64>,
    failures: Counter,
}

#[derive(Debug)]
struct Paths {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

/// What the last look at the files found.
#[derive(Debug)]
struct Last {
    files: Files,
    /// The failure that was logged; it is logged once.
    failure: Option<String>,
}

/// The files' contents.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Files {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl ServerTls {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// When a file can't be read or used; the message names it.
    pub fn load(cert: PathBuf, key: PathBuf, client_ca: Option<PathBuf>) -> anyhow::Result<Self> {
        let paths = Paths { cert, key, client_ca };
        let files = paths.read()?;
        let (config, not_after) = paths.config(&files)?;
        let gauge = Gauge::default();
        gauge.set(not_after);
        Ok(Self {
            paths,
            interval: RELOAD_INTERVAL,
            current: ArcSwap::from_pointee(config),
            last: Mutex::new(Last { files, failure: None }),
            not_after: gauge,
            failures: Counter::default(),
        })
    }

    /// Shows when the certificate ends, and how often a new one could not be used.
    pub fn register(&self, registry: &mut Registry) {
        let name = "tls_certificate_not_after_seconds";
        registry.sub_registry_with_label(("use".into(), "serving".into())).register(
            name,
            "When the certificate expires, Unix time",
            self.not_after.clone(),
        );
        let name = "tls_reload_failures";
        registry.register(name, "New certificates or CAs that could not be used", self.failures.clone());
    }

    /// The configuration for the next connection.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }

    /// Looks at the files again and uses them if they have changed and are whole. Whether they were taken.
    pub fn refresh(&self) -> bool {
        let mut last = self.last.lock();
        let look = || {
            let files = self.paths.read()?;
            if files == last.files {
                return Ok(None);
            }
            let (config, not_after) = self.paths.config(&files)?;
            Ok(Some((files, config, not_after)))
        };
        // A swap between two of the files shows an old certificate beside a new key: the second look is whole.
        let attempt: anyhow::Result<_> = look().or_else(|_| look());
        match attempt {
            Ok(None) => {
                last.failure = None;
                false
            }
            Ok(Some((files, config, not_after))) => {
                self.current.store(Arc::new(config));
                self.not_after.set(not_after);
                *last = Last { files, failure: None };
                info!(file = %self.paths.cert.display(), not_after, "TLS files renewed");
                true
            }
            Err(error) => {
                let failure = format!("{error:#}");
                if last.failure.as_ref() != Some(&failure) {
                    self.failures.inc();
                    error!(file = %self.paths.cert.display(), error = %failure,
                        "the new files can't be used; the last good ones stay");
                    last.failure = Some(failure);
                }
                false
            }
        }
    }

    /// Looks at the files again and again.
    pub async fn follow(self: Arc<Self>) {
        loop {
            tokio::time::sleep(self.interval).await;
            let this = self.clone();
            // Files on a network may take their time.
            let _ = tokio::task::spawn_blocking(move || this.refresh()).await;
        }
    }
}

/// Files of a client's certificate and of whom it trusts.
#[derive(Debug, Clone, Default)]
pub struct ClientTls {
    /// Certificates that the server's must be signed by.
    pub ca: PathBuf,
    /// The client's own certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl ClientTls {
    /// Reads the files. A client that does so at every connection needs no other rotation.
    ///
    /// # Errors
    /// When a file can't be read or used; the message names it.
    pub fn config(&self, alpn: &[&[u8]]) -> anyhow::Result<ClientConfig> {
        let ca = read(&self.ca)?;
        let roots = roots(&ca).with_context(|| format!("{} can't be used", self.ca.display()))?;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let chain =
                    chain(&read(cert)?).with_context(|| format!("{} can't be used", cert.display()))?;
                let key_der =
                    private_key(&read(key)?).with_context(|| format!("{} can't be used", key.display()))?;
                builder
                    .with_client_auth_cert(chain, key_der)
                    .with_context(|| format!("{} and {} can't be used", cert.display(), key.display()))?
            }
        };
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Ok(config)
    }
}

/// The cryptography of every connection. Said explicitly: two crates in one program may otherwise disagree about it.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("{} can't be read", path.display()))
}

fn chain(pem: &[u8]) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>()?;
    if chain.is_empty() {
        bail!("there is no certificate in it");
    }
    Ok(chain)
}

fn private_key(pem: &[u8]) -> anyhow::Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(pem).context("there is no private key in it")
}

fn roots(pem: &[u8]) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(pem)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

impl Paths {
    fn read(&self) -> anyhow::Result<Files> {
        Ok(Files {
            cert: read(&self.cert)?,
            key: read(&self.key)?,
            client_ca: self.client_ca.as_deref().map(read).transpose()?,
        })
    }

    /// A configuration and when its certificate ends, Unix time in seconds.
    fn config(&self, files: &Files) -> anyhow::Result<(ServerConfig, i64)> {
        let (cert, key) = (self.cert.display(), self.key.display());
        let chain = chain(&files.cert).with_context(|| format!("{cert} can't be used"))?;
        let not_after = not_after(&chain).with_context(|| format!("{cert} can't be used"))?;
        let private_key = private_key(&files.key).with_context(|| format!("{key} can't be used"))?;
        let builder =
            ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let builder = match self.client_ca.as_ref().zip(files.client_ca.as_ref()) {
            None => builder.with_no_client_auth(),
            Some((path, pem)) => {
                let verifier =
                    client_verifier(pem).with_context(|| format!("{} can't be used", path.display()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        // Refuses a key that isn't the certificate's.
        let mut config = builder
            .with_single_cert(chain, private_key)
            .with_context(|| format!("{cert} and {key} can't be used together"))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        if self.client_ca.is_some() {
            // A resumed session brings its client's certificate along without verifying it again: one that has expired
            // would be good for as long as its owner comes back.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok((config, not_after))
    }
}

fn client_verifier(pem: &[u8]) -> anyhow::Result<Arc<dyn ClientCertVerifier>> {
    Ok(WebPkiClientVerifier::builder_with_provider(Arc::new(roots(pem)?), provider()).build()?)
}

/// When the first certificate ends, Unix time in seconds. rustls checks signatures but doesn't tell dates; x509-parser,
/// which the ecosystem uses for that, parses without verifying.
fn not_after(chain: &[CertificateDer<'_>]) -> anyhow::Result<i64> {
    let leaf = chain.first().context("there is no certificate in it")?;
    let (_, leaf) = x509_parser::parse_x509_certificate(leaf).context("the certificate can't be parsed")?;
    Ok(leaf.validity().not_after.timestamp())
}

#[cfg(test)]
mod tests;
