//! The workload stream to the manager, kept open.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use futures::StreamExt;
use futures::future::ready;
use outrigger_proto::TENANT_ID;
use outrigger_proto::v1::WorkloadChunkedStreamRequest;
use outrigger_proto::v1::workload_service_client::WorkloadServiceClient;
use outrigger_runtime::ready::{Readiness, ReadyHandle};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tracing::{info, warn};

use crate::context::Context;
use crate::store::Store;
use crate::stream;

/// Pauses between two attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(15));

/// A stream that lived this long was a good one: the next pause is the shortest again.
const GOOD: Duration = Duration::from_secs(10);

/// Keeps a stream open.
pub(crate) struct Sender {
    pub(crate) context: Arc<Context>,
    pub(crate) store: Arc<Store>,
}

impl Sender {
    pub(crate) async fn run(self, readiness: Readiness, connected: ReadyHandle) {
        // A sync of half of the Pods would be taken for all of them.
        while readiness.missing().contains(&"pods") && !self.context.drain.is_cancelled() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut connected = Some(connected);
        let backoff = ExponentialBuilder::default()
            .with_min_delay(PAUSES.0)
            .with_max_delay(PAUSES.1)
            .with_jitter()
            .with_jitter_seed(self.context.environment.random.seed())
            .without_max_times();
        let mut pauses = backoff.build();
        while !self.context.drain.is_cancelled() {
            let began = self.context.environment.clock.now();
            match self.stream(&mut connected).await {
                Ok(()) => info!("stream closed by the manager"),
                Err(error) => warn!(error = format!("{error:#}"), "stream failed; reconnecting"),
            }
            if began.elapsed() > GOOD {
                pauses = backoff.build();
            }
            let pause = pauses.next().unwrap_or(PAUSES.1).min(PAUSES.1);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.context.drain.cancelled() => {}
            }
        }
    }

    /// One stream, from its beginning to its end.
    async fn stream(&self, connected: &mut Option<ReadyHandle>) -> anyhow::Result<()> {
        let client = WorkloadServiceClient::new(self.context.connector.connect().await?);
        info!(workloads = self.store.len(), "connected to the manager; sending all workloads");
        self.context.metrics.connections.inc();
        if let Some(connected) = connected.take() {
            connected.done();
        }
        self.context.metrics.connected.set(1);
        let mut ended = self.call(client.clone(), true).await;
        if ended.as_ref().is_err_and(|status| status.code() == Code::Unimplemented) {
            info!(
                "the manager is of an older version and takes no chunks; sending all workloads in one message"
            );
            ended = self.call(client, false).await;
        }
        self.context.metrics.connected.set(0);
        self.store.ended();
        ended.map_err(|status| anyhow::anyhow!("{:?}: {}", status.code(), status.message()))
    }

    /// Tells everything, in chunks or not, and then each change, until the call ends.
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
            client.workload_chunked_stream(self.about(messages)).await?;
        } else {
            let messages = messages.filter_map(|message| ready(stream::unchunked(message)));
            client.workload_stream(self.about(messages)).await?;
        }
        Ok(())
    }

    fn about<T>(&self, messages: T) -> Request<T> {
        let mut request = Request::new(messages);
        request.metadata_mut().insert(TENANT_ID, self.context.tenant.clone());
        request
    }
}
