//! `universe.workload.v1.WorkloadService`: the tenant's workloads come in.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use outrigger_api::workload_wire::{self, WireError};
use outrigger_core::ids::{TenantId, WorkloadId};
use outrigger_core::index::CompanionKey;
use outrigger_core::tenant::{Limits, Tenant};
use outrigger_core::workload::Workload;
use outrigger_proto::v1::workload_service_server::WorkloadService;
use outrigger_proto::v1::workload_stream_request::Message;
use outrigger_proto::v1::{WorkloadStreamRequest, WorkloadStreamResponse, WorkloadSync};
use parking_lot::MutexGuard;
use prost::Message as _;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, Streaming};
use tracing::{Instrument, debug_span, info, warn};

use super::access::{Access, Admitted};
use super::pace::Pace;
use crate::lag::{Asked, Lag};
use crate::metrics::{Metrics, StreamMessage};
use crate::queue::Queue;
use crate::state::{CompanionId, RuleId, Space, Spaces};
use crate::stream::{Begun, Superseded};
use crate::tenants::claim::{Claims, UNUSED};
use crate::tenants::identity::Caller;
use crate::usage::Exceeded;

/// Serves workload streams.
#[derive(Clone)]
pub struct Workloads {
    /// What is known.
    pub spaces: Arc<Spaces>,
    /// Who may speak for whom.
    pub access: Arc<Access>,
    /// Which replica serves whom.
    pub claims: Claims,
    /// Companions to look at.
    pub queue: Arc<Queue<CompanionId>>,
    /// Rules whose status may have changed.
    pub rules: Arc<Queue<RuleId>>,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// Which companions messages have asked for.
    pub lag: Arc<Lag>,
    /// Tenants with a claim of this replica that may be for no stream.
    pub unused: Arc<Queue<TenantId>>,
    /// Cancelled when the process drains: streams end, agents go to another replica.
    pub drain: CancellationToken,
    /// Streams that one tenant may have open at once.
    pub max_streams: usize,
    /// Messages that one stream may send in a second; who sends more waits.
    pub max_rate: u32,
}

#[tonic::async_trait]
impl WorkloadService for Workloads {
    async fn workload_stream(
        &self,
        request: Request<Streaming<WorkloadStreamRequest>>,
    ) -> Result<Response<WorkloadStreamResponse>, Status> {
        let Admitted { caller, id, tenant } = self.access.tenant(&request)?;
        // A call whose agent goes away is dropped wherever it waits, and a stream has to end in order all the same. So it has
        // a task of its own, which is told when the call is dropped.
        let gone = CancellationToken::new();
        let session = self.open(caller, id, tenant, gone.clone())?;
        let _told = gone.drop_guard();
        let (this, mut stream) = (self.clone(), request.into_inner());
        let served = tokio::spawn(async move {
            this.metrics.streams.inc();
            let result = this.serve(session, &mut stream).await;
            this.metrics.streams.dec();
            result
        });
        served.await.map_err(|e| Status::internal(e.to_string()))??;
        Ok(Response::new(WorkloadStreamResponse {}))
    }
}

/// One open stream.
struct Session {
    caller: Caller,
    id: TenantId,
    tenant: Arc<Tenant>,
    space: Arc<Space>,
    begun: Begun,
    /// Cancelled when the agent has gone away.
    gone: CancellationToken,
    claim: u64,
    /// A sync that the Tenant's status doesn't show yet.
    untold: bool,
}

/// Least time between two writes of a stream's syncs to the Tenant's status.
const TELL: Duration = Duration::from_secs(5);

impl Workloads {
    fn open(
        &self,
        caller: Caller,
        id: TenantId,
        tenant: Arc<Tenant>,
        gone: CancellationToken,
    ) -> Result<Session, Status> {
        let space = self.spaces.space(&tenant.namespace);
        let begun = {
            let mut inner = space.lock();
            if inner.tenant.as_ref() != Some(&id) {
                let message =
                    format!("namespace {} of tenant {id} is not there yet; connect again", tenant.namespace);
                return Err(Status::unavailable(message));
            }
            inner.stream.begin(self.max_streams)
        };
        let Some(begun) = begun else {
            let message = format!("tenant {id} has {} streams open already; end one", self.max_streams);
            return Err(Status::resource_exhausted(message));
        };
        Ok(Session { caller, id, tenant, space, begun, gone, claim: 0, untold: false })
    }

    async fn serve(
        &self,
        mut session: Session,
        stream: &mut Streaming<WorkloadStreamRequest>,
    ) -> Result<(), Status> {
        let result = self.claim_and_take_in(&mut session, stream).await;
        let Session { caller, id, space, begun: Begun { number, .. }, claim, .. } = &session;
        let (current, unused) = {
            let mut inner = space.lock();
            (inner.stream.end(*number, Timestamp::now()), inner.stream.unused_claim())
        };
        if unused.is_some() {
            self.unused.add_after(id.clone(), UNUSED);
        }
        self.tell_rules(space);
        match &result {
            Ok(()) => info!(tenant = %id, stream = number, claim, "stream ended"),
            Err(status) => {
                let (code, message) = (status.code(), status.message());
                warn!(%caller, tenant = %id, stream = number, claim, ?code, reason = message, "stream ended");
            }
        }
        if current {
            let (claims, id, claim) = (self.claims.clone(), id.clone(), *claim);
            // Who goes for good gives the claim up, so that another replica may speak for the tenant.
            let mut fields = vec![("connected", json!(false)), ("since", json!(Time(Timestamp::now())))];
            if self.drain.is_cancelled() {
                fields.push(("holder", json!("")));
            }
            claims.tell(&id, claim, &fields).await;
        }
        result
    }

    async fn claim_and_take_in(
        &self,
        session: &mut Session,
        stream: &mut Streaming<WorkloadStreamRequest>,
    ) -> Result<(), Status> {
        tokio::select! {
            () = tokio::time::sleep_until(session.begun.not_before) => {}
            () = session.begun.end.cancelled() => return Err(aborted(Superseded)),
            () = session.gone.cancelled() => return Err(left()),
        }
        // Not given up halfway: a claim that was raised has to be told of as lost.
        let raised = self.claims.raise(&session.id, &session.space).await?;
        session.claim = raised.claim;
        session.space.lock().stream.claimed(session.begun.number, raised).map_err(aborted)?;
        let Session { caller, id, begun: Begun { number, .. }, claim, .. } = &session;
        info!(%caller, tenant = %id, stream = number, claim, "stream begins");
        self.tell_rules(&session.space);
        self.take_in(session, stream).await
    }

    async fn take_in(
        &self,
        session: &mut Session,
        stream: &mut Streaming<WorkloadStreamRequest>,
    ) -> Result<(), Status> {
        let mut changes = self.access.changes();
        let expiry = expiry(&session.caller);
        let mut pace = Pace::new(self.max_rate);
        let mut tell = Instant::now();
        loop {
            let message = tokio::select! {
                message = stream.message() => message?,
                () = session.begun.end.cancelled() => return Err(aborted(Superseded)),
                () = session.gone.cancelled() => return Err(left()),
                () = tokio::time::sleep_until(tell), if session.untold => {
                    session.untold = false;
                    tell = Instant::now() + TELL;
                    self.tell_sync(session);
                    continue;
                }
                Ok(()) = changes.changed() => {
                    // Its identity may have been taken away, or its limits changed.
                    session.tenant = self.access.authorize(&session.caller, &session.id)?;
                    continue;
                }
                () = tokio::time::sleep_until(expiry) => {
                    return Err(Status::unauthenticated("the client certificate has expired; connect with a new one"));
                }
                () = self.drain.cancelled() => {
                    return Err(Status::unavailable("this replica is going down; connect again"));
                }
            };
            let Some(message) = message else { return Ok(()) };
            let span = debug_span!("workload message", otel.kind = "consumer", tenant = %session.id, kind = kind(&message));
            let asked = Asked::now(&span);
            let keys = match self.apply(session, message).instrument(span).await {
                Err(status) if status.code() == Code::ResourceExhausted => {
                    self.claims
                        .tell(&session.id, session.claim, &[("refused", json!(status.message()))])
                        .await;
                    return Err(status);
                }
                keys => keys?,
            };
            for key in &keys {
                self.rules.add_after(session.space.rule_id(&key.rule), crate::rules::SETTLE);
            }
            let ids = session.space.ids(keys);
            self.lag.asked(&ids, &asked);
            self.queue.add(ids);
            pace.wait().await;
        }
    }

    async fn apply(
        &self,
        session: &mut Session,
        message: WorkloadStreamRequest,
    ) -> Result<Vec<CompanionKey>, Status> {
        let Session { space, begun: Begun { number, .. }, .. } = session;
        let limits = &session.tenant.limits;
        match message.message {
            None => Err(Status::invalid_argument(
                "message: none of workload_update, workload_delete, workload_sync is set",
            )),
            Some(Message::WorkloadUpdate(update)) => {
                self.metrics.received(StreamMessage::Update);
                let size = update.encoded_len();
                let workload =
                    workload_wire::workload(update).map_err(|e| bad(e.under("workload_update")))?;
                let mut inner = space.lock();
                inner.stream.check(*number).map_err(aborted)?;
                inner.usage.update(&workload.id, size, limits).map_err(|e| exhausted(&e))?;
                Ok(inner.index.update(workload))
            }
            Some(Message::WorkloadDelete(delete)) => {
                self.metrics.received(StreamMessage::Delete);
                let id = workload_wire::workload_id(delete.workload_metadata.as_ref())
                    .map_err(|e| bad(e.under("workload_delete")))?;
                let mut inner = space.lock();
                inner.stream.check(*number).map_err(aborted)?;
                inner.usage.delete(&id);
                Ok(inner.index.delete(&id))
            }
            Some(Message::WorkloadSync(sync)) => {
                self.metrics.received(StreamMessage::Sync);
                let keys = sync_all(space.clone(), *number, *limits, sync).await?;
                session.untold = true;
                Ok(keys)
            }
        }
    }

    /// A sync was taken: nobody's companions wait for this to be written.
    fn tell_sync(&self, session: &Session) {
        let count = session.space.lock().usage.count();
        let fields = [
            ("lastSync", json!(Time(Timestamp::now()))),
            ("workloads", json!(count)),
            ("refused", json!(null)),
        ];
        let (claims, id, claim) = (self.claims.clone(), session.id.clone(), session.claim);
        tokio::spawn(async move { claims.tell(&id, claim, &fields).await });
    }

    /// The Synced condition of all the tenant's rules may have changed.
    fn tell_rules(&self, space: &Space) {
        for rule in space.rule_ids() {
            self.rules.add_after(rule, crate::rules::SETTLE);
        }
    }
}

/// What a message is, as traces have it.
fn kind(message: &WorkloadStreamRequest) -> &'static str {
    match message.message {
        Some(Message::WorkloadUpdate(_)) => "update",
        Some(Message::WorkloadDelete(_)) => "delete",
        Some(Message::WorkloadSync(_)) => "sync",
        None => "none",
    }
}

/// When the caller's word ends. A clock that is set back doesn't matter: TLS has looked at it once.
fn expiry(caller: &Caller) -> Instant {
    /// A year, for those that never end.
    const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
    let left = caller.not_after().map(|end| end.duration_since(SystemTime::now()).unwrap_or_default());
    Instant::now() + left.unwrap_or(FAR).min(FAR)
}

/// How many workloads of a sync are taken in at once. Whoever else needs the tenant's state waits for so many at most: the watch
/// of companions above all, which is that of all tenants.
const CHUNK: usize = 256;

/// All workloads of a tenant. Tens of thousands take a moment; neither other streams nor the watches wait for it.
async fn sync_all(
    space: Arc<Space>,
    number: u64,
    limits: Limits,
    sync: WorkloadSync,
) -> Result<Vec<CompanionKey>, Status> {
    tokio::task::spawn_blocking(move || {
        let sizes: Vec<usize> = sync.workload_updates.iter().map(prost::Message::encoded_len).collect();
        let workloads = decode(sync)?;
        let ids: Vec<WorkloadId> = workloads.iter().map(|workload| workload.id.clone()).collect();
        let told: HashSet<WorkloadId> = ids.iter().cloned().collect();
        // A newer stream may begin between two chunks. What this one has told by then is true, and not complete.
        let lock = || {
            let inner = space.lock();
            inner.stream.check(number).map_err(aborted)?;
            Ok::<_, Status>(inner)
        };
        lock()?.usage.sync(ids.into_iter().zip(sizes), &limits).map_err(|e| exhausted(&e))?;
        let mut keys = Vec::new();
        let mut workloads = workloads.into_iter().peekable();
        while workloads.peek().is_some() {
            let mut inner = lock()?;
            for workload in workloads.by_ref().take(CHUNK) {
                keys.extend(inner.index.update(workload));
            }
            MutexGuard::unlock_fair(inner);
        }
        let mut inner = lock()?;
        let first = !inner.index.synced();
        keys.extend(inner.index.complete(&told));
        keys.sort_unstable();
        keys.dedup();
        if first {
            inner.first_sync(&keys);
            // Companions from before this process began: what the sync doesn't want goes now.
            keys.extend(inner.companion_keys());
        }
        Ok(keys)
    })
    .await
    .map_err(|e| Status::internal(e.to_string()))?
}

fn aborted(superseded: Superseded) -> Status {
    Status::aborted(superseded.to_string())
}

/// For the log: nobody is there any more to read it.
fn left() -> Status {
    Status::cancelled("the agent has gone away")
}

fn exhausted(exceeded: &Exceeded) -> Status {
    Status::resource_exhausted(exceeded.to_string())
}

fn decode(sync: WorkloadSync) -> Result<Vec<Workload>, Status> {
    sync.workload_updates
        .into_iter()
        .enumerate()
        .map(|(i, update)| {
            workload_wire::workload(update)
                .map_err(|e| bad(e.under(&format!("workload_sync.workload_updates[{i}]"))))
        })
        .collect()
}

fn bad(error: WireError) -> Status {
    Status::invalid_argument(error.to_string())
}
