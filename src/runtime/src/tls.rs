//! TLS with files that are reloaded when they change.
//!
//! The kubelet updates a mounted Secret by swapping its `..data` symlink, which a watch on the file itself doesn't notice. So the
//! files are read by their paths every few seconds. Invalid files are reported, and the last valid ones stay in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use arc_swap::ArcSwap;
use clap::Args;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio::sync::watch;
use tracing::{error, info};

pub use self::client::{ClientTls, verifying};
use crate::duration;
use crate::expiry::{self, Expiry, Validity};
use crate::metrics;
use crate::ready::Readiness;
use crate::self_signed::{SelfSignedArgs, TlsSource};

mod client;

/// Default interval of reading the files. The kubelet itself takes up to a minute to update them.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// Settings of a server's certificate.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "TLS")]
pub struct ServerTlsArgs {
    /// Certificate chain of the server, PEM, its own certificate first. Reloaded when it changes.
    #[arg(long, env = "OUTRIGGER_TLS_CERT_FILE", value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,

    /// Private key of that certificate, PEM.
    #[arg(long, env = "OUTRIGGER_TLS_KEY_FILE", value_name = "FILE")]
    pub tls_key_file: Option<PathBuf>,

    /// CA certificates, PEM, that verify client certificates. Without it clients need no certificate. Reloaded when it
    /// changes; connections whose client certificate is no longer trusted are closed.
    #[arg(long, env = "OUTRIGGER_TLS_CLIENT_CA_FILE", value_name = "FILE")]
    pub tls_client_ca_file: Option<PathBuf>,

    /// Interval at which these files are checked for changes: 5s, 1m. Invalid files are logged, and the last valid ones
    /// stay in use.
    #[arg(long, env = "OUTRIGGER_TLS_RELOAD_INTERVAL", default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub tls_reload_interval: Duration,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub self_signed: SelfSignedArgs,
}

impl ServerTlsArgs {
    /// The server's TLS, or `None` if no files are set. With `--tls self-signed` it has no certificate yet.
    ///
    /// # Errors
    /// If the combination of settings or the files are invalid.
    pub fn load(&self) -> anyhow::Result<Option<Arc<ServerTls>>> {
        self.load_with(Clients::Required)
    }

    /// As [`Self::load`], but client certificates are optional. One that is presented is verified; clients without one are
    /// accepted, and the service has to check them ([`crate::serve::Peer`]).
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_asking(&self) -> anyhow::Result<Option<Arc<ServerTls>>> {
        self.load_with(Clients::Asked)
    }

    fn load_with(&self, clients: Clients) -> anyhow::Result<Option<Arc<ServerTls>>> {
        if self.tls_reload_interval.is_zero() {
            bail!("--tls-reload-interval must be longer than 0s");
        }
        let self_signed = self.self_signed.tls == TlsSource::SelfSigned;
        let pair = match (&self.tls_cert_file, &self.tls_key_file) {
            (None, None) if self_signed => {
                self.self_signed.check()?;
                Pair::Given(Mutex::new(None))
            }
            _ if self_signed => {
                bail!("--tls self-signed goes without --tls-cert-file and --tls-key-file; remove them")
            }
            (Some(cert), Some(key)) => Pair::Files { cert: cert.clone(), key: key.clone() },
            (None, None) if self.tls_client_ca_file.is_none() => return Ok(None),
            _ => bail!(
                "--tls-cert-file and --tls-key-file are needed together, --tls-client-ca-file only with them"
            ),
        };
        let mut tls = ServerTls::new(Paths { pair, client_ca: self.tls_client_ca_file.clone(), clients })?;
        tls.interval = self.tls_reload_interval;
        Ok(Some(Arc::new(tls)))
    }
}

/// A server's TLS: the current configuration, and the files that it is loaded from.
#[derive(Debug)]
pub struct ServerTls {
    paths: Paths,
    interval: Duration,
    current: ArcSwap<ServerConfig>,
    /// The same for clients without a certificate.
    open: ArcSwap<ServerConfig>,
    /// The verifier of client certificates. When it changes, the certificates of open connections are verified again.
    clients: watch::Sender<Option<Arc<dyn ClientCertVerifier>>>,
    last: Mutex<LastLoad>,
    serving: Expiry,
    client_ca: Expiry,
    failures: Counter,
}

#[derive(Debug)]
struct Paths {
    pair: Pair,
    client_ca: Option<PathBuf>,
    clients: Clients,
}

/// Whether clients need a certificate if their CA is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clients {
    Required,
    Asked,
}

/// Source of a certificate and its key.
#[derive(Debug)]
enum Pair {
    Files {
        cert: PathBuf,
        key: PathBuf,
    },
    /// Set by [`ServerTls::give`].
    Given(Mutex<Option<(Vec<u8>, Vec<u8>)>>),
}

/// Resolver before there is a certificate: handshakes fail.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesServerCert for NoCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        None
    }
}

#[derive(Debug)]
struct LastLoad {
    files: Files,
    /// The failure that was logged. It is logged once.
    failure: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Files {
    pair: Option<(Vec<u8>, Vec<u8>)>,
    client_ca: Option<Vec<u8>>,
}

/// The configuration that results from the files, and the validity of its certificates.
struct Loaded {
    config: ServerConfig,
    /// The same for clients without a certificate.
    open: ServerConfig,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    serving: Option<Validity>,
    client_ca: Option<Validity>,
}

impl ServerTls {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// If a file can't be read or is invalid; the message names it.
    pub fn load(cert: PathBuf, key: PathBuf, client_ca: Option<PathBuf>) -> anyhow::Result<Self> {
        Self::new(Paths { pair: Pair::Files { cert, key }, client_ca, clients: Clients::Required })
    }

    /// TLS without a certificate: handshakes fail until one is [given](Self::give).
    ///
    /// # Errors
    /// If the file with the CA of clients can't be read or is invalid; the message names it.
    pub fn given(client_ca: Option<PathBuf>) -> anyhow::Result<Self> {
        Self::new(Paths { pair: Pair::Given(Mutex::new(None)), client_ca, clients: Clients::Required })
    }

    fn new(paths: Paths) -> anyhow::Result<Self> {
        let files = paths.read()?;
        let made = paths.make(&files)?;
        let this = Self {
            paths,
            interval: RELOAD_INTERVAL,
            current: ArcSwap::from_pointee(made.config),
            open: ArcSwap::from_pointee(made.open),
            clients: watch::Sender::new(made.clients),
            last: Mutex::new(LastLoad { files, failure: None }),
            serving: Expiry::new("serving"),
            client_ca: Expiry::new("client_ca"),
            failures: Counter::default(),
        };
        this.shown(made.serving, made.client_ca);
        Ok(this)
    }

    /// Sets the certificate and key, both PEM, for new connections, if they are valid and new. Does nothing if they are loaded
    /// from files.
    pub fn give(&self, cert: &[u8], key: &[u8]) {
        if let Pair::Given(given) = &self.paths.pair {
            *given.lock() = Some((cert.to_vec(), key.to_vec()));
            self.refresh();
        }
    }

    fn shown(&self, serving: Option<Validity>, client_ca: Option<Validity>) {
        for (expiry, validity) in [(&self.serving, serving), (&self.client_ca, client_ca)] {
            if let Some(validity) = validity {
                expiry.set(validity);
            }
        }
    }

    /// Registers the metrics of certificates: when they expire, and how often reloading them failed.
    pub fn register(&self, registry: &mut Registry, readiness: &Readiness) {
        self.register_with(None, registry, readiness);
    }

    /// As [`Self::register`], together with the certificate that the process has as a client: they are one metric.
    pub fn register_with(&self, client: Option<&Expiry>, registry: &mut Registry, readiness: &Readiness) {
        let mut all = vec![&self.serving];
        all.extend(client);
        all.extend(self.paths.client_ca.is_some().then_some(&self.client_ca));
        expiry::register(&all, registry, readiness);
        metrics::CERTIFICATE_FAILURES.register(registry, self.failures.clone());
    }

    /// The configuration for new connections.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }

    /// As [`Self::config`], for clients that are identified by other means: no certificate is asked for, also if the CA of clients is
    /// set.
    pub fn open_config(&self) -> Arc<ServerConfig> {
        self.open.load_full()
    }

    /// Returns once a client's certificates are no longer trusted because the CAs of clients have changed. Never returns for a
    /// client without a certificate.
    pub(crate) async fn distrusted(&self, certificates: &[CertificateDer<'_>]) {
        let mut clients = self.clients.subscribe();
        loop {
            let verifier = clients.borrow_and_update().clone();
            if let Some((verifier, (own, others))) = verifier.zip(certificates.split_first())
                && let Err(error) = verifier.verify_client_cert(own, others, UnixTime::now())
            {
                info!(%error, "client certificate is no longer trusted");
                return;
            }
            if clients.changed().await.is_err() {
                // Not reached: the sender is a field of this value.
                return std::future::pending().await;
            }
        }
    }

    /// Reads the files, and uses them if they have changed and are valid. Returns whether they are used.
    pub fn refresh(&self) -> bool {
        let mut last = self.last.lock();
        let look = || {
            let files = self.paths.read()?;
            if files == last.files {
                return Ok(None);
            }
            let made = self.paths.make(&files)?;
            Ok(Some((files, made)))
        };
        // If the files were swapped while they were read, certificate and key don't match: the second attempt reads both again.
        let attempt: anyhow::Result<_> = look().or_else(|_| look());
        match attempt {
            Ok(None) => {
                last.failure = None;
                false
            }
            Ok(Some((files, made))) => {
                self.current.store(Arc::new(made.config));
                self.open.store(Arc::new(made.open));
                if files.client_ca != last.files.client_ca {
                    self.clients.send_replace(made.clients);
                }
                self.shown(made.serving, made.client_ca);
                *last = LastLoad { files, failure: None };
                info!(source = %self.paths.pair, not_after = self.serving.not_after(), "reloaded TLS certificates");
                true
            }
            Err(error) => {
                let failure = format!("{error:#}");
                if last.failure.as_ref() != Some(&failure) {
                    self.failures.inc();
                    error!(source = %self.paths.pair, error = failure,
                        "failed to reload TLS certificates; the last valid ones stay in use");
                    last.failure = Some(failure);
                }
                false
            }
        }
    }

    /// Reloads the files and checks the expiry of certificates for as long as it is polled.
    pub async fn follow(self: Arc<Self>) {
        loop {
            for expiry in [&self.serving, &self.client_ca] {
                expiry.look(expiry::now());
            }
            tokio::time::sleep(self.interval).await;
            let this = self.clone();
            // Reading files on a network file system may block.
            let _ = tokio::task::spawn_blocking(move || this.refresh()).await;
        }
    }
}

/// The cryptography of all connections. It is explicit because dependencies may enable several providers.
#[cfg(not(feature = "fips"))]
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The cryptography of all connections: that of AWS-LC's FIPS module. Its versions, suites and groups are the approved ones.
#[cfg(feature = "fips")]
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::default_fips_provider())
}

/// Makes [`provider`] the cryptography of clients that others configure, such as those of the API server and of traces. It has to be
/// called before the first of them is made.
///
/// # Errors
/// In a build for FIPS, the module has not entered FIPS mode. In every build, the process already has another provider.
pub fn install() -> anyhow::Result<()> {
    let provider = provider();
    if cfg!(feature = "fips") && !provider.fips() {
        bail!(
            "this program is built for FIPS, and its cryptographic module isn't in FIPS mode; build it again"
        );
    }
    let provider = Arc::unwrap_or_clone(provider);
    provider.install_default().ok().context("the process already has another cryptographic provider")
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("{} can't be read", path.display()))
}

/// The error of a file that can't be used.
fn unusable(path: &Path) -> impl Fn() -> String {
    move || format!("{} can't be used", path.display())
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

impl std::fmt::Display for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Files { cert, .. } => write!(f, "{}", cert.display()),
            Self::Given(_) => f.write_str("self-signed"),
        }
    }
}

impl Paths {
    fn read(&self) -> anyhow::Result<Files> {
        let pair = match &self.pair {
            Pair::Files { cert, key } => Some((read(cert)?, read(key)?)),
            Pair::Given(given) => given.lock().clone(),
        };
        Ok(Files { pair, client_ca: self.client_ca.as_deref().map(read).transpose()? })
    }

    fn make(&self, files: &Files) -> anyhow::Result<Loaded> {
        let (cert, key) = match &self.pair {
            Pair::Files { cert, key } => (cert.display().to_string(), key.display().to_string()),
            Pair::Given(_) => ("tls.crt".to_owned(), "tls.key".to_owned()),
        };
        let builder =
            ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let (mut client_ca, mut clients) = (None, None);
        let builder = match self.client_ca.as_ref().zip(files.client_ca.as_ref()) {
            None => builder.with_no_client_auth(),
            Some((path, pem)) => {
                client_ca = latest(&chain(pem).with_context(unusable(path))?);
                let verifier = client_verifier(pem, self.clients).with_context(unusable(path))?;
                clients = Some(verifier.clone());
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut serving = None;
        let mut config = if let Some((cert_pem, key_pem)) = &files.pair {
            let chain = chain(cert_pem).with_context(|| format!("{cert} can't be used"))?;
            let first = chain.first().context("there is no certificate in it")?;
            serving = Some(Validity::of(first).with_context(|| format!("{cert} can't be used"))?);
            let private_key = private_key(key_pem).with_context(|| format!("{key} can't be used"))?;
            // Fails if the key doesn't belong to the certificate.
            builder
                .with_single_cert(chain, private_key)
                .with_context(|| format!("{cert} and {key} can't be used together"))?
        } else {
            builder.with_cert_resolver(Arc::new(NoCertificate))
        };
        let mut open = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(config.cert_resolver.clone());
        for config in [&mut config, &mut open] {
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        }
        if self.client_ca.is_some() {
            // A resumed session keeps the client certificate without verifying it again, so it would be accepted after it has
            // expired.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Loaded { config, open, clients, serving, client_ca })
    }
}

fn client_verifier(pem: &[u8], clients: Clients) -> anyhow::Result<Arc<dyn ClientCertVerifier>> {
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(pem)?), provider());
    Ok(match clients {
        Clients::Required => builder.build()?,
        Clients::Asked => builder.allow_unauthenticated().build()?,
    })
}

/// The validity of the CA that expires last: while a CA is being replaced, the old one may expire.
fn latest(chain: &[CertificateDer<'_>]) -> Option<Validity> {
    chain.iter().filter_map(|ca| Validity::of(ca).ok()).max_by_key(|validity| validity.not_after)
}

/// The first certificate of a PEM file. Fails if the file can't be read or contains no certificate.
pub(crate) fn first_certificate(path: &Path) -> anyhow::Result<CertificateDer<'static>> {
    chain(&read(path)?)?.into_iter().next().context("there is no certificate in it")
}

#[cfg(test)]
mod tests;
