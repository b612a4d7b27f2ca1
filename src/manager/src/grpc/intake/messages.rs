//! Messages out of the body of a call, one after the other: read, counted and paid for before they are decoded.
//!
//! tonic reads a message into a buffer that it keeps for as long as the call lasts, and decodes it then. What has to be known
//! before is found out here: the announced length, the number of parts of the message, and whether there is room for them.

use std::sync::Arc;

use axum::body::Body;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::Stream;
use http_body_util::BodyExt;
use outrigger_api::wire_bounds::{self, Bounds, Measure, OutOfBounds};
use outrigger_proto::shape::Shape;
use prost::Message;
use tokio::time::timeout;
use tonic::Status;

use super::budget::{Held, Share};
use crate::grpc::limits;

/// What each message begins with: a byte that says whether it is compressed, and its length
/// (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>).
const HEADER: usize = 5;

#[derive(Debug)]
pub(crate) struct Messages {
    body: Body,
    /// What has come of the body and wasn't used yet.
    rest: Bytes,
    shape: &'static Shape,
    bounds: Bounds,
    share: Arc<Share>,
}

/// A message as it came, within its bounds.
#[derive(Debug)]
pub(crate) struct RawMessage {
    /// Header and message.
    framed: Bytes,
    pub(crate) measure: Measure,
    buffered: Held,
    share: Arc<Share>,
}

/// A message that is decoded, and what it holds of the budget until it has been taken in.
#[derive(Debug)]
pub(crate) struct DecodedMessage<T> {
    pub(crate) message: T,
    /// To be dropped when nothing of the message is needed.
    pub(crate) held: Held,
}

impl Messages {
    pub(crate) fn new(body: Body, shape: &'static Shape, bounds: Bounds, share: Arc<Share>) -> Self {
        Self { body, rest: Bytes::new(), shape, bounds, share }
    }

    /// The next message; `None` at the end of the body. Returns RESOURCE_EXHAUSTED when it is over a bound, INVALID_ARGUMENT when
    /// it is no message, DEADLINE_EXCEEDED when it comes too slowly; what the connection says when it ends.
    pub(crate) async fn next(&mut self) -> Result<Option<RawMessage>, Status> {
        if let Some(framed) = self.whole() {
            let length = self.length(&framed)?;
            let buffered = self.share.buffered.take(length).await;
            return self.measured(framed, buffered).await.map(Some);
        }
        let mut header = BytesMut::with_capacity(HEADER);
        if !self.read(&mut header, HEADER).await? {
            return Ok(None);
        }
        let length = self.length(&header)?;
        let buffered = self.share.buffered.take(length).await;
        let time =
            limits::MESSAGE_GRACE + std::time::Duration::from_secs((length / limits::MESSAGE_PACE) as u64);
        let mut framed = BytesMut::with_capacity(HEADER + length);
        framed.put(header);
        match timeout(time, self.read(&mut framed, HEADER + length)).await {
            Ok(complete) => complete?,
            Err(_) => {
                let seconds = time.as_secs();
                return Err(Status::deadline_exceeded(format!(
                    "a message of {length} bytes was not complete after {seconds} s"
                )));
            }
        };
        self.measured(framed.freeze(), buffered).await.map(Some)
    }

    /// The next message, header included, where all of it has come in one part: nothing is copied then.
    fn whole(&mut self) -> Option<Bytes> {
        let length = self.rest.get(1..HEADER)?.get_u32() as usize;
        (self.rest.len() - HEADER >= length).then(|| self.rest.split_to(HEADER + length))
    }

    /// The length that a message's header announces. Fails where it is over the bound, or the message is compressed.
    fn length(&self, mut header: &[u8]) -> Result<usize, Status> {
        let (compressed, length) = (header.get_u8() != 0, header.get_u32() as usize);
        if compressed {
            return Err(Status::unimplemented("the message is compressed; send it as it is"));
        }
        wire_bounds::check_bytes(self.shape, length, &self.bounds).map_err(|e| out_of_bounds(&e))?;
        Ok(length)
    }

    /// A message that is complete, if its parts are within their bounds.
    async fn measured(&mut self, framed: Bytes, buffered: Held) -> Result<RawMessage, Status> {
        let (shape, bounds, message) = (self.shape, self.bounds, framed.slice(HEADER..));
        // A call that ends meanwhile frees nothing that the work still needs.
        let work = move || (wire_bounds::check(shape, &message, &bounds), buffered);
        let (measure, buffered) = aside(framed.len(), work).await?;
        let measure = measure.map_err(|e| out_of_bounds(&e))?;
        Ok(RawMessage { framed, measure, buffered, share: self.share.clone() })
    }

    /// Reads until there are so many bytes. `false`: the body has ended before the first of them.
    async fn read(&mut self, into: &mut BytesMut, until: usize) -> Result<bool, Status> {
        let begun = into.len();
        while into.len() < until {
            if self.rest.is_empty() {
                let Some(frame) = self.body.frame().await else {
                    if into.len() == begun && begun == 0 {
                        return Ok(false);
                    }
                    return Err(Status::cancelled("the call has ended within a message"));
                };
                let frame = frame.map_err(|e| Status::cancelled(format!("the call has ended: {e}")))?;
                self.rest = frame.into_data().unwrap_or_default();
                continue;
            }
            let part = self.rest.split_to(self.rest.len().min(until - into.len()));
            into.put(part);
        }
        Ok(true)
    }

    /// The messages, decoded. Nothing is lost when a wait for the next one is given up.
    pub(crate) fn decoded<T: Message + Default + 'static>(
        self,
    ) -> impl Stream<Item = Result<DecodedMessage<T>, Status>> + Send {
        futures::stream::unfold(Some(self), |messages| async move {
            let mut messages = messages?;
            match messages.one().await {
                Ok(None) => None,
                Ok(Some(message)) => Some((Ok(message), Some(messages))),
                Err(status) => Some((Err(status), None)),
            }
        })
    }

    async fn one<T: Message + Default + 'static>(&mut self) -> Result<Option<DecodedMessage<T>>, Status> {
        let Some(raw) = self.next().await? else { return Ok(None) };
        let RawMessage { framed, measure, buffered, share } = raw;
        let (held, length) = (share.decoded.take(measure.decoded_bytes()).await, framed.len());
        let work = move || {
            let message = T::decode(framed.slice(HEADER..));
            drop((framed, buffered));
            (message, held)
        };
        let (message, held) = aside(length, work).await?;
        let message = message.map_err(|e| Status::invalid_argument(format!("malformed: {e}")))?;
        Ok(Some(DecodedMessage { message, held }))
    }
}

impl RawMessage {
    /// The message as a body for tonic to read, and what is held for it until the call is over.
    pub(crate) async fn body(self) -> (Body, (Held, Held)) {
        let decoded = self.share.decoded.take(self.measure.decoded_bytes()).await;
        (Body::from(self.framed), (self.buffered, decoded))
    }
}

/// Runs work whose duration grows with a message's bytes: on a blocking thread, when there are many.
async fn aside<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    if bytes < limits::LARGE_BYTES {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(|e| Status::internal(e.to_string()))
}

fn out_of_bounds(error: &OutOfBounds) -> Status {
    if error.is_too_much() {
        Status::resource_exhausted(error.to_string())
    } else {
        Status::invalid_argument(error.to_string())
    }
}

#[cfg(test)]
mod tests;
