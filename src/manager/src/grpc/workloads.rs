//! `universe.workload.v1.WorkloadService`: the tenant's workloads come in.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use outrigger_api::workload_wire;
use outrigger_core::annotations::Reading;
use outrigger_core::companion::StreamClaim;
use outrigger_core::field::FieldError;
use outrigger_core::ids::TenantId;
use outrigger_core::index::CompanionKey;
use outrigger_core::tenant::Tenant;
use outrigger_proto::raw::WorkloadChunkedStreamRequest as Received;
use outrigger_proto::raw::workload_chunked_stream_request::Message;
use outrigger_proto::v1::workload_service_server::WorkloadService;
use outrigger_proto::v1::{WorkloadChunkedStreamRequest, WorkloadStreamRequest, WorkloadStreamResponse};
use outrigger_runtime::bucket::{Bucket, Rate};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, Streaming};
use tracing::{Instrument, debug_span, info, warn};

use super::Answer;
use super::access::{Access, Admitted};
use super::intake::{DecodedMessage, Inbound};
use super::sync::Sync;
use crate::context::Context;
use crate::identity::Caller;
use crate::latency::CompanionRequest;
use crate::metrics::StreamMessage;
use crate::state::TenantState;
use crate::state::stream::{OpenedStream, Superseded};
use crate::tenants::claim::{self, UNUSED};
use crate::usage::{self, TooMany};

mod update;

#[derive(Clone)]
pub(super) struct Workloads {
    context: Arc<Context>,
    access: Arc<Access>,
    /// Cancelled when the process drains: streams end, and agents connect to another replica.
    drain: CancellationToken,
}

#[tonic::async_trait]
impl WorkloadService for Workloads {
    async fn workload_stream(
        &self,
        request: Request<Streaming<WorkloadStreamRequest>>,
    ) -> Answer<WorkloadStreamResponse> {
        self.stream(&request, false).await
    }

    async fn workload_chunked_stream(
        &self,
        request: Request<Streaming<WorkloadChunkedStreamRequest>>,
    ) -> Answer<WorkloadStreamResponse> {
        self.stream(&request, true).await
    }
}

/// What a stream says. Messages of either call are read as those that may be chunks: they have the same numbers.
type Messages = Pin<Box<dyn Stream<Item = Result<DecodedMessage<Received>, Status>> + Send>>;

struct Session {
    caller: Caller,
    id: TenantId,
    tenant: Arc<Tenant>,
    state: Arc<TenantState>,
    begun: OpenedStream,
    /// Cancelled when the agent has gone away.
    gone: CancellationToken,
    /// That of the stream; number 0 for none yet.
    claim: StreamClaim,
    /// A sync, or a refusal, that the Tenant's status doesn't show yet.
    unreported: bool,
    /// When the last sync ended.
    synced: Option<Time>,
    chunked: bool,
    /// A sync in chunks that has begun and hasn't ended.
    sync: Option<Sync>,
}

/// How often it is looked, beside changes of the limits, whether there is room for workloads that were refused: their agent sends all
/// workloads again then.
const LOOK: Duration = Duration::from_secs(60);

/// Least time between two writes of a stream's syncs to the Tenant's status.
const REPORT_PAUSE: Duration = Duration::from_secs(5);

/// The messages of a stream that may come at once after a pause, as the time in which its rate allows them.
const BURST: Duration = Duration::from_millis(100);

/// Most messages per second that say which annotations are sent: all of a tenant's workloads may match otherwise after each.
const STATEMENTS: u64 = 10;

impl Workloads {
    pub(super) fn new(context: &Arc<Context>, access: &Arc<Access>, drain: &CancellationToken) -> Self {
        Self { context: context.clone(), access: access.clone(), drain: drain.clone() }
    }

    async fn stream<T>(&self, request: &Request<T>, chunked: bool) -> Answer<WorkloadStreamResponse> {
        let admitted = super::admitted(request)?;
        let messages = request.extensions().get::<Inbound>().and_then(Inbound::take);
        let messages = messages.ok_or_else(|| Status::internal("the call's messages have been taken"))?;
        // A call whose agent disconnects is dropped wherever it waits, and a stream has to end in order all the same. So the stream
        // has a task of its own, which is cancelled when the call is dropped.
        let gone = CancellationToken::new();
        let session = self.open(admitted, chunked, gone.clone())?;
        let _cancels_when_dropped = gone.drop_guard();
        let this = self.clone();
        let served = tokio::spawn(async move {
            this.context.telemetry.metrics.streams.inc();
            let result = this.serve(session, Box::pin(messages.decoded())).await;
            this.context.telemetry.metrics.streams.dec();
            result
        });
        served.await.map_err(|e| Status::internal(e.to_string()))??;
        Ok(Response::new(WorkloadStreamResponse {}))
    }

    fn open(&self, admitted: Admitted, chunked: bool, gone: CancellationToken) -> Result<Session, Status> {
        let Admitted { caller, id, tenant } = admitted;
        let state = self.context.states.state(&tenant.namespace);
        let most = self.context.replica.args.max_streams_per_tenant.max(1);
        let begun = {
            let mut data = state.lock();
            if data.tenant.as_ref() != Some(&id) {
                return Err(self.access.no_namespace(&id));
            }
            data.stream.begin(most, self.now())
        };
        let Some(begun) = begun else {
            let message = format!("tenant {id} has {most} streams open already; end one");
            return Err(Status::resource_exhausted(message));
        };
        Ok(Session {
            caller,
            id,
            tenant,
            state,
            begun,
            gone,
            claim: StreamClaim::default(),
            unreported: false,
            synced: None,
            chunked,
            sync: None,
        })
    }

    async fn serve(&self, mut session: Session, messages: Messages) -> Result<(), Status> {
        let result = self.claim_and_take_in(&mut session, messages).await;
        let Session { caller, id, state, begun: OpenedStream { number, .. }, claim, .. } = &session;
        let (ended, unused) = {
            let mut data = state.lock();
            let ended = data.stream.end(*number, self.wall());
            data.outcomes.wake();
            (ended, data.stream.unused_claim())
        };
        if unused.is_some() {
            self.context.queues.unused_claims.add_after(id.clone(), UNUSED);
        }
        self.queue_rules(state);
        let claim = claim.number;
        match &result {
            Ok(()) => info!(tenant = %id, stream = number, claim, "stream ended"),
            Err(status) => {
                let (code, reason) = (status.code(), status.message());
                warn!(%caller, tenant = %id, stream = number, claim, %code, reason, "stream ended");
            }
        }
        if let Some(claim) = ended {
            // A replica that shuts down gives the claim up, so that another replica may act for the tenant.
            let draining = self.drain.is_cancelled();
            let mut fields = vec![("connected", json!(false)), ("since", json!(Time(self.wall())))];
            if draining {
                fields.push(("holder", json!("")));
                // Controllers have ended.
                state.lock().stream.say(&claim, fields);
                if let Err(error) = claim::write_status(&self.context, id, state).await {
                    info!(tenant = %id, claim = claim.number, %error, "writing the stream's status failed");
                }
            } else {
                self.report(&session, &claim, fields);
            }
        }
        result
    }

    async fn claim_and_take_in(&self, session: &mut Session, messages: Messages) -> Result<(), Status> {
        tokio::select! {
            biased;
            () = session.begun.end.cancelled() => return Err(Superseded.into()),
            () = session.gone.cancelled() => return Err(left()),
            () = tokio::time::sleep_until(session.begun.not_before) => {}
        }
        // Not cancelled halfway: a claim that was raised has to be written as lost.
        let raising = claim::raising(&session.state);
        let raised = claim::raise(&self.context, &session.id, &session.state, session.begun.number).await?;
        session.claim = StreamClaim { tenant_uid: raised.uid.clone(), number: raised.claim };
        {
            let mut data = session.state.lock();
            data.stream.claimed(session.begun.number, raised)?;
            data.outcomes.wake();
        }
        drop(raising);
        let Session { caller, id, begun: OpenedStream { number, .. }, claim, .. } = &session;
        info!(%caller, tenant = %id, stream = number, claim = claim.number, "stream started");
        self.queue_rules(&session.state);
        let result = self.take_in(session, messages).await;
        if let Err(status) = &result
            && status.code() == Code::ResourceExhausted
        {
            self.report(session, &session.claim, [("refused", json!(status.message()))]);
        }
        result
    }

    async fn take_in(&self, session: &mut Session, mut messages: Messages) -> Result<(), Status> {
        let changes = self.context.caches.registry.changes(&session.caller, &session.id);
        // It may have changed since the call began.
        session.tenant = self.access.authorize(&session.caller, &session.id)?;
        // Made once: registering them again for each message would cost more than the message.
        let mut expired = pin!(tokio::time::sleep_until(expiry(&self.context, &session.caller)));
        let (end, gone) = (session.begun.end.clone(), session.gone.clone());
        let (mut ended, mut left_off) = (pin!(end.cancelled()), pin!(gone.cancelled()));
        let mut draining = pin!(self.drain.cancelled());
        let mut pace = Bucket::new(self.now());
        let per_second: u64 = self.context.replica.args.max_messages_per_second.max(10).into();
        let rate = Rate::per_second(per_second, BURST);
        let mut report_at = self.now();
        let mut look = self.now() + LOOK;
        loop {
            // Whatever ends the stream comes first: a superseded stream takes in no further message.
            let message = tokio::select! {
                biased;
                () = &mut ended => return Err(Superseded.into()),
                () = &mut left_off => return Err(left()),
                () = tokio::time::sleep_until(report_at), if session.unreported => {
                    session.unreported = false;
                    report_at = self.now() + REPORT_PAUSE;
                    self.report_sync(session);
                    continue;
                }
                () = tokio::time::sleep_until(look) => {
                    look = self.now() + LOOK;
                    self.look_at_refused(session)?;
                    continue;
                }
                () = changes.changed() => {
                    // Its identity may have been taken away, or its limits changed.
                    session.tenant = self.access.authorize(&session.caller, &session.id)?;
                    self.look_at_refused(session)?;
                    continue;
                }
                () = &mut expired => {
                    return Err(Status::unauthenticated("the client certificate has expired; connect with a new one"));
                }
                () = &mut draining => {
                    return Err(Status::unavailable("this replica is going down; connect again"));
                }
                message = messages.next() => message.transpose()?,
            };
            // What it holds of the budget is given back when it has been taken in.
            let Some(DecodedMessage { message, held }) = message else { return Ok(()) };
            let span = debug_span!("workload message", otel.kind = "consumer", tenant = %session.id, kind = message.message.as_ref().map_or("none", |message| kind(message).0));
            let request = self.context.telemetry.metrics.latency.request(&span);
            let amount = if says_what_is_sent(&message) { per_second / STATEMENTS } else { 1 };
            let keys = self.apply(session, message).instrument(span).await?;
            self.queue(session, keys, &request);
            drop(held);
            // Whoever is faster waits, and HTTP/2 makes its client wait too.
            if let Ok(wait) = pace.reserve(rate, amount as f64, Duration::MAX, self.now())
                && !wait.is_zero()
            {
                tokio::time::sleep(wait).await;
            }
        }
    }

    /// Has the companions looked at that a message concerns, and their rules' statuses.
    fn queue(&self, session: &Session, keys: Vec<CompanionKey>, request: &CompanionRequest) {
        for key in &keys {
            self.context.queues.rules.add_after(session.state.rule_id(&key.rule), crate::rules::SETTLE);
        }
        // Most messages are about workloads that no rule matches.
        if !keys.is_empty() {
            self.context
                .telemetry
                .metrics
                .latency
                .requested(&session.state.ids(keys.iter().cloned()), request);
        }
        self.context.companions_touched(&session.state, keys);
        if session.synced.is_some() {
            let (mut data, number) = (session.state.lock(), session.begun.number);
            // Another tenant's stream, or a newer one, says so itself.
            let current = data.stream.check(number).is_ok();
            if current
                && data.index.synced()
                && std::mem::replace(&mut data.outcomes.complete, number) != number
            {
                data.outcomes.wake();
            }
        }
    }

    async fn apply(&self, session: &mut Session, message: Received) -> Result<Vec<CompanionKey>, Status> {
        let Some(message) = message.message else { return Err(none_set(session.chunked)) };
        self.context.telemetry.metrics.received(kind(&message).1);
        match message {
            Message::WorkloadUpdate(_) | Message::WorkloadDelete(_) | Message::WorkloadSync(_)
                if session.sync.is_some() =>
            {
                Err(Status::invalid_argument(
                    "message: workload_sync_begin has begun a sync; send its chunks and workload_sync_end first",
                ))
            }
            Message::WorkloadUpdate(update) => {
                let (number, limits) = (session.begun.number, session.tenant.limits);
                let (keys, refusals_changed) = if update.annotation_keys.is_none() {
                    self.update(&session.state, number, &limits, &update)?
                } else {
                    // All workloads may match otherwise.
                    let (this, state) = (self.clone(), session.state.clone());
                    self.aside(move || this.update(&state, number, &limits, &update)).await?
                };
                session.unreported |= refusals_changed;
                Ok(keys)
            }
            Message::WorkloadDelete(delete) => {
                let id = workload_wire::workload_id(delete.workload_metadata.as_ref())
                    .map_err(|e| bad(e.below("workload_delete")))?;
                let mut data = session.state.lock();
                data.stream.check(session.begun.number)?;
                data.usage.delete(&id);
                let refused = data.index.refused_count();
                let keys = data.index.delete(&id);
                session.unreported |= data.index.refused_count() != refused;
                Ok(keys)
            }
            Message::WorkloadSync(sync) => {
                let mut all = self.begin_sync(session, 0)?;
                let keys = self.aside(move || {
                    all.receive(&sync.workload_updates, "workload_sync.workload_updates")?;
                    all.end()
                });
                let keys = keys.await?;
                self.queue_rules(&session.state);
                session.unreported = true;
                session.synced = Some(Time(self.wall()));
                Ok(keys)
            }
            _ if !session.chunked => Err(none_set(false)),
            Message::WorkloadSyncBegin(begin) => {
                let announced = u64::try_from(begin.workloads).unwrap_or_default();
                session.sync = Some(self.begin_sync(session, announced)?);
                Ok(Vec::new())
            }
            Message::WorkloadSyncChunk(chunk) => {
                let mut sync = session.sync.take().ok_or_else(not_begun)?;
                let (sync, keys) = self
                    .aside(move || {
                        let keys =
                            sync.take(&chunk.workload_updates, "workload_sync_chunk.workload_updates")?;
                        Ok((sync, keys))
                    })
                    .await?;
                session.sync = Some(sync);
                Ok(keys)
            }
            Message::WorkloadSyncEnd(_) => {
                let sync = session.sync.take().ok_or_else(not_begun)?;
                let keys = self.aside(move || sync.end()).await?;
                self.queue_rules(&session.state);
                session.unreported = true;
                session.synced = Some(Time(self.wall()));
                Ok(keys)
            }
        }
    }

    fn begin_sync(&self, session: &Session, announced: u64) -> Result<Sync, Status> {
        let Session { state, begun, tenant, chunked, .. } = session;
        // Outrigger's agents of versions that don't say which annotations they send use chunks.
        let silent = if *chunked { Reading::Silent } else { Reading::All };
        Sync::begin(self.context.clone(), state.clone(), begun.number, tenant.limits, announced, silent)
    }

    /// Writes to the Tenant's status that a sync was received, and what is refused. No companion waits for it.
    fn report_sync(&self, session: &Session) {
        let (count, refused) = {
            let data = session.state.lock();
            (data.usage.count(), data.index.refused_count())
        };
        let refused = usage::refusal(refused, &session.tenant.limits);
        let synced = session.synced.as_ref().map(|at| ("lastSync", json!(at)));
        let fields = [("workloads", json!(count)), ("refused", json!(refused))].into_iter().chain(synced);
        self.report(session, &session.claim, fields);
        self.queue_rules(&session.state);
    }

    /// Has fields of the Tenant's status written, as long as the claim is the latest.
    fn report(
        &self,
        session: &Session,
        claim: &StreamClaim,
        fields: impl IntoIterator<Item = (&'static str, Value)>,
    ) {
        session.state.lock().stream.say(claim, fields);
        self.context.queues.stream_statuses.add([session.id.clone()]);
    }

    fn now(&self) -> Instant {
        self.context.environment.clock.now()
    }

    fn wall(&self) -> Timestamp {
        self.context.environment.clock.wall()
    }

    /// The Synced condition of all the tenant's rules may have changed.
    fn queue_rules(&self, state: &TenantState) {
        for rule in state.rule_ids() {
            self.context.queues.rules.add_after(rule, crate::rules::SETTLE);
        }
    }

    /// Does what takes a moment beside the threads that serve everybody: neither other streams nor the watches wait for it.
    async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        self.context.environment.aside(work).await.map_err(|e| Status::internal(e.to_string()))?
    }
}

/// Whether a message says which annotations are sent.
fn says_what_is_sent(message: &Received) -> bool {
    let updates = match &message.message {
        Some(Message::WorkloadUpdate(update)) => std::slice::from_ref(update),
        Some(Message::WorkloadSync(sync)) => &sync.workload_updates,
        Some(Message::WorkloadSyncChunk(chunk)) => &chunk.workload_updates,
        _ => &[],
    };
    updates.iter().any(|update| update.annotation_keys.is_some())
}

/// When the caller's certificate expires. A clock that is set back doesn't matter: TLS has looked at it once.
pub(super) fn expiry(context: &Context, caller: &Caller) -> Instant {
    /// A year, for callers without a certificate.
    const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
    let clock = context.environment.clock;
    let now = SystemTime::from(clock.wall());
    let left = caller.not_after().map(|end| end.duration_since(now).unwrap_or_default());
    clock.now() + left.unwrap_or(FAR).min(FAR)
}

fn none_set(chunked: bool) -> Status {
    let more = if chunked { ", workload_sync_begin, workload_sync_chunk, workload_sync_end" } else { "" };
    Status::invalid_argument(format!(
        "message: none of workload_update, workload_delete, workload_sync{more} is set"
    ))
}

fn not_begun() -> Status {
    Status::invalid_argument("message: no sync has begun; send workload_sync_begin first")
}

/// What a message is, as traces and as metrics have it. For metrics a sync in chunks is one sync.
fn kind(message: &Message) -> (&'static str, StreamMessage) {
    match message {
        Message::WorkloadUpdate(_) => ("update", StreamMessage::Update),
        Message::WorkloadDelete(_) => ("delete", StreamMessage::Delete),
        Message::WorkloadSync(_) => ("sync", StreamMessage::Sync),
        Message::WorkloadSyncBegin(_) => ("begin", StreamMessage::Chunk),
        Message::WorkloadSyncChunk(_) => ("chunk", StreamMessage::Chunk),
        Message::WorkloadSyncEnd(_) => ("end", StreamMessage::Sync),
    }
}

/// For the log: the caller is no longer connected.
fn left() -> Status {
    Status::cancelled("the agent has gone away")
}

pub(super) fn exhausted(exceeded: &TooMany) -> Status {
    Status::resource_exhausted(exceeded.to_string())
}

pub(super) fn bad(error: FieldError) -> Status {
    Status::invalid_argument(error.to_string())
}
