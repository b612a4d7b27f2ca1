//! Keeps the workload stream to the manager open.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::ready;
use outrigger_proto::TENANT_ID;
use outrigger_proto::v1::WorkloadChunkedStreamRequest;
use outrigger_proto::v1::workload_service_client::WorkloadServiceClient;
use outrigger_runtime::ready::{Readiness, ReadyHandle};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tracing::{info, warn};

use crate::binding::CLAIMS;
use crate::context::Context;
use crate::device_attributes;
use crate::pauses::Pauses;
use crate::store::WorkloadStore;
use crate::stream;

/// Shortest pause between two connection attempts.
const PAUSE: Duration = Duration::from_millis(10);

pub(crate) struct Sender {
    pub(crate) context: Arc<Context>,
    pub(crate) store: Arc<WorkloadStore>,
}

impl Sender {
    pub(crate) async fn run(self, readiness: Readiness, connected: ReadyHandle) {
        // A sync before all Pods are listed would delete the workloads that it lacks.
        let [claims, slices] = device_attributes::WATCHES;
        let needed = ["pods", CLAIMS, claims, slices];
        let unlisted = || readiness.missing().iter().any(|task| needed.contains(task));
        while unlisted() && !self.context.drain.is_cancelled() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut connected = Some(connected);
        let mut pauses = Pauses::new(PAUSE, &self.context.environment.random);
        while !self.context.drain.is_cancelled() {
            let began = self.context.environment.clock.now();
            match self.stream(&mut connected).await {
                Ok(()) => info!("manager closed the stream; reconnecting"),
                Err(error) => warn!(error = format!("{error:#}"), "stream failed; reconnecting"),
            }
            tokio::select! {
                biased;
                () = self.context.drain.cancelled() => {}
                () = tokio::time::sleep(pauses.after(began.elapsed())) => {}
            }
        }
    }

    /// Opens a stream and sends until it ends.
    async fn stream(&self, connected: &mut Option<ReadyHandle>) -> anyhow::Result<()> {
        let channel = self.context.connector.connect().await?;
        let client = WorkloadServiceClient::new(channel.clone());
        info!(workloads = self.store.len(), "connected to manager; sending all workloads");
        self.context.metrics.connections.inc();
        if let Some(connected) = connected.take() {
            connected.done();
        }
        self.context.metrics.connected.set(1);
        self.context.channel.send_replace(Some(channel));
        let mut ended = self.call(client.clone(), true).await;
        if ended.as_ref().is_err_and(|status| status.code() == Code::Unimplemented) {
            info!("manager does not support chunks; sending all workloads in one message");
            ended = self.call(client, false).await;
        }
        self.context.metrics.connected.set(0);
        self.context.channel.send_replace(None);
        self.store.end_stream();
        ended.map_err(|status| anyhow::anyhow!("{:?}: {}", status.code(), status.message()))
    }

    /// Sends all workloads, in chunks or in one message, and then each change, until the call ends.
    async fn call(&self, mut client: WorkloadServiceClient<Channel>, chunked: bool) -> Result<(), Status> {
        let (store, metrics) = (self.store.clone(), self.context.metrics.clone());
        let messages = stream::messages(store.clone(), chunked).inspect(move |message| {
            metrics.sent(message);
            metrics.workloads.set(i64::try_from(store.len()).unwrap_or(i64::MAX));
        });
        let drain = self.context.drain.clone();
        let messages = Box::pin(messages.take_until(async move { drain.cancelled().await }));
        if chunked {
            let messages = messages.map(|message| WorkloadChunkedStreamRequest { message: Some(message) });
            client.workload_chunked_stream(self.request(messages)).await?;
        } else {
            let messages = messages.filter_map(|message| ready(stream::unchunked(message)));
            client.workload_stream(self.request(messages)).await?;
        }
        Ok(())
    }

    fn request<T>(&self, messages: T) -> Request<T> {
        let mut request = Request::new(messages);
        request.metadata_mut().insert(TENANT_ID, self.context.tenant.clone());
        request
    }
}
