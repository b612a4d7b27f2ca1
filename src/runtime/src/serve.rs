//! The accept loop.
//!
//! `axum::serve` sets no timers, so a client that never finishes its TLS handshake or its headers would hold a
//! connection for ever; nor does it limit connections or their age. This one does. Where there is no room for one more, the
//! connection that has been idle longest is closed.
//!
//! It serves axum's `Router`; tonic's `Routes` become one by `into_axum_router()`, any other service by
//! `Router::new().fallback_service(..)`.

mod activity;
mod connection;
mod slots;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use rustls_pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

pub use self::slots::network;
use self::slots::{Full, Place, Places};
use crate::bind::{Accepted, Listener};
use crate::tls::ServerTls;

/// How long to wait after a connection could not be accepted. There are no file descriptors left, most likely: trying
/// again at once would only burn the processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a client may take.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at once, 1 at least. For one more the one that has been idle longest is closed; where something is being
    /// answered on all, further ones wait in the kernel's queue.
    pub max_connections: usize,
    /// Connections at once from one address (of IPv6: from one network of 64 bits), 1 at least. For one more, one from there is
    /// closed. `None`: as many as there may be.
    pub per_address: Option<usize>,
    /// Connections at once of one identity. For one more, one of the same identity is closed; where something is being answered on
    /// all of them, the newcomer is. `None`: as many as there may be.
    pub per_identity: Option<PerIdentity>,
    /// TLS handshakes at once, 1 at least. For one more the oldest is given up.
    pub handshakes: usize,
    /// Time for the TLS handshake.
    pub handshake: Duration,
    /// Time from there to the end of the first request's headers (HTTP/1), or of the connection preface (HTTP/2). Who
    /// connects has something to say.
    pub headers: Duration,
    /// Time between an answer and the end of the next request's headers (HTTP/1).
    pub idle: Duration,
    /// Time for a request: headers, body, and answer. A client that never finishes its body, or never takes the answer, ends here.
    pub request: Duration,
    /// Whether a request of HTTP/2 may be a stream of any length, as in gRPC. HTTP/1 has no such.
    pub streams: bool,
    /// Streams of one HTTP/2 connection at once.
    pub max_streams: u32,
    /// How often an HTTP/2 peer is asked whether it is there, and how long it may take to answer. A half-open connection
    /// ends after the sum.
    pub keepalive: (Duration, Duration),
    /// How old a connection may become before it is asked to end, give or take a tenth. `None`: no limit.
    pub max_age: Option<Duration>,
    /// How long a connection that is too old may take to end. Then it is cut, endless streams and all: their client's
    /// certificate was verified when the connection began, and never since.
    pub age_grace: Duration,
    /// Bytes of an HTTP/2 stream that may be under way unread.
    pub window: u32,
    /// Bytes of an HTTP/2 connection that may be under way unread. `None`: four times as many as of a stream.
    pub connection_window: Option<u32>,
}

/// Connections of one identity.
#[derive(Debug, Clone, Copy)]
pub struct PerIdentity {
    /// How many at once.
    pub most: usize,
    /// The identity in a verified certificate. Those of whom none is known have one together.
    pub identify: fn(&CertificateDer<'_>) -> String,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 4096,
            per_address: None,
            per_identity: None,
            handshakes: 256,
            handshake: Duration::from_secs(10),
            headers: Duration::from_secs(10),
            // The API server keeps idle connections for 90 s and would rather find them open.
            idle: Duration::from_secs(120),
            // Twice what the API server waits at most.
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
    leaving: CancellationToken,
}

/// What all connections share.
struct Shared {
    name: &'static str,
    http1: auto::Builder<TokioExecutor>,
    http2: auto::Builder<TokioExecutor>,
    tls: Option<Arc<ServerTls>>,
    limits: Limits,
    places: Arc<Places>,
    router: Router,
    leaving: CancellationToken,
    drain: CancellationToken,
    force: CancellationToken,
}

impl Server {
    /// A server in plain text with default limits. The name is for logs.
    pub fn new(name: &'static str, listener: Listener) -> Self {
        Self { name, listener, tls: None, limits: Limits::default(), leaving: CancellationToken::new() }
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

    /// Tells clients of HTTP/1 from then on, with each answer, to end the connection. While others still route to this
    /// server, those who have a connection move away from it: at the drain what is idle is closed, and a client that
    /// sends a request in that very moment could not know whether it was heard. HTTP/2 has GOAWAY for that.
    #[must_use]
    pub fn leaving(mut self, leaving: CancellationToken) -> Self {
        self.leaving = leaving;
        self
    }

    /// Serves HTTP/1.1 and HTTP/2 until `drain`, finishes what is under way then, and drops what is left at `force`.
    /// Ends when all connections have.
    pub async fn run(self, router: Router, drain: CancellationToken, force: CancellationToken) {
        let Self { name, listener, tls, limits, leaving } = self;
        let (http1, http2) = protocols(&limits);
        let places = Places::new(name, &limits);
        let shared =
            Arc::new(Shared { name, http1, http2, tls, limits, places, router, leaving, drain, force });
        let connections = TaskTracker::new();
        info!(server = name, address = %listener, tls = shared.tls.is_some(), "serving");
        let mut failing = false;
        while let Some(accepted) = shared.accept(&listener).await {
            let accepted = match accepted {
                Ok(accepted) => accepted,
                Err(error) if is_the_clients(&error) => continue,
                Err(error) => {
                    if !failing {
                        warn!(server = name, %error, "connections can't be accepted; trying on");
                    }
                    failing = true;
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            if std::mem::take(&mut failing) {
                info!(server = name, "connections are accepted again");
            }
            let Some(place) = shared.place(accepted.address()).await else { continue };
            let shared = shared.clone();
            connections.spawn(async move {
                let occupant = place.occupant.clone();
                let served = async {
                    match accepted {
                        Accepted::Tcp(stream, address) => shared.connection(stream, Some(address), &occupant).await,
                        Accepted::Unix(stream) => shared.connection(stream, None, &occupant).await,
                    }
                };
                tokio::select! {
                    () = served => {}
                    () = occupant.cut.cancelled() => debug!(server = name, "connection cut: others need its place"),
                }
                drop(place);
            });
        }
        drop(listener);
        connections.close();
        connections.wait().await;
        debug!(server = name, "all connections have ended");
    }
}

impl Shared {
    /// The next connection, or `None` when there shall be no more.
    async fn accept(&self, listener: &Listener) -> Option<std::io::Result<Accepted>> {
        tokio::select! {
            next = listener.accept() => Some(next),
            () = self.drain.cancelled() => None,
        }
    }

    /// A place for a connection; `None` where its address has too many that are busy, and when there shall be no more.
    async fn place(&self, address: Option<SocketAddr>) -> Option<Place> {
        loop {
            match self.places.take(address, self.tls.is_some()) {
                Ok(place) => return Some(place),
                Err(Full::Address | Full::Identity) => {
                    debug!(
                        server = self.name,
                        ?address,
                        "connection refused: its address has too many that are busy"
                    );
                    return None;
                }
                // Others wait in the kernel's queue meanwhile.
                Err(Full::All) => tokio::select! {
                    () = self.places.freed() => {}
                    () = self.drain.cancelled() => return None,
                },
            }
        }
    }
}

/// HTTP/1 and HTTP/2 with these limits.
fn protocols(limits: &Limits) -> (auto::Builder<TokioExecutor>, auto::Builder<TokioExecutor>) {
    let mut http = auto::Builder::new(TokioExecutor::new());
    // hyper's timer for headers also runs while a connection is idle, so it can't be shorter than that.
    http.http1().timer(TokioTimer::new()).header_read_timeout(limits.idle).max_buf_size(64 << 10);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_streams)
        .keep_alive_interval(limits.keepalive.0)
        .keep_alive_timeout(limits.keepalive.1)
        .initial_stream_window_size(limits.window)
        .initial_connection_window_size(limits.connection_window.unwrap_or(limits.window.saturating_mul(4)))
        .max_header_list_size(32 << 10);
    (http.clone().http1_only(), http.http2_only())
}

/// Whether only this one connection failed: it was gone before it could be accepted.
fn is_the_clients(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

#[cfg(test)]
mod tests;
