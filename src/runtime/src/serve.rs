//! The accept loop.
//!
//! `axum::serve` sets no timers, so a client that never finishes its TLS handshake or its headers would hold a
//! connection for ever; nor does it limit connections or their age. This one does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;
use tracing::{debug, info, warn};

use crate::bind::Listener;
use crate::tls::ServerTls;

/// What a client may take.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at once. Further ones wait in the kernel's queue.
    pub max_connections: usize,
    /// Time for the TLS handshake.
    pub handshake: Duration,
    /// Time for the headers of an HTTP/1 request; also the time that a connection may be idle between two requests.
    pub headers: Duration,
    /// Streams of one HTTP/2 connection at once.
    pub max_streams: u32,
    /// How often an HTTP/2 peer is asked whether it is there, and how long it may take to answer. A half-open connection
    /// ends after the sum.
    pub keepalive: (Duration, Duration),
    /// How old a connection may become before it is asked to end, give or take a tenth. `None`: no limit.
    pub max_age: Option<Duration>,
    /// Bytes of an HTTP/2 stream that may be under way unread. The connection gets four times as many.
    pub window: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 4096,
            handshake: Duration::from_secs(10),
            // The API server keeps idle connections for 90 s and would rather find them open.
            headers: Duration::from_secs(120),
            max_streams: 256,
            keepalive: (Duration::from_secs(10), Duration::from_secs(10)),
            max_age: None,
            window: 1 << 20,
        }
    }
}

/// Who is at the other end; in the extensions of each request.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    /// Its address; `None` on a socket file.
    pub address: Option<SocketAddr>,
    /// Its verified certificates, its own first; empty when it showed none.
    pub certificates: Arc<[CertificateDer<'static>]>,
}

/// A server: a listener, perhaps TLS, limits.
#[derive(Debug)]
pub struct Server {
    name: &'static str,
    listener: Listener,
    tls: Option<Arc<ServerTls>>,
    limits: Limits,
}

/// What all connections share.
struct Shared {
    name: &'static str,
    http: auto::Builder<TokioExecutor>,
    tls: Option<Arc<ServerTls>>,
    limits: Limits,
    router: Router,
    drain: CancellationToken,
    force: CancellationToken,
}

impl Server {
    /// A server in plain text with default limits.
    pub fn new(name: &'static str, listener: Listener) -> Self {
        Self { name, listener, tls: None, limits: Limits::default() }
    }

    /// With TLS.
    #[must_use]
    pub fn tls(mut self, tls: Arc<ServerTls>) -> Self {
        self.tls = Some(tls);
        self
    }

    /// With these limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Serves HTTP/1.1 and HTTP/2 until `drain`, finishes what is under way then, and drops what is left at `force`.
    pub async fn run(self, router: Router, drain: CancellationToken, force: CancellationToken) {
        let mut http = auto::Builder::new(TokioExecutor::new());
        http.http1().timer(TokioTimer::new()).header_read_timeout(self.limits.headers).max_buf_size(64 << 10);
        http.http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.limits.max_streams)
            .keep_alive_interval(self.limits.keepalive.0)
            .keep_alive_timeout(self.limits.keepalive.1)
            .initial_stream_window_size(self.limits.window)
            .initial_connection_window_size(self.limits.window.saturating_mul(4))
            .max_header_list_size(32 << 10);
        let slots = Arc::new(Semaphore::new(self.limits.max_connections));
        let shared = Arc::new(Shared {
            name: self.name,
            http,
            tls: self.tls,
            limits: self.limits,
            router,
            drain,
            force,
        });
        let connections = TaskTracker::new();
        info!(server = self.name, address = ?self.listener.address(), tls = shared.tls.is_some(), "serving");
        loop {
            let slot = tokio::select! {
                slot = slots.clone().acquire_owned() => slot,
                () = shared.drain.cancelled() => break,
            };
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = shared.drain.cancelled() => break,
            };
            let (Ok(slot), Ok(stream)) = (slot, accepted) else {
                // Out of file descriptors, most likely: trying again at once would only burn the processor.
                warn!(server = self.name, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let shared = shared.clone();
            connections.spawn(async move {
                match stream {
                    Accepted::Tcp(stream, address) => shared.clone().connection(stream, Some(address)).await,
                    Accepted::Unix(stream) => shared.clone().connection(stream, None).await,
                }
                drop(slot);
            });
        }
        drop(self.listener);
        connections.close();
        connections.wait().await;
        debug!(server = shared.name, "all connections have ended");
    }
}

/// A connection that has come in.
enum Accepted {
    Tcp(tokio::net::TcpStream, SocketAddr),
    Unix(tokio::net::UnixStream),
}

impl Listener {
    async fn accept(&self) -> std::io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // Answers are small and somebody waits for them.
                stream.set_nodelay(true)?;
                Ok(Accepted::Tcp(stream, address))
            }
            Self::Unix(listener) => Ok(Accepted::Unix(listener.accept().await?.0)),
        }
    }
}

impl Shared {
    async fn connection<S>(self: Arc<Self>, stream: S, address: Option<SocketAddr>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Some(tls) = &self.tls else {
            return self.http(stream, Peer { address, ..Peer::default() }).await;
        };
        let handshake = tokio_rustls::TlsAcceptor::from(tls.config()).accept(stream);
        let stream = tokio::select! {
            result = tokio::time::timeout(self.limits.handshake, handshake) => match result {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return debug!(server = self.name, ?address, %error, "TLS handshake failed"),
                Err(_) => return debug!(server = self.name, ?address, "TLS handshake took too long"),
            },
            () = self.force.cancelled() => return,
        };
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let certificates = certificates.iter().map(|c| c.clone().into_owned()).collect();
        self.http(stream, Peer { address, certificates }).await;
    }

    async fn http<S>(&self, stream: S, peer: Peer)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let address = peer.address;
        let router = self.router.clone();
        let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            router.clone().call(request)
        });
        let connection = self.http.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let age = self.limits.max_age.map_or(Duration::from_secs(u32::MAX.into()), jittered);
        let old = tokio::time::sleep(age);
        tokio::select! {
            result = connection.as_mut() => return self.ended(address, result),
            () = self.drain.cancelled() => {}
            () = old => {}
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            result = connection.as_mut() => self.ended(address, result),
            () = self.force.cancelled() => {}
        }
    }

    fn ended(
        &self,
        address: Option<SocketAddr>,
        result: Result<(), Box<dyn std::error::Error + Send + Sync>>,
    ) {
        if let Err(error) = result {
            debug!(server = self.name, ?address, %error, "connection ended with an error");
        }
    }
}

/// Give or take a tenth, so that connections which came together don't go together.
fn jittered(age: Duration) -> Duration {
    age.mul_f64(rand::random_range(0.9..1.1))
}

#[cfg(test)]
mod tests;
