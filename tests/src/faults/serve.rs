//! One connection to the proxy, and the one to an API server behind it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::future::pending;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, RETRY_AFTER, TRANSFER_ENCODING,
};
use http::request::Parts;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, mpsc};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::call::{Call, Verb};
use super::rules::{Fault, FaultId};
use super::watching::Watching;
use super::{Moment, Next, Shared};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The connection ends without an answer.
#[derive(Debug)]
struct NoAnswer;

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no answer")
    }
}

impl std::error::Error for NoAnswer {}

/// An API server's address, and the connection to it.
struct Upstream {
    /// Which of the proxy's API servers, in the order in which they were set.
    number: u64,
    host: HeaderValue,
    sender: SendRequest<Full<Bytes>>,
}

/// One connection of a client.
struct Connection {
    shared: Arc<Shared>,
    /// Resets it.
    cut: CancellationToken,
    upstream: Mutex<Option<Upstream>>,
}

/// Serves a connection until its end.
pub(super) async fn connection(shared: Arc<Shared>, acceptor: TlsAcceptor, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let cut = shared.cut.lock().child_token();
    let this = Arc::new(Connection { shared, cut: cut.clone(), upstream: Mutex::default() });
    let service = service_fn(move |request| this.clone().serve(request));
    let mut connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // A client that goes away, or a request that isn't answered.
        _ = &mut connection => {}
        () = cut.cancelled() => {
            let stream = connection.into_parts().io.into_inner();
            // Without it the end would look orderly.
            let _ = stream.get_ref().0.set_zero_linger();
        }
    }
}

impl Connection {
    /// A request, from its arrival to its answer.
    async fn serve(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, NoAnswer> {
        let answer = self.clone().answer(request).await;
        if answer.is_err() {
            self.cut.cancel();
            // The reset comes before the orderly end that hyper would make.
            pending::<()>().await;
        }
        answer
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, NoAnswer> {
        let (mut parts, body) = request.into_parts();
        let body = body.collect().await.map_err(|_| NoAnswer)?.to_bytes();
        let call = self.shared.begun(Call::read(&parts, &body));
        let mut faults: BTreeMap<FaultId, Fault> =
            self.shared.rules.take(&call, &BTreeMap::new()).into_iter().collect();
        for (id, fault) in &faults {
            match fault {
                Fault::Delay(time) => tokio::time::sleep(*time).await,
                Fault::HoldRequest => self.shared.rules.removed(*id).await,
                Fault::Status { code, retry_after } => {
                    self.shared.answered(call.number, *code);
                    return Ok(refusal(*code, *retry_after));
                }
                Fault::Pages(size) => parts.uri = paged(&parts.uri, *size),
                Fault::Cut => return Err(NoAnswer),
                Fault::BlackHole => pending().await,
                _ => {}
            }
        }
        // On a task of its own: what has been forwarded is done to its end, also when the client gives up.
        let forwarded = tokio::spawn(self.clone().forward(call.clone(), parts, body));
        let answer = forwarded.await.map_err(|_| NoAnswer)??;
        let call = Call { status: Some(answer.head.status.as_u16()), ..call };
        faults.extend(self.shared.rules.take_succeeded(&call));
        for (id, fault) in &faults {
            match fault {
                Fault::HoldAnswer(Some(time)) => tokio::time::sleep(*time).await,
                Fault::HoldAnswer(None) => self.shared.rules.removed(*id).await,
                Fault::DropAnswer => return Err(NoAnswer),
                Fault::ReplaceAnswer { code } => return Ok(refusal(*code, None)),
                _ => {}
            }
        }
        let Answer { head, body } = answer;
        let body = match body {
            Received::Whole(body) => slowly(body, &faults),
            Received::Watch(body) => self.watching(call, faults, body),
        };
        Ok(Response::from_parts(head, body))
    }

    fn watching(&self, call: Call, faults: BTreeMap<FaultId, Fault>, body: Incoming) -> Body {
        let (out, events) = mpsc::channel(1);
        let rules = self.shared.rules.clone();
        let watching = Watching { rules, call, faults, cut: self.cut.clone(), out };
        tokio::spawn(watching.run(body));
        streamed(ReceiverStream::new(events))
    }

    /// Asks the API server, and the hook before and after that.
    async fn forward(self: Arc<Self>, call: Call, parts: Parts, body: Bytes) -> Result<Answer, NoAnswer> {
        self.shared.hook(&call, Moment::Before).await?;
        let is_watch = call.verb == Verb::Watch;
        let (mut head, body) = self.ask(parts, body).await.map_err(|_| NoAnswer)?.into_parts();
        head.headers.remove(CONTENT_LENGTH);
        head.headers.remove(TRANSFER_ENCODING);
        head.headers.remove(CONNECTION);
        let status = head.status.as_u16();
        let body = if is_watch && head.status.is_success() {
            Received::Watch(body)
        } else {
            Received::Whole(body.collect().await.map_err(|_| NoAnswer)?.to_bytes())
        };
        self.shared.answered(call.number, status);
        self.shared.hook(&Call { status: Some(status), ..call }, Moment::After).await?;
        Ok(Answer { head, body })
    }

    async fn ask(&self, parts: Parts, body: Bytes) -> anyhow::Result<Response<Incoming>> {
        let mut upstream = self.upstream.lock().await;
        let mut request = Request::builder()
            .method(parts.method)
            .uri(parts.uri.path_and_query().map_or("/", |path| path.as_str()))
            .body(Full::new(body))?;
        *request.headers_mut() = parts.headers;
        // Bodies are read here.
        for name in [ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
            request.headers_mut().remove(name);
        }
        for _ in 0..2 {
            let current = match upstream.take() {
                Some(current)
                    if current.number == self.shared.upstream().0 && !current.sender.is_closed() =>
                {
                    current
                }
                _ => self.connect().await?,
            };
            let current = upstream.insert(current);
            if current.sender.ready().await.is_err() {
                *upstream = None;
                continue;
            }
            request.headers_mut().insert(HOST, current.host.clone());
            match current.sender.try_send_request(request).await {
                Ok(answer) => return Ok(answer),
                Err(mut error) => match error.take_message() {
                    // It was not sent: the API server had ended a connection that nobody used.
                    Some(unsent) => request = unsent,
                    None => return Err(error.into_error().into()),
                },
            }
            *upstream = None;
        }
        anyhow::bail!("no connection")
    }

    async fn connect(&self) -> anyhow::Result<Upstream> {
        let (number, server, tls) = self.shared.upstream();
        let uri: Uri = server.parse()?;
        let host = uri.host().unwrap_or_default().to_owned();
        let stream = TcpStream::connect((host.as_str(), uri.port_u16().unwrap_or(443))).await?;
        stream.set_nodelay(true)?;
        let stream = TlsConnector::from(tls).connect(ServerName::try_from(host)?, stream).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let host = HeaderValue::from_str(uri.authority().map_or("", |authority| authority.as_str()))?;
        Ok(Upstream { number, host, sender })
    }
}

/// The answer of an API server.
struct Answer {
    head: http::response::Parts,
    body: Received,
}

enum Received {
    Whole(Bytes),
    Watch(Incoming),
}

/// A body, in pieces where a fault says so.
fn slowly(body: Bytes, faults: &BTreeMap<FaultId, Fault>) -> Body {
    let slow = faults.values().find_map(|fault| match fault {
        Fault::SlowBytes { bytes, every } => Some((*bytes, *every)),
        _ => None,
    });
    let Some((size, every)) = slow else { return Full::new(body).boxed_unsync() };
    let pieces: Vec<Bytes> = body.chunks(size.max(1)).map(|piece| body.slice_ref(piece)).collect();
    streamed(futures::stream::iter(pieces).then(move |piece| async move {
        tokio::time::sleep(every).await;
        piece
    }))
}

fn streamed(pieces: impl futures::Stream<Item = Bytes> + Send + 'static) -> Body {
    StreamBody::new(pieces.map(|piece| Ok(Frame::data(piece)))).boxed_unsync()
}

/// An answer with a `Status` that the API server hasn't given.
fn refusal(code: u16, retry_after: Option<u32>) -> Response<Body> {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    };
    let status = super::status(code, reason, "a fault that a test has set").to_string();
    let mut response = Response::new(Full::new(Bytes::from(status)).boxed_unsync());
    *response.status_mut() =
        http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

/// The same request with another size of pages.
fn paged(uri: &Uri, size: u32) -> Uri {
    let query = uri.query().unwrap_or_default();
    let mut pairs: Vec<String> = query
        .split('&')
        .filter(|pair| !pair.is_empty() && !pair.starts_with("limit="))
        .map(str::to_owned)
        .collect();
    pairs.push(format!("limit={size}"));
    format!("{}?{}", uri.path(), pairs.join("&")).parse().unwrap_or_else(|_| uri.clone())
}

impl Shared {
    /// Asks the hook about a write.
    async fn hook(&self, call: &Call, moment: Moment) -> Result<(), NoAnswer> {
        let hook = self.hook.lock().clone().filter(|_| call.is_write());
        let Some(hook) = hook else { return Ok(()) };
        let call = call.clone();
        match tokio::task::spawn_blocking(move || hook(&call, moment)).await {
            Ok(Next::GoOn) => Ok(()),
            Ok(Next::Drop) | Err(_) => Err(NoAnswer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_the_size_that_a_fault_says() {
        let of = |uri: &str| paged(&uri.parse().unwrap(), 2).to_string();
        assert_eq!(of("/api/v1/nodes?limit=500&continue=x"), "/api/v1/nodes?continue=x&limit=2");
        assert_eq!(of("/api/v1/nodes"), "/api/v1/nodes?limit=2");
    }
}
