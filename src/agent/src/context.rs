//! Shared context of the components of an agent.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::Client;
use outrigger_runtime::environment::Environment;
use outrigger_runtime::events::Events;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;

use crate::connect::Connector;
use crate::metrics::Metrics;

/// Dependencies of an agent on its environment, and its metrics.
pub(crate) struct Context {
    pub client: Client,
    pub environment: Environment,
    pub connector: Connector,
    /// Id of the tenant, as the metadata of calls.
    pub tenant: AsciiMetadataValue,
    pub events: Arc<Events>,
    pub metrics: Metrics,
    pub drain: CancellationToken,
    /// The connection of the workload stream, while it is open.
    pub channel: watch::Sender<Option<Channel>>,
    /// The keys of annotations that the manager asks for.
    pub asked: watch::Sender<BTreeSet<String>>,
}

impl Context {
    /// The time, as conditions have it.
    pub(crate) fn timestamp(&self) -> String {
        self.environment.clock.wall().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}
