//! Clients of API servers, and what every call of theirs is held to.
//!
//! Each call ends: a request and its whole answer have [`DEADLINE`], and so has the opening of a watch. An open watch ends
//! when nothing arrives for [`SILENCE`]. Nothing is retried below the queues: an answer of 429, 503 or 504 goes to the caller,
//! which requeues its key. [`client`] is the only place that builds a client, so no process can be without these limits.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use kube::client::ClientBuilder;
use kube::{Client, Config};
use pin_project_lite::pin_project;
use prometheus_client::encoding::EncodeLabelValue;
use tokio::time::{Instant, Sleep, sleep_until};
use tower::{BoxError, Layer, Service};

use crate::api_metrics::CountingLayer;
use crate::environment::Clock;

/// Longest time for a request and its whole answer, and for the opening of a watch. The API server's own limit for requests
/// is 60 s; nothing that is asked here takes longer than half of that on a healthy one.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Longest time that an open watch may be silent. The API server sends a bookmark to each watch about once a minute, so one
/// that is silent for longer is not connected to a working API server any more.
pub const SILENCE: Duration = Duration::from_secs(75);

/// Longest time for a TCP connection and its TLS handshake.
const CONNECT: Duration = Duration::from_secs(10);

/// A client of the cluster that a configuration names.
///
/// # Errors
/// When the configuration can't be used: certificates or credentials that can't be read.
pub fn client(mut config: Config) -> kube::Result<Client> {
    // The library would retry 429, 503 and 504 up to 15 times inside one call, with pauses of minutes.
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT);
    config.write_timeout = Some(DEADLINE);
    // Connections of the pool whose peer has vanished without a sign are not handed out for ever. Longer than the limits below,
    // which tell more.
    config.read_timeout = Some(SILENCE + DEADLINE);
    config.reset_reader_on_write = true;
    Ok(ClientBuilder::try_from(config)?.with_layer(&DeadlineLayer).with_layer(&CountingLayer).build())
}

/// A service with the deadlines of this module, for tests of what is above it.
#[cfg(test)]
pub(crate) fn limited<S>(service: S) -> Deadlines<S> {
    DeadlineLayer.layer(service)
}

/// What is asked. Lists are reads.
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
    /// What a request asks for.
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

/// A call that has not ended in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimedOut {
    /// The API server has not sent its whole answer within [`DEADLINE`]. Whether a write was made is unknown.
    Answer,
    /// An open watch was silent for [`SILENCE`].
    Silence,
}

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer => write!(f, "no complete answer from the API server within {DEADLINE:?}"),
            Self::Silence => write!(f, "nothing from the API server on an open watch for {SILENCE:?}"),
        }
    }
}

impl std::error::Error for TimedOut {}

impl TimedOut {
    /// Whether an error is one of these, or was caused by one.
    pub fn in_chain(error: &(dyn std::error::Error + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref::<Self>() {
                return Some(*found);
            }
            // An I/O error hands out the source of what it wraps, and not the wrapped error itself.
            if let Some(wrapped) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref)
                && let Some(found) = Self::in_chain(wrapped)
            {
                return Some(found);
            }
            next = error.source();
        }
        None
    }
}

/// Puts the deadlines below a client.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DeadlineLayer;

/// Ends calls in time.
#[derive(Debug, Clone)]
pub(crate) struct Deadlines<S> {
    inner: S,
}

impl<S> Layer<S> for DeadlineLayer {
    type Service = Deadlines<S>;

    fn layer(&self, inner: S) -> Deadlines<S> {
        Deadlines { inner }
    }
}

impl<S, A, B> Service<Request<A>> for Deadlines<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: 'static,
{
    type Response = Response<Ending<B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let watch = Verb::of(&request) == Verb::Watch;
        let deadline = Clock::system().now() + DEADLINE;
        let answer = self.inner.call(request);
        async move {
            let answer = tokio::time::timeout_at(deadline, answer).await;
            let answer = answer.map_err(|_| TimedOut::Answer)?.map_err(Into::into)?;
            Ok(answer.map(|body| Ending::new(body, watch, deadline)))
        }
        .boxed()
    }
}

pin_project! {
    /// The body of an answer, which ends in time with an error.
    #[derive(Debug)]
    pub(crate) struct Ending<B> {
        #[pin]
        body: B,
        #[pin]
        timer: Sleep,
        kind: TimedOut,
    }
}

impl<B> Ending<B> {
    fn new(body: B, watch: bool, deadline: Instant) -> Self {
        let (kind, at) = if watch {
            (TimedOut::Silence, Clock::system().now() + SILENCE)
        } else {
            (TimedOut::Answer, deadline)
        };
        Self { body, timer: sleep_until(at), kind }
    }
}

impl<B: Body> Body for Ending<B>
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
        // Bytes that trickle in don't prolong an answer, but they do prolong a watch.
        if *this.kind == TimedOut::Answer && this.timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(TimedOut::Answer.into())));
        }
        let frame = this.body.poll_frame(cx);
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
