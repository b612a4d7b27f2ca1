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
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tracing::{error, info};

/// How often files are looked at again. The kubelet itself takes up to a minute to renew them.
const POLL: Duration = Duration::from_secs(2);

/// Files of a server's certificate.
#[derive(Debug, Clone, Default, Args)]
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
}

impl ServerTlsArgs {
    /// The server's TLS, or `None` where no files are named.
    ///
    /// # Errors
    /// When only one of certificate and key is named, or the files can't be used.
    pub fn load(&self) -> anyhow::Result<Option<Arc<ServerTls>>> {
        match (&self.tls_cert_file, &self.tls_key_file) {
            (Some(cert), Some(key)) => {
                ServerTls::load(cert.clone(), key.clone(), self.tls_client_ca_file.clone())
                    .map(Arc::new)
                    .map(Some)
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
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    current: ArcSwap<ServerConfig>,
    last: Mutex<Last>,
    not_after: Gauge<i64, AtomicI64>,
    failures: Counter,
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
        let files = read_files(&cert, &key, client_ca.as_deref())?;
        let (config, not_after) = server_config(&files)
            .with_context(|| format!("{} and {} can't be used", cert.display(), key.display()))?;
        let gauge = Gauge::default();
        gauge.set(not_after);
        Ok(Self {
            cert,
            key,
            client_ca,
            current: ArcSwap::from_pointee(config),
            last: Mutex::new(Last { files, failure: None }),
            not_after: gauge,
            failures: Counter::default(),
        })
    }

    /// Shows when the certificate ends, and how often a new one could not be used.
    pub fn register(&self, registry: &mut Registry) {
        let name = "tls_certificate_not_after_seconds";
        registry.register(name, "When the serving certificate expires, Unix time", self.not_after.clone());
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
        let attempt = read_files(&self.cert, &self.key, self.client_ca.as_deref()).and_then(|files| {
            if files == last.files {
                return Ok(None);
            }
            let (config, not_after) = server_config(&files)?;
            Ok(Some((files, config, not_after)))
        });
        match attempt {
            Ok(None) => {
                last.failure = None;
                false
            }
            Ok(Some((files, config, not_after))) => {
                self.current.store(Arc::new(config));
                self.not_after.set(not_after);
                *last = Last { files, failure: None };
                info!(file = %self.cert.display(), not_after, "certificate renewed");
                true
            }
            Err(error) => {
                let failure = format!("{error:#}");
                if last.failure.as_ref() != Some(&failure) {
                    self.failures.inc();
                    error!(file = %self.cert.display(), error = %failure,
                        "the new certificate can't be used; the last good one stays");
                    last.failure = Some(failure);
                }
                false
            }
        }
    }

    /// Looks at the files again and again.
    pub async fn follow(self: Arc<Self>) {
        loop {
            tokio::time::sleep(POLL).await;
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

fn read_files(cert: &Path, key: &Path, client_ca: Option<&Path>) -> anyhow::Result<Files> {
    Ok(Files { cert: read(cert)?, key: read(key)?, client_ca: client_ca.map(read).transpose()? })
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

/// A configuration and when its certificate ends, Unix time in seconds.
fn server_config(files: &Files) -> anyhow::Result<(ServerConfig, i64)> {
    let chain = chain(&files.cert).context("certificate")?;
    let key = private_key(&files.key).context("key")?;
    let not_after = match chain.first().map(|leaf| x509_parser::parse_x509_certificate(leaf)) {
        Some(Ok((_, leaf))) => leaf.validity().not_after.timestamp(),
        _ => bail!("the certificate can't be parsed"),
    };
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let roots = roots(pem).context("client CA")?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
                .build()
                .context("client CA")?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    // Refuses a key that isn't the certificate's.
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((config, not_after))
}

#[cfg(test)]
mod tests;
