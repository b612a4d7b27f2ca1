//! One connection, from its first byte to its end.

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
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, Chain, Join, ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tower::Service;
use tracing::debug;

use super::activity::{Answer, Question, Stream};
use super::slots::Occupant;
use super::{Peer, Shared};
use crate::environment::Clock;

/// What each HTTP/2 connection begins with (RFC 9113, 3.4), and no request of HTTP/1 does.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Http1,
    Http2,
}

/// A stream of which the beginning was read already, and is read once more.
type Begun<S> = Join<Chain<Cursor<Vec<u8>>, ReadHalf<S>>, WriteHalf<S>>;

impl Shared {
    pub(super) async fn connection<S>(
        self: Arc<Self>,
        stream: S,
        address: Option<SocketAddr>,
        occupant: &Arc<Occupant>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Some(tls) = &self.tls else {
            return self.begin(stream, Peer { address, ..Peer::default() }, occupant).await;
        };
        let handshake = tokio_rustls::TlsAcceptor::from(tls.config()).accept(stream);
        let stream = tokio::select! {
            result = timeout(self.limits.handshake, handshake) => match result {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return debug!(server = self.name, ?address, %error, "TLS handshake failed"),
                Err(_) => return debug!(server = self.name, ?address, "TLS handshake took too long"),
            },
            () = self.force.cancelled() => return,
        };
        occupant.shaken();
        let session = stream.get_ref().1;
        let certificates = session.peer_certificates().unwrap_or_default();
        let certificates: Arc<[_]> = certificates.iter().map(|c| c.clone().into_owned()).collect();
        if let Some(leaf) = certificates.first() {
            occupant.verified();
            if self.places.identify(occupant, leaf).is_err() {
                return debug!(
                    server = self.name,
                    ?address,
                    "connection refused: its identity has too many that are busy"
                );
            }
        }
        // In TLS the handshake has settled it, so there is nothing to find out.
        let version = if session.alpn_protocol() == Some(b"h2") { Version::Http2 } else { Version::Http1 };
        let deadline = Clock::system().now() + self.limits.headers;
        let peer = Peer { address, certificates: certificates.clone() };
        tokio::select! {
            () = self.http(version, stream, peer, Some(deadline), occupant) => {}
            // Not by GOAWAY: who isn't trusted any more doesn't decide when its last stream ends.
            () = tls.distrusted(&certificates) => {
                debug!(server = self.name, ?address, "connection closed: its certificate is not trusted any more");
            }
        }
    }

    /// Finds out which HTTP is spoken in plain text. hyper can do so too, but waits for ever for a client that says nothing.
    async fn begin<S>(&self, stream: S, peer: Peer, occupant: &Arc<Occupant>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let address = peer.address;
        let deadline = Clock::system().now() + self.limits.headers;
        let version = tokio::select! {
            // A request that has come in before the drain is served.
            biased;
            version = timeout_at(deadline, version(stream)) => version,
            () = self.drain.cancelled() => return,
        };
        match version {
            // HTTP/2 has said its preface; HTTP/1 has still to finish its first request.
            Ok(Ok(Some((Version::Http2, stream)))) => {
                self.http(Version::Http2, stream, peer, None, occupant).await;
            }
            Ok(Ok(Some((version, stream)))) => {
                self.http(version, stream, peer, Some(deadline), occupant).await;
            }
            Ok(Ok(None)) => debug!(server = self.name, ?address, "connection ended without a request"),
            Ok(Err(error)) => debug!(server = self.name, ?address, %error, "connection ended with an error"),
            Err(_) => debug!(server = self.name, ?address, "connection cut: no request came"),
        }
    }

    /// Serves requests. The first has to come before the deadline.
    async fn http<S>(
        &self,
        version: Version,
        stream: S,
        peer: Peer,
        deadline: Option<Instant>,
        occupant: &Arc<Occupant>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (name, address, http1) = (self.name, peer.address, version == Version::Http1);
        let limit = (http1 || !self.limits.streams).then_some(self.limits.request);
        let asked = Arc::new(AtomicBool::new(deadline.is_none()));
        let (router, noted, leaving) = (self.router.clone(), asked.clone(), self.leaving.clone());
        let leaving = http1.then_some(leaving);
        let who = occupant.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            noted.store(true, Ordering::Relaxed);
            let (passed, asked) = who.asked();
            let asked = Arc::new(asked);
            let mut request = request.map(|body| Question::new(body, asked.clone(), limit.is_none()));
            request.extensions_mut().insert(peer.clone());
            let (answer, leaving) = (router.clone().call(request), leaving.clone());
            async move {
                let mut answer = match limit {
                    None => answer.await?,
                    Some(limit) => match timeout(limit.saturating_sub(passed), answer).await {
                        Ok(answer) => answer?,
                        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, too_long(limit)).into_response(),
                    },
                };
                if leaving.is_some_and(|leaving| leaving.is_cancelled()) {
                    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(answer.map(|body| Answer::new(body, asked)))
            }
        });
        let stream = Stream { inner: stream, occupant: occupant.clone(), http1 };
        let builder = match version {
            Version::Http1 => &self.http1,
            Version::Http2 => &self.http2,
        };
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let mut silent = pin!(async {
            if let Some(deadline) = deadline {
                sleep_until(deadline).await;
            }
            if asked.load(Ordering::Relaxed) {
                pending::<()>().await;
            }
        });
        let limits = &self.limits;
        let mut overdue = pin!(occupant.overdue(limits.headers, limits.request, limit));
        let ended = |result: Result<(), _>| {
            if let Err(error) = result {
                let error: Box<dyn std::error::Error + Send + Sync> = error;
                debug!(server = name, ?address, %error, "connection ended with an error");
            }
        };
        let grace = tokio::select! {
            result = connection.as_mut() => return ended(result),
            () = silent.as_mut() => return debug!(server = name, ?address, "connection cut: no request came"),
            why = overdue.as_mut() => return debug!(server = name, ?address, "connection cut: {why}"),
            // How long this may take is the process's to say, by `force`.
            () = self.drain.cancelled() => None,
            () = elapsed(self.limits.max_age.map(jittered)) => Some(self.limits.age_grace),
        };
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            result = connection.as_mut() => ended(result),
            () = silent.as_mut() => debug!(server = name, ?address, "connection cut: no request came"),
            why = overdue.as_mut() => debug!(server = name, ?address, "connection cut: {why}"),
            () = elapsed(grace) => debug!(server = name, ?address, "connection cut: too old"),
            () = self.force.cancelled() => debug!(server = name, ?address, "connection cut: the server ends"),
        }
    }
}

fn too_long(limit: Duration) -> String {
    format!(
        "the request took longer than {} s, which is the limit for headers, body and answer together\n",
        limit.as_secs_f32()
    )
}

/// Reads until it is clear which HTTP is spoken. `None`: the other end left without a word.
async fn version<S>(mut stream: S) -> io::Result<Option<(Version, Begun<S>)>>
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

/// Ends after this time, or never.
async fn elapsed(time: Option<Duration>) {
    match time {
        Some(time) => sleep(time).await,
        None => pending().await,
    }
}

/// Give or take a tenth, so that connections which came together don't go together.
#[allow(clippy::disallowed_methods, reason = "connections are the system's, which nobody simulates")]
fn jittered(age: Duration) -> Duration {
    age.mul_f64(rand::random_range(0.9..1.1))
}
