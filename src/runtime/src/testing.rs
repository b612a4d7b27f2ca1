//! Shared parts of tests: a CA, mounted Secrets, a running server, requests.

use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::bind::Bind;
use crate::expiry::now;
use crate::serve::{Limits, Server};
use crate::tls::ServerTls;

/// Timeout for events that must happen, also on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with this name for `webhook.svc` and `127.0.0.1`, valid between these times from now, in seconds.
fn params(name: &str, (from, to): (i64, i64)) -> CertificateParams {
    let mut params = CertificateParams::new(["webhook.svc", "127.0.0.1"].map(str::to_owned)).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    let at = |offset| time::OffsetDateTime::from_unix_timestamp(now() + offset).unwrap();
    (params.not_before, params.not_after) = (at(from), at(to));
    params
}

pub(crate) fn ca_params(name: &str, life: (i64, i64)) -> CertificateParams {
    let mut params = params(name, life);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

impl Authority {
    pub(crate) fn new() -> Self {
        Self::of("CA", (-600, 600))
    }

    pub(crate) fn of(name: &str, life: (i64, i64)) -> Self {
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(ca_params(name, life), key).unwrap())
    }

    /// A CA that this one has signed.
    pub(crate) fn beneath(&self, name: &str, life: (i64, i64)) -> Self {
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::signed_by(ca_params(name, life), key, &self.0).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate and its key, PEM.
    pub(crate) fn leaf(&self, life: (i64, i64)) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        (params("leaf", life).signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    pub(crate) fn pair(&self) -> (String, String) {
        self.leaf((-60, 600))
    }
}

/// A Secret as the kubelet mounts it.
pub(crate) struct Mount {
    dir: tempfile::TempDir,
    generation: u32,
}

impl Mount {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), generation: 0 }
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    /// Updates the files as the kubelet does: a new directory, and a swap of the `..data` link to it. The files themselves are
    /// links that never change.
    pub(crate) fn publish(&mut self, files: &[(&str, &str)]) {
        self.generation += 1;
        let name = format!("..{}", self.generation);
        std::fs::create_dir(self.path(&name)).unwrap();
        for (file, content) in files {
            std::fs::write(self.path(&name).join(file), content).unwrap();
            let _ = symlink(Path::new("..data").join(file), self.path(file));
        }
        symlink(&name, self.path("..data_tmp")).unwrap();
        std::fs::rename(self.path("..data_tmp"), self.path("..data")).unwrap();
    }

    /// As `tls.crt`, `tls.key`.
    pub(crate) fn publish_pair(&mut self, (cert, key): &(String, String)) {
        self.publish(&[("tls.crt", cert), ("tls.key", key)]);
    }

    pub(crate) fn pair(&self) -> (PathBuf, PathBuf) {
        (self.path("tls.crt"), self.path("tls.key"))
    }

    /// The TLS of a server with `tls.crt` and `tls.key`, which verifies clients by `ca.crt` if it is asked to.
    pub(crate) fn tls(&self, verified: bool) -> Arc<ServerTls> {
        let (cert, key) = self.pair();
        Arc::new(ServerTls::load(cert, key, verified.then(|| self.path("ca.crt"))).unwrap())
    }
}

/// Settings without any flags.
pub(crate) fn settings<A: clap::Args>() -> A {
    let command = A::augment_args(clap::Command::new("x"));
    A::from_arg_matches(&command.get_matches_from(["x"])).unwrap()
}

/// A server under test. It ends with the test's runtime.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) drain: CancellationToken,
    pub(crate) force: CancellationToken,
    pub(crate) task: JoinHandle<()>,
}

impl Running {
    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    pub(crate) async fn connect_tls(
        &self,
        config: &Arc<rustls::ClientConfig>,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let name = "127.0.0.1".try_into().unwrap();
        tokio_rustls::TlsConnector::from(config.clone()).connect(name, self.connect().await).await
    }
}

pub(crate) fn serve(router: Router, tls: Option<Arc<ServerTls>>, limits: Limits) -> Running {
    let listener = "127.0.0.1:0".parse::<Bind>().unwrap().listen().unwrap();
    let address = listener.address().unwrap();
    let mut server = Server::new("test", listener).limits(limits);
    if let Some(tls) = tls {
        server = server.tls(tls);
    }
    run(server, router, address)
}

/// As [`serve`], for clients that are identified by other means than certificates.
pub(crate) fn serve_open(router: Router, tls: Arc<ServerTls>) -> Running {
    let listener = "127.0.0.1:0".parse::<Bind>().unwrap().listen().unwrap();
    let address = listener.address().unwrap();
    run(Server::new("test", listener).open_tls(tls), router, address)
}

fn run(server: Server, router: Router, address: SocketAddr) -> Running {
    let (drain, force) = (CancellationToken::new(), CancellationToken::new());
    let task = tokio::spawn(server.run(router, drain.clone(), force.clone()));
    Running { address, drain, force, task }
}

pub(crate) async fn ask<S>(stream: S, path: &str) -> Result<String, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = http::Request::get(path).header("host", "x").body(Empty::<&[u8]>::new()).unwrap();
    let body = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

/// One request over HTTP/2, and its answer's headers with it.
pub(crate) async fn ask_http2<S>(stream: S, path: &str) -> Result<(http::HeaderMap, String), hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = http::Request::get(format!("https://x{path}")).body(Empty::<&[u8]>::new()).unwrap();
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok((head.headers, String::from_utf8(body.to_vec()).unwrap()))
}
