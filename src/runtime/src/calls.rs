//! Clients of API servers, with deadlines for every call.
//!
//! A request and its whole response have to be complete within [`DEADLINE`], and a watch has to be open by then. An open watch
//! ends when nothing is received for [`SILENCE`]. Nothing is retried below the queues: a response with 429, 503 or 504 goes to
//! the caller, which requeues its key. Only [`client`] and [`client_over`] build clients, and [`read_only`] restricts one, so all of them
//! have these deadlines.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Limited;
use kube::client::ClientBuilder;
use kube::{Client, Config};
use pin_project_lite::pin_project;
use prometheus_client::encoding::EncodeLabelValue;
use tokio::time::{Instant, Sleep, sleep_until};
use tower::layer::layer_fn;
use tower::{BoxError, Service};

use crate::api_metrics;
use crate::environment::Clock;

/// Deadline of a request and its whole response, and of opening a watch. The API server's own limit for requests is 60 s; a
/// healthy one needs less than half of that for every request that Outrigger sends.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Longest time without a frame on an open watch. The API server sends a bookmark to each watch about once a minute, so a
/// watch that is silent for longer has lost its connection.
pub const SILENCE: Duration = Duration::from_secs(75);

/// Timeout of a TCP connection and its TLS handshake.
const CONNECT: Duration = Duration::from_secs(10);

/// Builds a client for this configuration.
///
/// # Errors
/// If certificates or credentials of the configuration can't be read.
pub fn client(mut config: Config) -> kube::Result<Client> {
    // By default kube retries 429, 503 and 504 up to 15 times within one call, with pauses of minutes.
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT);
    config.write_timeout = Some(DEADLINE);
    // Ends pooled connections whose peer is gone. Longer than the deadlines of this module, whose errors say more.
    config.read_timeout = Some(SILENCE + DEADLINE);
    config.reset_reader_on_write = true;
    Ok(ClientBuilder::try_from(config)?.with_layer(&layer_fn(limited)).build())
}

/// A client whose requests go to this service, with the same deadlines: for an API server within the process. It has to be called
/// on a tokio runtime.
pub fn client_over<S, B>(service: S) -> Client
where
    S: Service<Request<kube::client::Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Client::new(limited(service), "default")
}

/// A client whose calls go through another one, for what its output is sent to others. Calls for Secrets, and calls that aren't reads, dry
/// runs or reviews of access, go nowhere: their answer is that of an API server that refuses them. An answer of more than `most` bytes is an
/// error. It has to be called on a tokio runtime.
pub fn read_only(client: Client, most: usize) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let client = client.clone();
        async move {
            let answer = match withheld(&request) {
                Some(message) => refusal(message),
                None => client.send(request).await?,
            };
            Ok::<_, kube::Error>(answer.map(|body| Limited::new(body, most)))
        }
    });
    Client::new(service, namespace)
}

/// Why [`read_only`] sends a request to nobody.
fn withheld<T>(request: &Request<T>) -> Option<&'static str> {
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    let core: Vec<&str> = path.strip_prefix("/api/v1/").unwrap_or_default().split('/').collect();
    let resource = if core[0] == "namespaces" && core.len() > 2 { core[2] } else { core[0] };
    if resource == "secrets" {
        return Some("this command requests no Secrets");
    }
    let is_read = *request.method() == Method::GET
        || query.split('&').any(|pair| pair == "dryRun=All")
        || path.ends_with("accessreviews");
    (!is_read).then_some("this command writes nothing")
}

/// The answer of an API server that refuses a request with this message.
fn refusal(message: &str) -> Response<kube::client::Body> {
    let status = serde_json::json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden",
        "message": message});
    let mut answer = Response::new(kube::client::Body::from(status.to_string().into_bytes()));
    *answer.status_mut() = StatusCode::FORBIDDEN;
    answer
}

/// The object that a read has found; `None` where the API server says that there is no such object. That it doesn't serve the
/// kind, or not yet, says nothing about the object, so such an answer is an error here,
/// as every other error is.
pub fn found<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.code == 404 && status.reason == "NotFound" => Ok(None),
        Err(error) => Err(error),
    }
}

/// A service with the deadlines and metrics of this module.
pub(crate) fn limited<S>(inner: S) -> Deadlines<S> {
    Deadlines { inner }
}

/// The kind of a request. A list counts as `Get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Verb {
    Get,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
}

impl Verb {
    pub(crate) fn of<T>(request: &Request<T>) -> Self {
        let watch = |query: &str| query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"));
        match *request.method() {
            Method::POST => Self::Create,
            Method::PUT => Self::Update,
            Method::PATCH => Self::Patch,
            Method::DELETE => Self::Delete,
            _ if request.uri().query().is_some_and(watch) => Self::Watch,
            _ => Self::Get,
        }
    }
}

/// A call that has missed its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimedOut {
    /// The response was not complete within [`DEADLINE`]. A write may or may not have been committed.
    #[error("no complete response from the API server within {:?}", DEADLINE)]
    Answer,
    /// An open watch received nothing for [`SILENCE`].
    #[error("the open watch received nothing from the API server for {:?}", SILENCE)]
    Silence,
}

impl TimedOut {
    /// The missed deadline that this error is, or was caused by.
    pub fn in_chain(error: &(dyn std::error::Error + 'static)) -> Option<Self> {
        causes(error).find_map(|error| error.downcast_ref::<Self>().copied())
    }
}

/// An error and everything that caused it. `source` of an I/O error skips the error that it wraps.
pub(crate) fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| {
        match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        }
    })
}

/// The service below each client: ends calls in time, and counts them.
#[derive(Debug, Clone)]
pub(crate) struct Deadlines<S> {
    inner: S,
}

impl<S, A, B> Service<Request<A>> for Deadlines<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: 'static,
{
    type Response = Response<DeadlineBody<B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let verb = Verb::of(&request);
        let deadline = Clock::system().now() + DEADLINE;
        let response = self.inner.call(request);
        async move {
            let response = match tokio::time::timeout_at(deadline, response).await {
                Ok(response) => response.map_err(Into::into),
                Err(_) => Err(TimedOut::Answer.into()),
            };
            api_metrics::count_request(verb, response.as_ref().ok().map(Response::status));
            Ok(response?.map(|body| DeadlineBody::new(body, verb == Verb::Watch, deadline)))
        }
        .boxed()
    }
}

pin_project! {
    /// The body of a response. It fails when its deadline has passed.
    #[derive(Debug)]
    pub(crate) struct DeadlineBody<B> {
        #[pin]
        body: B,
        #[pin]
        timer: Sleep,
        kind: TimedOut,
    }
}

impl<B> DeadlineBody<B> {
    fn new(body: B, watch: bool, deadline: Instant) -> Self {
        let (kind, at) = if watch {
            (TimedOut::Silence, Clock::system().now() + SILENCE)
        } else {
            (TimedOut::Answer, deadline)
        };
        Self { body, timer: sleep_until(at), kind }
    }
}

impl<B: Body> Body for DeadlineBody<B>
where
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let mut this = self.project();
        // A frame resets the timer of a watch, and not that of another response.
        if *this.kind == TimedOut::Answer && this.timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(TimedOut::Answer.into())));
        }
        let frame = this.body.poll_frame(cx);
        if let Poll::Ready(Some(Ok(_))) = &frame {
            api_metrics::received();
        }
        if *this.kind == TimedOut::Silence {
            if frame.is_ready() {
                this.timer.reset(Clock::system().now() + SILENCE);
            } else if this.timer.poll(cx).is_ready() {
                return Poll::Ready(Some(Err(TimedOut::Silence.into())));
            }
        }
        frame.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
