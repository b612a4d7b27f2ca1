//! The server: accepts connections and serves HTTP/1.1 and HTTP/2 on them, with limits.
//!
//! `axum::serve` has no timeouts for TLS handshakes and headers, and no limits for the number and the age of connections. This
//! server has both. At a limit it closes an idle connection of a client that has many.
//!
//! It serves axum's `Router`. tonic's `Routes` are converted by `into_axum_router()`, any other service by
//! `Router::new().fallback_service(..)`.

mod activity;
mod connection;
mod slots;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures::future::BoxFuture;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use rustls_pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::field::display;
use tracing::{debug, info, warn};

use self::slots::{ConnectionSlot, ConnectionTable, LimitReached};
pub use self::slots::{host, network};
use crate::bind::{Accepted, Listener};
use crate::tls::ServerTls;

/// Pause after `accept` has failed, most likely because there are no file descriptors left: an immediate retry would fail too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits for clients.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum number of connections, at least 1. For one more, an idle connection is closed, by the order in `slots`. If all have
    /// a request in progress, further ones wait in the kernel's queue.
    pub max_connections: usize,
    /// Maximum number of connections from one address, at least 1. For one more, a connection from there is closed. `None`: no limit.
    pub per_address: Option<usize>,
    /// What counts as one address: [`network`], or [`host`] where one network has many clients.
    pub address_of: fn(IpAddr) -> IpAddr,
    /// Maximum number of connections of one identity. For one more, a connection of the same identity is closed; if all of them
    /// have a request in progress, the new one is. `None`: no limit.
    pub per_identity: Option<PerIdentity>,
    /// Maximum number of TLS handshakes in progress, at least 1. For one more, one is aborted, by the same order.
    pub handshakes: usize,
    /// Timeout of the TLS handshake.
    pub handshake: Duration,
    /// Timeout from there to the end of the first request's headers (HTTP/1) or of the connection preface (HTTP/2).
    pub headers: Duration,
    /// Timeout from a response to the end of the next request's headers (HTTP/1).
    pub idle: Duration,
    /// Timeout of a request, from its headers until the client has accepted the response.
    pub request: Duration,
    /// Whether requests of HTTP/2 can be streams of any length, as in gRPC.
    pub streams: bool,
    /// Maximum number of open streams of an HTTP/2 connection.
    pub max_streams: u32,
    /// Interval and timeout of HTTP/2 pings. A half-open connection is closed after the sum.
    pub keepalive: (Duration, Duration),
    /// Age, plus or minus a tenth, at which a connection is closed gracefully. `None`: no limit.
    pub max_age: Option<Duration>,
    /// How long closing a connection gracefully may take at that age. Then it is closed forcibly with all of its streams, because
    /// the client certificate was verified only when the connection was opened.
    pub age_grace: Duration,
    /// Flow-control window of an HTTP/2 stream, in bytes.
    pub window: u32,
    /// Flow-control window of an HTTP/2 connection, in bytes. `None`: four times that of a stream.
    pub connection_window: Option<u32>,
}

/// Limit of connections of one identity.
#[derive(Debug, Clone, Copy)]
pub struct PerIdentity {
    /// Maximum number of connections.
    pub most: usize,
    /// Returns the identity in a verified certificate. Certificates for which it returns the same text share the limit.
    pub identify: fn(&CertificateDer<'_>) -> String,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 4096,
            per_address: None,
            address_of: network,
            per_identity: None,
            handshakes: 256,
            handshake: Duration::from_secs(10),
            headers: Duration::from_secs(10),
            // Longer than the 90 s for which the API server keeps idle connections, so that it closes them first.
            idle: Duration::from_secs(120),
            // Twice the longest timeout of an API server's webhook request.
            request: Duration::from_secs(60),
            streams: true,
            max_streams: 256,
            keepalive: (Duration::from_secs(10), Duration::from_secs(10)),
            max_age: None,
            age_grace: Duration::from_secs(20),
            window: 1 << 20,
            connection_window: None,
        }
    }
}

/// The client of a connection, in the extensions of each request.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    /// Its address; `None` on a Unix socket.
    pub address: Option<SocketAddr>,
    /// Its verified certificate chain, its own certificate first; empty if it has presented none.
    pub certificates: Arc<[CertificateDer<'static>]>,
}

/// A server: a listener with limits and optional TLS.
#[derive(Debug)]
pub struct Server {
    name: &'static str,
    listener: Listener,
    tls: Option<Arc<ServerTls>>,
    /// Whether clients are asked for a certificate if their CA is set.
    asks: bool,
    limits: Limits,
    leaving: CancellationToken,
}

struct Shared {
    name: &'static str,
    http1: auto::Builder<TokioExecutor>,
    http2: auto::Builder<TokioExecutor>,
    tls: Option<Arc<ServerTls>>,
    asks: bool,
    limits: Limits,
    table: Arc<ConnectionTable>,
    router: Router,
    leaving: CancellationToken,
    drain: CancellationToken,
    force: CancellationToken,
}

impl Server {
    /// A server without TLS, with default limits. The name is for logs.
    pub fn new(name: &'static str, listener: Listener) -> Self {
        Self {
            name,
            listener,
            tls: None,
            asks: true,
            limits: Limits::default(),
            leaving: CancellationToken::new(),
        }
    }

    /// With TLS.
    #[must_use]
    pub fn tls(mut self, tls: Arc<ServerTls>) -> Self {
        self.tls = Some(tls);
        self
    }

    /// With TLS, and without certificates of clients, which are identified by other means.
    #[must_use]
    pub fn open_tls(mut self, tls: Arc<ServerTls>) -> Self {
        self.tls = Some(tls);
        self.asks = false;
        self
    }

    /// With these limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Once this is cancelled, each HTTP/1 response has `Connection: close`, so that clients move to other replicas before the
    /// drain. The drain closes idle connections, and a client that sends a request at that moment could not know whether it was
    /// processed. HTTP/2 has GOAWAY for that.
    #[must_use]
    pub fn leaving(mut self, leaving: CancellationToken) -> Self {
        self.leaving = leaving;
        self
    }

    /// Serves until `drain` is cancelled, then finishes the requests in progress, and closes all connections when `force` is
    /// cancelled. The future ends when all connections are closed.
    // It is boxed here, and not where it is awaited, because each crate that polls it would have its own copy of hyper and h2.
    pub fn run(
        self,
        router: Router,
        drain: CancellationToken,
        force: CancellationToken,
    ) -> BoxFuture<'static, ()> {
        Box::pin(self.accept_all(router, drain, force))
    }

    async fn accept_all(self, router: Router, drain: CancellationToken, force: CancellationToken) {
        let Self { name, listener, tls, asks, limits, leaving } = self;
        let (http1, http2) = protocols(&limits);
        let table = ConnectionTable::new(name, &limits);
        let shared =
            Arc::new(Shared { name, http1, http2, tls, asks, limits, table, router, leaving, drain, force });
        let connections = TaskTracker::new();
        info!(server = name, address = %listener, tls = shared.tls.is_some(), "serving");
        let mut failing = false;
        while let Some(accepted) = shared.accept(&listener).await {
            let accepted = match accepted {
                Ok(accepted) => accepted,
                Err(error) if is_connection_error(&error) => continue,
                Err(error) => {
                    if !failing {
                        warn!(server = name, %error, "failed to accept a connection; retrying");
                    }
                    failing = true;
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            if std::mem::take(&mut failing) {
                info!(server = name, "accepting connections again");
            }
            let Some(slot) = shared.slot(accepted.address()).await else { continue };
            let shared = shared.clone();
            connections.spawn(async move {
                let state = slot.state.clone();
                let served = async {
                    match accepted {
                        Accepted::Tcp(stream, address) => shared.connection(stream, Some(address), &state).await,
                        Accepted::Unix(stream) => shared.connection(stream, None, &state).await,
                    }
                };
                tokio::select! {
                    () = served => {}
                    () = state.evicted.cancelled() => {
                        debug!(server = name, reason = "connection limit reached", "connection closed forcibly");
                    }
                }
                drop(slot);
            });
        }
        drop(listener);
        connections.close();
        connections.wait().await;
        debug!(server = name, "all connections are closed");
    }
}

impl Shared {
    /// Accepts the next connection; `None` after the drain has begun.
    async fn accept(&self, listener: &Listener) -> Option<std::io::Result<Accepted>> {
        tokio::select! {
            next = listener.accept() => Some(next),
            () = self.drain.cancelled() => None,
        }
    }

    /// Waits for a slot for a connection; `None` if the limit of its address is reached, or the drain has begun.
    async fn slot(&self, address: Option<SocketAddr>) -> Option<ConnectionSlot> {
        loop {
            match self.table.add(address, self.tls.is_some()) {
                Ok(slot) => return Some(slot),
                Err(limit @ (LimitReached::Address | LimitReached::Identity)) => {
                    let address = address.map(display);
                    debug!(server = self.name, address, %limit, "connection refused: limit reached");
                    return None;
                }
                // Further connections wait in the kernel's queue meanwhile.
                Err(LimitReached::Server) => tokio::select! {
                    () = self.table.freed() => {}
                    () = self.drain.cancelled() => return None,
                },
            }
        }
    }
}

/// Builders of HTTP/1 and HTTP/2 connections with these limits.
fn protocols(limits: &Limits) -> (auto::Builder<TokioExecutor>, auto::Builder<TokioExecutor>) {
    let mut http = auto::Builder::new(TokioExecutor::new());
    // hyper's timer for headers also runs while a connection is idle, so it can't be shorter than `idle`.
    http.http1().timer(TokioTimer::new()).header_read_timeout(limits.idle).max_buf_size(64 << 10);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_streams)
        .keep_alive_interval(limits.keepalive.0)
        .keep_alive_timeout(limits.keepalive.1)
        .initial_stream_window_size(limits.window)
        .initial_connection_window_size(limits.connection_window.unwrap_or(limits.window.saturating_mul(4)))
        .max_header_list_size(32 << 10)
        // What a client that doesn't read may leave in memory, of each of its calls.
        .max_send_buf_size(64 << 10);
    (http.clone().http1_only(), http.http2_only())
}

/// Whether the error concerns one connection, which was closed before it was accepted, and not the listener.
fn is_connection_error(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

#[cfg(test)]
mod tests;
