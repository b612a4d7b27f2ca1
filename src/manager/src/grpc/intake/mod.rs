//! The checks that every call passes before tonic sees it: who calls, what the call may cost, and the bounds of each message.
//!
//! A call whose caller may not make it ends here, unread. The stream of workloads finds its [`Messages`] in the request's
//! extensions. Of all other calls the one message they have is read here and handed on, and what it takes of the budgets, and
//! of the caller's calls, is held until the answer has been sent.

mod budget;
mod messages;
mod shared;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use outrigger_api::wire_bounds::Bounds;
use outrigger_proto::shape::{Method, method};
use outrigger_runtime::environment::Clock;
use outrigger_runtime::serve::Peer;
use outrigger_runtime::telemetry::called;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::metadata::MetadataMap;
use tracing::Instrument;

pub(crate) use budget::Payer;
use budget::{Budget, Held};
pub(crate) use messages::{DecodedMessage, Messages};
use shared::Shared;

use super::access::{Access, Admitted};
use super::limits::{self, CALLS_PER_IDENTITY};
use super::rates::{Rates, Turn};
use crate::identity::Caller;

/// The payer of calls about admin rules: no tenant has this id.
const ADMINISTRATORS: &str = "";

/// The service whose calls are about no tenant.
const ADMIN_SERVICE: &str = "/universe.admin.workload.v1.";

const STREAMS: &str = "/universe.workload.v1.WorkloadService/";

#[derive(Debug)]
pub(super) struct Intake {
    access: Arc<Access>,
    budget: Budget,
    /// The calls that each identity may still open.
    calls: Shared<Semaphore>,
    rates: Rates,
    stream_bytes: usize,
}

/// The messages of a stream, for its handler to take.
#[derive(Clone)]
pub(crate) struct Inbound(Arc<Mutex<Option<Messages>>>);

impl Inbound {
    /// The messages; `None` when they have been taken.
    pub(crate) fn take(&self) -> Option<Messages> {
        self.0.lock().take()
    }
}

impl Intake {
    /// `stream_bytes`: size of the largest message of a workload stream.
    pub(super) fn new(access: Arc<Access>, clock: Clock, stream_bytes: usize) -> Self {
        Self {
            access,
            budget: Budget::default(),
            calls: Shared::default(),
            rates: Rates::new(clock),
            stream_bytes,
        }
    }

    /// An axum middleware in front of all services.
    pub(super) async fn take_in(State(this): State<Arc<Self>>, request: Request, next: Next) -> Response {
        match this.call(request, next).await {
            Ok(response) => response,
            Err(status) => status.into_http(),
        }
    }

    async fn call(&self, mut request: Request, next: Next) -> Result<Response, Status> {
        let caller = self.access.caller(request.extensions().get::<Peer>())?;
        let call = open_call(&self.calls, &caller)?;
        let Some(method) = method(request.uri().path()) else {
            // Health and reflection, whose messages are small by tonic's own limit; and what isn't served at all.
            return Ok(holding(next.run(request).await, (call, None, None)));
        };
        let metadata = MetadataMap::from_headers(request.headers().clone());
        let (payer, admitted) = if method.path.starts_with(ADMIN_SERVICE) {
            self.access.admin(&caller)?;
            (Payer::from(ADMINISTRATORS), None)
        } else {
            let admitted = self.access.tenant(caller, &metadata)?;
            (Payer::from(admitted.id.as_str()), Some(admitted))
        };
        if method.path.starts_with(STREAMS) {
            request = self.stream(request, method, &payer);
            request.extensions_mut().insert(admitted);
            return Ok(holding(next.run(request).await, (call, None, None)));
        }
        let span = called(method.path, &metadata);
        self.unary(request, next, method, &payer, admitted, call).instrument(span).await
    }

    fn stream(&self, request: Request, method: &'static Method, payer: &Payer) -> Request {
        let bounds = Bounds { bytes: self.stream_bytes, ..limits::STREAM_MESSAGE };
        let (parts, body) = request.into_parts();
        let messages = Messages::new(body, method.request, bounds, self.budget.share(payer));
        let mut request = Request::from_parts(parts, Body::empty());
        request.extensions_mut().insert(Inbound(Arc::new(Mutex::new(Some(messages)))));
        request
    }

    async fn unary(
        &self,
        request: Request,
        next: Next,
        method: &'static Method,
        payer: &Payer,
        admitted: Option<Admitted>,
        call: OwnedSemaphorePermit,
    ) -> Result<Response, Status> {
        let allowed = admitted.as_ref().map(|admitted| admitted.tenant.limits);
        let turn = self.rates.turn(payer, method.path.ends_with("/List"), allowed.as_ref()).await?;
        let (parts, body) = request.into_parts();
        let mut messages =
            Messages::new(body, method.request, limits::RULE_MESSAGE, self.budget.share(payer));
        let (body, held) = match messages.next().await? {
            Some(raw) => {
                self.rates.bytes(payer, raw.measure.bytes, allowed.as_ref()).await?;
                let (body, held) = raw.body().await;
                (body, Some(held))
            }
            // What is missing is tonic's to say.
            None => (Body::empty(), None),
        };
        let mut request = Request::from_parts(parts, body);
        request.extensions_mut().insert(admitted);
        Ok(holding(next.run(request).await, (call, Some(turn), held)))
    }
}

/// A call of an identity begins. It ends when the permit is dropped. Returns RESOURCE_EXHAUSTED when the caller has as many open
/// as one identity may have.
fn open_call(calls: &Shared<Semaphore>, caller: &Caller) -> Result<OwnedSemaphorePermit, Status> {
    let identity: Arc<str> = caller.to_string().into();
    let own = calls.get(&identity, || Semaphore::new(CALLS_PER_IDENTITY));
    own.try_acquire_owned().map_err(|_| {
        Status::resource_exhausted(format!(
            "{identity} has {CALLS_PER_IDENTITY} calls open, at most {CALLS_PER_IDENTITY} are allowed; end one"
        ))
    })
}

/// What a call holds until its answer has been sent.
type Holds = (OwnedSemaphorePermit, Option<Turn>, Option<(Held, Held)>);

/// The response, whose body keeps `holds` until it has been sent or dropped.
fn holding(response: Response, holds: Holds) -> Response {
    response.map(|body| {
        Body::new(body.map_err(move |error| {
            let _ = &holds;
            error
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_has_so_many_calls_and_no_more() {
        let calls = Shared::default();
        let open: Vec<_> =
            (0..CALLS_PER_IDENTITY).map(|_| open_call(&calls, &Caller::Local).unwrap()).collect();
        let refused = open_call(&calls, &Caller::Local).unwrap_err();
        assert!(refused.message().contains("has 128 calls open, at most 128 are allowed"), "{refused}");
        let other = Caller::Certificate { names: Vec::new(), not_after: std::time::UNIX_EPOCH };
        assert!(open_call(&calls, &other).is_ok(), "another one isn't concerned");
        drop(open);
        assert!(open_call(&calls, &Caller::Local).is_ok());
    }
}
