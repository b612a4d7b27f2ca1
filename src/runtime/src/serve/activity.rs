//! What connections and requests pass through, so that it is known how they go on: bytes, bodies, answers.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::slots::{Asked, Occupant};

/// A stream whose bytes are noted.
pub(super) struct Stream<S> {
    pub(super) inner: S,
    pub(super) occupant: Arc<Occupant>,
    pub(super) http1: bool,
}

impl<S: AsyncRead + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.inner).poll_read(cx, buffer));
        if buffer.filled().len() > before {
            self.occupant.heard(self.http1);
        }
        Poll::Ready(read)
    }
}

impl<S> Stream<S> {
    fn noted<T>(&self, polled: Poll<T>) -> Poll<T> {
        self.occupant.taken(polled.is_ready());
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.noted(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, slices);
        self.noted(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_flush(cx);
        self.noted(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.noted(polled)
    }
}

/// The body of a request, which tells when it has come whole.
pub(super) struct Question {
    inner: Incoming,
    asked: Arc<Asked>,
}

impl Question {
    /// `stream`: the body may never end, so the request counts as received from its headers on.
    pub(super) fn new(inner: Incoming, asked: Arc<Asked>, stream: bool) -> Self {
        if stream || inner.is_end_stream() {
            asked.received();
        }
        Self { inner, asked }
    }
}

impl HttpBody for Question {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if frame.is_none() || self.inner.is_end_stream() {
            self.asked.received();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        self.asked.received();
    }
}

/// An answer, which keeps its request open until all of it has been handed over.
pub(super) struct Answer {
    inner: Body,
    _asked: Arc<Asked>,
}

impl Answer {
    pub(super) fn new(inner: Body, asked: Arc<Asked>) -> Self {
        Self { inner, _asked: asked }
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
