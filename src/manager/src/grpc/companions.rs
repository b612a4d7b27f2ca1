//! `outrigger.companion.v1.CompanionService`: the status of companions and of hosts' DPUs is sent to agents.
//!
//! The replica that receives the tenant's workloads reports on them: it alone knows all of what is wanted. A call to another replica
//! waits for the tenant's stream, and ends when it doesn't come. Nothing is stored for a reader but which workloads have changed;
//! their state is read from memory when the reader takes the message.

use std::pin::{Pin, pin};
use std::sync::Arc;

use futures::{Stream, stream};
use outrigger_core::ids::TenantId;
use outrigger_core::progress::{HostDpu, Stage};
use outrigger_core::reason::Cause;
use outrigger_core::text::truncate_bytes;
use outrigger_proto::companion::companion_service_server::CompanionService;
use outrigger_proto::companion::watch_response::Message;
use outrigger_proto::companion::{
    AnnotationRequest, Companion, CompanionState, HostStatus, Synced, WatchRequest, WatchResponse,
    WorkloadCompanions,
};
use outrigger_runtime::bucket::{Bucket, Rate};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tracing::info;

use super::Answer;
use super::access::{Access, Admitted};
use super::limits::{
    WATCH_COMPANIONS, WATCH_MESSAGES_PER_SECOND, WATCH_PATIENCE, WATCH_SETTLE, WATCH_STALL, WATCH_TEXT_BYTES,
    WATCH_TEXTS,
};
use crate::context::Context;
use crate::identity::Caller;
use crate::state::TenantState;
use crate::state::outcomes::{HostOutcome, ReportedCompanion, WorkloadReport};

#[derive(Clone)]
pub(super) struct CompanionOutcomes {
    context: Arc<Context>,
    access: Arc<Access>,
    /// Cancelled when the process drains.
    drain: CancellationToken,
}

/// A call.
struct Watch {
    context: Arc<Context>,
    caller: Caller,
    id: TenantId,
    state: Arc<TenantState>,
    /// Its number among those that follow the tenant's outcomes.
    number: u64,
    changed: Arc<Notify>,
    began: Instant,
    progress: Progress,
    /// The keys of annotations of which the agent knows that it is asked for them.
    asked: Vec<String>,
}

/// How much of what was known at the beginning has been sent.
enum Progress {
    /// Workloads up to this one, and no hosts yet.
    Workloads(Option<Arc<str>>),
    Hosts,
    All,
}

/// What follows.
enum Next {
    Send(Message),
    /// Nothing has changed.
    Wait,
    /// The tenant's workloads aren't known here.
    Unknown,
    /// The call follows nothing any longer ([`crate::state::outcomes::Outcomes::dismiss`]).
    Dismissed,
}

/// Ends its part in the tenant's state with the call.
impl Drop for Watch {
    fn drop(&mut self) {
        self.state.lock().outcomes.leave(self.number);
        self.context.telemetry.metrics.watches.dec();
    }
}

#[tonic::async_trait]
impl CompanionService for CompanionOutcomes {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

    async fn watch(&self, request: Request<WatchRequest>) -> Answer<Self::WatchStream> {
        let watch = self.open(super::admitted(&request)?)?;
        // One message waits for the reader, and what the transport holds.
        let (sender, mut messages) = mpsc::channel(1);
        // The last word of a call whose reader is too slow for it.
        let end = Arc::new(Mutex::new(None));
        let (this, last) = (self.clone(), end.clone());
        tokio::spawn(async move {
            let status = this.serve(watch, &sender).await;
            *last.lock() = Some(status);
        });
        let messages = stream::poll_fn(move |context| {
            messages.poll_recv(context).map(|message| match message {
                Some(message) => Some(Ok(WatchResponse { message: Some(message) })),
                None => end.lock().take().map(Err),
            })
        });
        Ok(Response::new(Box::pin(messages)))
    }
}

impl CompanionOutcomes {
    pub(super) fn new(context: &Arc<Context>, access: &Arc<Access>, drain: &CancellationToken) -> Self {
        Self { context: context.clone(), access: access.clone(), drain: drain.clone() }
    }

    fn open(&self, admitted: Admitted) -> Result<Watch, Status> {
        let Admitted { caller, id, tenant } = admitted;
        let state = self.context.states.state(&tenant.namespace);
        let most = self.context.replica.args.max_streams_per_tenant.max(1);
        let (number, changed) = {
            let mut data = state.lock();
            if data.tenant.as_ref() != Some(&id) {
                return Err(self.access.no_namespace(&id));
            }
            data.outcomes.follow(most).ok_or_else(|| {
                let message = format!("tenant {id} has {most} calls of Watch open already; end one");
                Status::resource_exhausted(message)
            })?
        };
        self.context.telemetry.metrics.watches.inc();
        Ok(Watch {
            context: self.context.clone(),
            caller,
            id,
            state,
            number,
            changed,
            began: self.context.environment.clock.now(),
            progress: Progress::Workloads(None),
            asked: Vec::new(),
        })
    }

    /// Sends messages until the call ends. Returns how.
    async fn serve(&self, mut watch: Watch, reader: &mpsc::Sender<Message>) -> Status {
        let (caller, id) = (watch.caller.clone(), watch.id.clone());
        info!(%caller, tenant = %id, "watch of companions started");
        let status = tokio::select! {
            biased;
            () = reader.closed() => Status::cancelled("the caller has gone away"),
            status = self.over(&caller, &id) => status,
            status = watch.send(reader) => status,
        };
        let (code, reason) = (status.code(), status.message());
        info!(%caller, tenant = %id, %code, reason, "watch of companions ended");
        status
    }

    /// Waits until the caller may no longer be served. Returns why.
    async fn over(&self, caller: &Caller, id: &TenantId) -> Status {
        let changes = self.context.caches.registry.changes(caller, id);
        let mut expired = pin!(sleep_until(super::workloads::expiry(&self.context, caller)));
        loop {
            // It may have changed since the call began.
            if let Err(status) = self.access.authorize(caller, id) {
                return status;
            }
            tokio::select! {
                biased;
                () = self.drain.cancelled() => {
                    return Status::unavailable("this replica is going down; connect again");
                }
                () = &mut expired => {
                    return Status::unauthenticated("the client certificate has expired; connect with a new one");
                }
                () = changes.changed() => {}
            }
        }
    }
}

impl Watch {
    /// Sends what there is and then what changes, for as long as this replica knows it. Returns why it no longer does.
    async fn send(&mut self, reader: &mpsc::Sender<Message>) -> Status {
        let clock = self.context.environment.clock;
        let rate = Rate::per_second(WATCH_MESSAGES_PER_SECOND, WATCH_SETTLE);
        let mut pace = Bucket::new(clock.now());
        loop {
            match self.next() {
                Next::Send(message) => {
                    let Ok(wait) = pace.reserve(rate, 1.0, WATCH_STALL, clock.now()) else {
                        return stalled();
                    };
                    sleep_until(clock.now() + wait).await;
                    match timeout(WATCH_STALL, reader.send(message)).await {
                        Ok(Ok(())) => {}
                        Ok(Err(_)) => return Status::cancelled("the caller has gone away"),
                        Err(_) => return stalled(),
                    }
                }
                Next::Wait => {
                    let settled = clock.now() + WATCH_SETTLE;
                    self.changed.notified().await;
                    sleep_until(settled).await;
                }
                Next::Dismissed => {
                    let id = &self.id;
                    return Status::unavailable(format!(
                        "the namespace of tenant {id} has belonged to another one, or its workloads have been forgotten; call again"
                    ));
                }
                Next::Unknown => {
                    let before = matches!(self.progress, Progress::Workloads(None));
                    let patience = self.began + WATCH_PATIENCE;
                    if !before || timeout_at(patience, self.changed.notified()).await.is_err() {
                        return Status::unavailable(
                            "the tenant's workloads are not known to this replica; call on the connection of the workload stream",
                        );
                    }
                }
            }
        }
    }

    /// The next message. Workloads that are deleted meanwhile are passed over: the agent has said so itself.
    fn next(&mut self) -> Next {
        let now = self.context.environment.clock.wall();
        let mut data = self.state.lock();
        if !data.outcomes.is_followed_by(self.number) {
            return Next::Dismissed;
        }
        // Before the workloads are known: the agent may send them with these annotations at once.
        if !data.index.asked().eq(self.asked.iter().map(String::as_str)) {
            self.asked = data.index.asked().map(str::to_owned).collect();
            return Next::Send(Message::AnnotationRequest(AnnotationRequest { keys: self.asked.clone() }));
        }
        if !data.can_report() {
            return Next::Unknown;
        }
        while let Progress::Workloads(after) = &mut self.progress {
            let Some(label) = data.next_outcome(after.as_ref()) else {
                self.progress = Progress::Hosts;
                break;
            };
            let report = data.report_of(&label, now);
            *after = Some(label);
            if let Some(report) = report {
                return Next::Send(Message::Workload(workload(report)));
            }
        }
        if let Some((name, outcome)) = data.outcomes.next_host(self.number) {
            return Next::Send(Message::Host(host(name, outcome, now)));
        }
        if matches!(self.progress, Progress::Hosts) {
            self.progress = Progress::All;
            return Next::Send(Message::Synced(Synced {}));
        }
        while let Some(label) = data.outcomes.next_workload(self.number) {
            if let Some(report) = data.report_of(&label, now) {
                return Next::Send(Message::Workload(workload(report)));
            }
        }
        Next::Wait
    }
}

fn stalled() -> Status {
    Status::resource_exhausted(format!(
        "no message was read for {} s; call again, and read",
        WATCH_STALL.as_secs()
    ))
}

fn workload(report: WorkloadReport) -> WorkloadCompanions {
    let WorkloadReport { id, node, revision, mut companions } = report;
    if companions.len() > WATCH_COMPANIONS {
        companions.sort_by_key(|companion| companion.outcome.progress.stage == Stage::Ready);
        companions.truncate(WATCH_COMPANIONS);
    }
    let mut texts = WATCH_TEXTS;
    let companions = companions.into_iter().map(|reported| companion(reported, &mut texts)).collect();
    WorkloadCompanions {
        workload_id: id.as_str().to_owned(),
        companions,
        // Said also of a workload without a node: an absent field is that of an earlier version.
        node_name: Some(node.unwrap_or_default()),
        revision,
    }
}

/// Of a companion of an admin rule only its state and its cause are sent, and whether the workload waits for it.
fn companion(reported: ReportedCompanion, texts: &mut usize) -> Companion {
    let ReportedCompanion { rule, outcome, faults } = reported;
    let cause = outcome.progress.cause;
    let own = !rule.is_admin();
    let text = cause.filter(|_| own && *texts > 0).map(|cause| message(cause, &faults)).unwrap_or_default();
    *texts = texts.saturating_sub(usize::from(!text.is_empty()));
    Companion {
        rule: if own { rule.as_str().to_owned() } else { String::new() },
        state: state(outcome.progress.stage).into(),
        reason: cause.map(Cause::as_str).unwrap_or_default().to_owned(),
        message: text,
        since: format!("{:.0}", outcome.since),
        before_ready: outcome.ordering.gates(),
        before_start: outcome.ordering.holds(),
    }
}

/// The cause's own words, and the faults of the tenant's own fields. Never other words of the API server, whose plugins name
/// namespaces, quotas, policies and the taints of other tenants.
pub(crate) fn message(cause: Cause, faults: &str) -> String {
    let mut text = cause.message();
    if !faults.is_empty() {
        text.push_str("; ");
        text.extend(faults.chars().map(|c| if c.is_control() { ' ' } else { c }));
    }
    truncate_bytes(&text, WATCH_TEXT_BYTES, "...").to_string()
}

fn host(node_name: String, outcome: Option<HostOutcome>, now: jiff::Timestamp) -> HostStatus {
    let outcome = outcome.unwrap_or(HostOutcome { dpu: HostDpu::NotListed, since: now });
    let cause = outcome.dpu.cause();
    HostStatus {
        node_name,
        dpu_ready: cause.is_none(),
        reason: cause.map(Cause::as_str).unwrap_or_default().to_owned(),
        since: format!("{:.0}", outcome.since),
    }
}

fn state(stage: Stage) -> CompanionState {
    match stage {
        Stage::Pending => CompanionState::Pending,
        Stage::Refused => CompanionState::Refused,
        Stage::NoDpu => CompanionState::NoDpu,
        Stage::Starting => CompanionState::Starting,
        Stage::Ready => CompanionState::Ready,
        Stage::Failed => CompanionState::Failed,
        Stage::Lost => CompanionState::Lost,
    }
}

#[cfg(test)]
mod tests;
