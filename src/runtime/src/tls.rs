//! TLS from files that change while we run.
//!
//! A mounted Secret changes by a swap of its `..data` symlink: a watch on the file itself sees nothing of that. The files
//! are therefore read again every few seconds, by their paths, and a new pair is used when it is whole. What can't be
//! used leaves the last good one in place.

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
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio::sync::watch;
use tracing::{error, info};

use crate::duration;
use crate::expiry::{self, Expiry, Validity};
use crate::metrics;
use crate::ready::Readiness;
use crate::self_signed::{SelfSignedArgs, TlsSource};

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

    /// Certificates, PEM, that clients' certificates must be signed by. Without it clients need none. Read again when it
    /// changes; connections whose certificate it doesn't trust any more are closed.
    #[arg(long, env = "OUTRIGGER_TLS_CLIENT_CA_FILE", value_name = "FILE")]
    pub tls_client_ca_file: Option<PathBuf>,

    /// How often these files are looked at: 5s, 1m. A change that can't be used is logged, and the last good files stay
    /// in use.
    #[arg(long, env = "OUTRIGGER_TLS_RELOAD_INTERVAL", default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub tls_reload_interval: Duration,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub self_signed: SelfSignedArgs,
}

impl Default for ServerTlsArgs {
    /// No files: plain text.
    fn default() -> Self {
        Self {
            tls_cert_file: None,
            tls_key_file: None,
            tls_client_ca_file: None,
            tls_reload_interval: RELOAD_INTERVAL,
            self_signed: SelfSignedArgs::default(),
        }
    }
}

impl ServerTlsArgs {
    /// The server's TLS, or `None` where no files are named. With `--tls self-signed` it has no certificate yet.
    ///
    /// # Errors
    /// When only one of certificate and key is named, or the files can't be used, or settings don't go together.
    pub fn load(&self) -> anyhow::Result<Option<Arc<ServerTls>>> {
        self.load_with(Clients::Required)
    }

    /// As [`Self::load`], but clients are only asked for a certificate. One that is shown is verified; who shows none is let in,
    /// and whoever serves him has to look ([`crate::serve::Peer`]).
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
        if self.self_signed.tls == TlsSource::SelfSigned {
            if self.tls_cert_file.is_some() || self.tls_key_file.is_some() {
                bail!("--tls self-signed goes without --tls-cert-file and --tls-key-file; remove them");
            }
            self.self_signed.check()?;
            let pair = Pair::Given(Mutex::new(None));
            let mut tls =
                ServerTls::new(Paths { pair, client_ca: self.tls_client_ca_file.clone(), clients })?;
            tls.interval = self.tls_reload_interval;
            return Ok(Some(Arc::new(tls)));
        }
        match (&self.tls_cert_file, &self.tls_key_file) {
            (Some(cert), Some(key)) => {
                let pair = Pair::Files { cert: cert.clone(), key: key.clone() };
                let mut tls =
                    ServerTls::new(Paths { pair, client_ca: self.tls_client_ca_file.clone(), clients })?;
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
    /// Verifies clients; open connections are verified again whenever it changes.
    clients: watch::Sender<Option<Arc<dyn ClientCertVerifier>>>,
    last: Mutex<Last>,
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

/// Whether clients have to show a certificate, where a CA of theirs is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clients {
    Required,
    Asked,
}

/// Where a certificate and its key come from.
#[derive(Debug)]
enum Pair {
    Files {
        cert: PathBuf,
        key: PathBuf,
    },
    /// From us: [`ServerTls::give`]. `None` at first.
    Given(Mutex<Option<(Vec<u8>, Vec<u8>)>>),
}

/// Nothing to show yet: handshakes fail.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesServerCert for NoCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        None
    }
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
    pair: Option<(Vec<u8>, Vec<u8>)>,
    client_ca: Option<Vec<u8>>,
}

/// What came of the files: the configuration, and when its certificates end.
struct Made {
    config: ServerConfig,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    serving: Option<Validity>,
    client_ca: Option<Validity>,
}

impl ServerTls {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// When a file can't be read or used; the message names it.
    pub fn load(cert: PathBuf, key: PathBuf, client_ca: Option<PathBuf>) -> anyhow::Result<Self> {
        Self::new(Paths { pair: Pair::Files { cert, key }, client_ca, clients: Clients::Required })
    }

    /// TLS without a certificate: handshakes fail until one is [given](Self::give).
    ///
    /// # Errors
    /// When the file of clients' CA can't be read or used; the message names it.
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
            clients: watch::Sender::new(made.clients),
            last: Mutex::new(Last { files, failure: None }),
            serving: Expiry::new("serving"),
            client_ca: Expiry::new("client_ca"),
            failures: Counter::default(),
        };
        this.shown(made.serving, made.client_ca);
        Ok(this)
    }

    /// Uses this certificate and key, both PEM, from the next connection on, if they can be used and are new. Nothing
    /// happens where they come from files.
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

    /// Shows when certificates end, and how often new ones could not be used.
    pub fn register(&self, registry: &mut Registry, readiness: &Readiness) {
        let mut all = vec![&self.serving];
        all.extend(self.paths.client_ca.is_some().then_some(&self.client_ca));
        expiry::register(&all, registry, readiness);
        metrics::CERTIFICATE_FAILURES.register(registry, self.failures.clone());
    }

    /// The configuration for the next connection.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }

    /// Returns when a client's certificates are not trusted any more, because the CAs of clients have changed. Never for a client
    /// that was not asked for a certificate.
    pub(crate) async fn distrusted(&self, certificates: &[CertificateDer<'_>]) {
        let mut clients = self.clients.subscribe();
        loop {
            let verifier = clients.borrow_and_update().clone();
            if let Some((verifier, (own, others))) = verifier.zip(certificates.split_first())
                && let Err(error) = verifier.verify_client_cert(own, others, UnixTime::now())
            {
                info!(%error, "a client's certificate is not trusted any more");
                return;
            }
            if clients.changed().await.is_err() {
                // The sender is part of this value, so this isn't reached.
                return std::future::pending().await;
            }
        }
    }

    /// Looks at the files again and uses them if they have changed and are whole. Whether they were taken.
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
        // A swap between two of the files shows an old certificate beside a new key: the second look is whole.
        let attempt: anyhow::Result<_> = look().or_else(|_| look());
        match attempt {
            Ok(None) => {
                last.failure = None;
                false
            }
            Ok(Some((files, made))) => {
                self.current.store(Arc::new(made.config));
                if files.client_ca != last.files.client_ca {
                    self.clients.send_replace(made.clients);
                }
                self.shown(made.serving, made.client_ca);
                *last = Last { files, failure: None };
                info!(from = %self.paths.pair, not_after = self.serving.not_after(), "TLS renewed");
                true
            }
            Err(error) => {
                let failure = format!("{error:#}");
                if last.failure.as_ref() != Some(&failure) {
                    self.failures.inc();
                    error!(from = %self.paths.pair, error = %failure,
                        "what is new can't be used; the last good stays");
                    last.failure = Some(failure);
                }
                false
            }
        }
    }

    /// Looks at the files again and again, and at the time.
    pub async fn follow(self: Arc<Self>) {
        loop {
            for expiry in [&self.serving, &self.client_ca] {
                expiry.look(expiry::now());
            }
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
pub(crate) fn provider() -> Arc<CryptoProvider> {
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

    fn make(&self, files: &Files) -> anyhow::Result<Made> {
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
                let unusable = || format!("{} can't be used", path.display());
                client_ca = latest(&chain(pem).with_context(unusable)?);
                let verifier = client_verifier(pem, self.clients).with_context(unusable)?;
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
            // Refuses a key that isn't the certificate's.
            builder
                .with_single_cert(chain, private_key)
                .with_context(|| format!("{cert} and {key} can't be used together"))?
        } else {
            builder.with_cert_resolver(Arc::new(NoCertificate))
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        if self.client_ca.is_some() {
            // A resumed session brings its client's certificate along without verifying it again: one that has expired
            // would be good for as long as its owner comes back.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Made { config, clients, serving, client_ca })
    }
}

fn client_verifier(pem: &[u8], clients: Clients) -> anyhow::Result<Arc<dyn ClientCertVerifier>> {
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(pem)?), provider());
    Ok(match clients {
        Clients::Required => builder.build()?,
        Clients::Asked => builder.allow_unauthenticated().build()?,
    })
}

/// That of the CA which ends last: while a CA is being changed, the old one may end.
fn latest(chain: &[CertificateDer<'_>]) -> Option<Validity> {
    chain.iter().filter_map(|ca| Validity::of(ca).ok()).max_by_key(|validity| validity.not_after)
}

/// The first certificate of a PEM file.
///
/// # Errors
/// When the file can't be read, or there is none in it.
pub(crate) fn first_certificate(path: &Path) -> anyhow::Result<CertificateDer<'static>> {
    chain(&read(path)?)?.into_iter().next().context("there is no certificate in it")
}

#[cfg(test)]
mod tests;
