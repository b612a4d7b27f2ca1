//! One connection, from accepting it until it is closed.

use std::convert::Infallible;
use std::future::pending;
use std::io::{self, Cursor};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, Chain, Join, ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tower::Service;
use tracing::debug;
use tracing::field::display;

use super::activity::{ObservedStream, RequestBody};
use super::slots::ConnectionState;
use super::{Peer, Shared};
use crate::environment::Clock;

/// The connection preface of HTTP/2 (RFC 9113, 3.4). No request of HTTP/1 starts with it.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Http1,
    Http2,
}

/// A stream whose first bytes were peeked, and are read again.
type Peeked<S> = Join<Chain<Cursor<Vec<u8>>, ReadHalf<S>>, WriteHalf<S>>;

impl Shared {
    pub(super) async fn connection<S>(
        self: Arc<Self>,
        stream: S,
        address: Option<SocketAddr>,
        state: &Arc<ConnectionState>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Some(tls) = &self.tls else {
            return self.begin(stream, Peer { address, ..Peer::default() }, state).await;
        };
        let peer_address = address;
        let address = address.map(display);
        let config = if self.asks { tls.config() } else { tls.open_config() };
        let handshake = tokio_rustls::TlsAcceptor::from(config).accept(stream);
        let stream = tokio::select! {
            result = timeout(self.limits.handshake, handshake) => match result {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return debug!(server = self.name, address, %error, "TLS handshake failed"),
                Err(_) => return debug!(server = self.name, address, "timeout of the TLS handshake"),
            },
            () = self.force.cancelled() => return,
        };
        let session = stream.get_ref().1;
        let certificates = session.peer_certificates().unwrap_or_default();
        let certificates: Arc<[_]> = certificates.iter().map(|c| c.clone().into_owned()).collect();
        if let Err(limit) = self.table.settle(state, certificates.first()) {
            return debug!(server = self.name, address, %limit, "connection refused: limit reached");
        }
        // ALPN has negotiated the version.
        let version = if session.alpn_protocol() == Some(b"h2") { Version::Http2 } else { Version::Http1 };
        let deadline = Clock::system().now() + self.limits.headers;
        let peer = Peer { address: peer_address, certificates: certificates.clone() };
        tokio::select! {
            () = self.http(version, stream, peer, Some(deadline), state) => {}
            // Without GOAWAY: a client that is no longer trusted must not decide when its last stream ends.
            () = tls.distrusted(&certificates) => {
                debug!(server = self.name, address, "connection closed: the client certificate is no longer trusted");
            }
        }
    }

    /// Detects the version of HTTP on a plain-text connection. hyper can do so too, but without a timeout.
    async fn begin<S>(&self, stream: S, peer: Peer, state: &Arc<ConnectionState>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let address = peer.address.map(display);
        let deadline = Clock::system().now() + self.limits.headers;
        let version = tokio::select! {
            // A request that was received before the drain is served.
            biased;
            version = timeout_at(deadline, version(stream)) => version,
            () = self.drain.cancelled() => return,
        };
        match version {
            // The preface of HTTP/2 is complete; the headers of the first HTTP/1 request aren't.
            Ok(Ok(Some((Version::Http2, stream)))) => {
                self.http(Version::Http2, stream, peer, None, state).await;
            }
            Ok(Ok(Some((version, stream)))) => {
                self.http(version, stream, peer, Some(deadline), state).await;
            }
            Ok(Ok(None)) => {
                debug!(server = self.name, address, "connection closed by the client without a request");
            }
            Ok(Err(error)) => debug!(server = self.name, address, %error, "connection failed"),
            Err(_) => debug!(
                server = self.name,
                address,
                reason = "no request received",
                "connection closed forcibly"
            ),
        }
    }

    /// Serves requests. The headers of the first have to be complete before the deadline.
    async fn http<S>(
        &self,
        version: Version,
        stream: S,
        peer: Peer,
        deadline: Option<Instant>,
        state: &Arc<ConnectionState>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (name, address, http1) = (self.name, peer.address.map(display), version == Version::Http1);
        let limit = (http1 || !self.limits.streams).then_some(self.limits.request);
        let had_request = Arc::new(AtomicBool::new(deadline.is_none()));
        let (router, has_request) = (self.router.clone(), had_request.clone());
        let leaving = http1.then_some(self.leaving.clone());
        let activity = state.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            has_request.store(true, Ordering::Relaxed);
            let (elapsed, open) = activity.request_started();
            let open = Arc::new(open);
            let mut request = request.map(|body| RequestBody::new(body, open.clone(), limit.is_none()));
            request.extensions_mut().insert(peer.clone());
            let (response, leaving) = (router.clone().call(request), leaving.clone());
            async move {
                let mut response = match limit {
                    None => response.await?,
                    Some(limit) => match timeout(limit.saturating_sub(elapsed), response).await {
                        Ok(response) => response?,
                        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, too_long(limit)).into_response(),
                    },
                };
                if leaving.is_some_and(|leaving| leaving.is_cancelled()) {
                    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                // The body owns the request, which so stays open until the response is complete.
                Ok::<_, Infallible>(response.map(|body| {
                    body.map_err(move |error| {
                        let _open = &open;
                        error
                    })
                }))
            }
        });
        let stream = ObservedStream { inner: stream, state: state.clone(), http1 };
        let builder = match version {
            Version::Http1 => &self.http1,
            Version::Http2 => &self.http2,
        };
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let limits = &self.limits;
        let silent = async {
            if let Some(deadline) = deadline {
                sleep_until(deadline).await;
            }
            if had_request.load(Ordering::Relaxed) {
                pending::<()>().await;
            }
        };
        let mut timed_out = pin!(async {
            tokio::select! {
                () = silent => "no request received",
                reason = state.overdue(limits.headers, limits.request, limit) => reason,
            }
        });
        let ended = |result: Result<(), _>| {
            if let Err(error) = result {
                let error: Box<dyn std::error::Error + Send + Sync> = error;
                debug!(server = name, address, %error, "connection failed");
            }
        };
        let closed = |reason| debug!(server = name, address, reason, "connection closed forcibly");
        let grace = tokio::select! {
            result = connection.as_mut() => return ended(result),
            reason = timed_out.as_mut() => return closed(reason),
            // The process limits the time of a drain by `force`.
            () = self.drain.cancelled() => None,
            () = elapsed(limits.max_age.map(jittered)) => Some(limits.age_grace),
        };
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            result = connection.as_mut() => ended(result),
            reason = timed_out.as_mut() => closed(reason),
            () = elapsed(grace) => closed("maximum age exceeded"),
            () = self.force.cancelled() => closed("the server is shutting down"),
        }
    }
}

fn too_long(limit: Duration) -> String {
    format!(
        "the request took longer than {} s, which is the limit for headers, body and response together\n",
        limit.as_secs_f32()
    )
}

/// Reads until the version of HTTP is known. `None`: the client has closed the connection without a request.
async fn version<S>(mut stream: S) -> io::Result<Option<(Version, Peeked<S>)>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut beginning = Vec::with_capacity(PREFACE.len());
    while beginning.len() < PREFACE.len() && PREFACE.starts_with(&beginning) {
        if stream.read_buf(&mut beginning).await? == 0 {
            break;
        }
    }
    if beginning.is_empty() {
        return Ok(None);
    }
    let version = if beginning.starts_with(PREFACE) { Version::Http2 } else { Version::Http1 };
    let (reader, writer) = tokio::io::split(stream);
    Ok(Some((version, tokio::io::join(Cursor::new(beginning).chain(reader), writer))))
}

/// Returns after this time, or never.
async fn elapsed(time: Option<Duration>) {
    match time {
        Some(time) => sleep(time).await,
        None => pending().await,
    }
}

/// Adds a jitter of a tenth, so that connections which were opened together aren't closed together.
#[allow(clippy::disallowed_methods, reason = "simulations have no real connections")]
fn jittered(age: Duration) -> Duration {
    age.mul_f64(rand::random_range(0.9..1.1))
}
