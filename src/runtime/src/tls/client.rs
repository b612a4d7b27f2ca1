//! TLS of clients, whose files are read for each connection.

use std::path::PathBuf;

use anyhow::{Context, bail};
use rustls::{ClientConfig, RootCertStore};

use super::{chain, private_key, provider, read, roots, unusable};

/// Files of a client: its certificate, and the CA of the server.
#[derive(Debug, Clone, Default)]
pub struct ClientTls {
    /// CA certificates that verify the server certificate.
    pub ca: PathBuf,
    /// The client's own certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl ClientTls {
    /// Reads the files. A client that does so for each connection needs no other reloading.
    ///
    /// # Errors
    /// If a file can't be read or is invalid; the message names it.
    pub fn config(&self, alpn: &[&[u8]]) -> anyhow::Result<ClientConfig> {
        let roots = roots(&read(&self.ca)?).with_context(unusable(&self.ca))?;
        config(roots, self.identity.as_ref(), alpn)
    }
}

/// TLS of a client that verifies servers by these CAs, with its own certificate and key if it has them.
fn config(
    roots: RootCertStore,
    identity: Option<&(PathBuf, PathBuf)>,
    alpn: &[&[u8]],
) -> anyhow::Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = chain(&read(cert)?).with_context(unusable(cert))?;
            let key_der = private_key(&read(key)?).with_context(unusable(key))?;
            builder
                .with_client_auth_cert(chain, key_der)
                .with_context(|| format!("{} and {} can't be used", cert.display(), key.display()))?
        }
    };
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

/// TLS of a client without a certificate of its own. The server's certificate is verified by the CAs of all these files. Files that
/// don't exist are left out, but one has to exist: an installation has its CA in one of several places.
///
/// # Errors
/// If no file exists, or one can't be read or is invalid; the message names it.
pub fn verifying(files: &[PathBuf], alpn: &[&[u8]]) -> anyhow::Result<ClientConfig> {
    let mut all = RootCertStore::empty();
    for file in files {
        match std::fs::read(file) {
            Ok(pem) => all.roots.extend(roots(&pem).with_context(unusable(file))?.roots),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(error).with_context(|| format!("{} can't be read", file.display()));
            }
        }
    }
    if all.is_empty() {
        let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        bail!("there is no file with a CA: {}", names.join(", "));
    }
    config(all, None, alpn)
}
