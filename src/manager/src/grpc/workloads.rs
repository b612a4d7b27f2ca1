//! `universe.workload.v1.WorkloadService`: the tenant's workloads come in.

use std::sync::Arc;

use jiff::Timestamp;
use outrigger_api::workload_wire::{self, WireError};
use outrigger_core::index::CompanionKey;
use outrigger_core::workload::Workload;
use outrigger_proto::v1::workload_service_server::WorkloadService;
use outrigger_proto::v1::workload_stream_request::Message;
use outrigger_proto::v1::{WorkloadStreamRequest, WorkloadStreamResponse, WorkloadSync};
use outrigger_runtime::ready::Readiness;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};
use tracing::{info, warn};

use crate::metrics::{Metrics, StreamMessage};
use crate::queue::Queue;
use crate::state::{CompanionId, RuleId, Space, Spaces};

/// Serves workload streams.
#[derive(Clone)]
pub struct Workloads {
    /// What is known.
    pub spaces: Arc<Spaces>,
    /// Companions to look at.
    pub queue: Arc<Queue<CompanionId>>,
    /// Rules whose status may have changed.
    pub rules: Arc<Queue<RuleId>>,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// Cancelled when the process drains: streams end, agents go to another replica.
    pub drain: CancellationToken,
    /// Whether rules and companions have been listed: before that nobody is served.
    pub readiness: Readiness,
}

#[tonic::async_trait]
impl WorkloadService for Workloads {
    async fn workload_stream(
        &self,
        request: Request<Streaming<WorkloadStreamRequest>>,
    ) -> Result<Response<WorkloadStreamResponse>, Status> {
        let tenant = super::tenant_id(request.metadata())?;
        if !self.readiness.is_ready() {
            return Err(Status::unavailable("this replica is not ready; connect again"));
        }
        let space = self.spaces.of_tenant(&tenant).ok_or_else(|| {
            Status::not_found(format!("tenant {tenant} has no namespace in the infrastructure cluster"))
        })?;
        let mut stream = request.into_inner();
        let number = space.lock().stream.begin();
        info!(%tenant, stream = number, "stream begins");
        self.metrics.streams.inc();
        self.tell_rules(&space);
        let result = self.take_in(&space, number, &mut stream).await;
        self.metrics.streams.dec();
        space.lock().stream.end(number, Timestamp::now());
        self.tell_rules(&space);
        match &result {
            Ok(()) => info!(%tenant, stream = number, "stream ended"),
            Err(status) => {
                warn!(%tenant, stream = number, code = ?status.code(), message = status.message(), "stream ended");
            }
        }
        result.map(|()| Response::new(WorkloadStreamResponse {}))
    }
}

impl Workloads {
    async fn take_in(
        &self,
        space: &Arc<Space>,
        number: u64,
        stream: &mut Streaming<WorkloadStreamRequest>,
    ) -> Result<(), Status> {
        loop {
            let message = tokio::select! {
                message = stream.message() => message?,
                () = self.drain.cancelled() => {
                    return Err(Status::unavailable("this replica is going down; connect again"));
                }
            };
            let Some(message) = message else { return Ok(()) };
            let keys = self.apply(space, number, message).await?;
            for key in &keys {
                self.rules.add_after(space.rule_id(&key.rule), crate::rules::SETTLE);
            }
            self.queue.add(space.ids(keys));
        }
    }

    async fn apply(
        &self,
        space: &Arc<Space>,
        number: u64,
        message: WorkloadStreamRequest,
    ) -> Result<Vec<CompanionKey>, Status> {
        let current = |e: crate::state::Superseded| Status::aborted(e.to_string());
        match message.message {
            None => Err(Status::invalid_argument(
                "message: none of workload_update, workload_delete, workload_sync is set",
            )),
            Some(Message::WorkloadUpdate(update)) => {
                self.metrics.received(StreamMessage::Update);
                let workload =
                    workload_wire::workload(update).map_err(|e| bad(e.under("workload_update")))?;
                let mut inner = space.lock();
                inner.stream.check(number).map_err(current)?;
                Ok(inner.index.update(workload))
            }
            Some(Message::WorkloadDelete(delete)) => {
                self.metrics.received(StreamMessage::Delete);
                let id = workload_wire::workload_id(delete.workload_metadata.as_ref())
                    .map_err(|e| bad(e.under("workload_delete")))?;
                let mut inner = space.lock();
                inner.stream.check(number).map_err(current)?;
                Ok(inner.index.delete(&id))
            }
            Some(Message::WorkloadSync(sync)) => {
                self.metrics.received(StreamMessage::Sync);
                let space = space.clone();
                // Tens of thousands of workloads take a moment; other streams should not wait for it.
                let keys = tokio::task::spawn_blocking(move || {
                    let workloads = decode(sync)?;
                    let mut inner = space.lock();
                    inner.stream.check(number).map_err(current)?;
                    let first = !inner.index.synced();
                    let mut keys = inner.index.sync(workloads);
                    if first {
                        // Companions from before this process began: what the sync doesn't want goes now.
                        keys.extend(inner.companions.keys().cloned());
                    }
                    Ok::<_, Status>(keys)
                })
                .await
                .map_err(|e| Status::internal(e.to_string()))??;
                Ok(keys)
            }
        }
    }

    /// The Synced condition of all the tenant's rules may have changed.
    fn tell_rules(&self, space: &Space) {
        let rules: Vec<_> = space.lock().rules.keys().map(|name| space.rule_id(name)).collect();
        for rule in rules {
            self.rules.add_after(rule, crate::rules::SETTLE);
        }
    }
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
