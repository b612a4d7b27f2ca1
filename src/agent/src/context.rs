//! Shared context of the components of an agent.

use std::sync::Arc;

use kube::Client;
use outrigger_runtime::environment::Environment;
use outrigger_runtime::events::Events;
use tokio_util::sync::CancellationToken;
use tonic::metadata::AsciiMetadataValue;

use crate::connect::Connector;
use crate::metrics::Metrics;

/// Dependencies of an agent on its environment, and its metrics.
pub struct Context {
    /// Client of the tenant's cluster.
    pub client: Client,
    /// Clock and randomness.
    pub environment: Environment,
    /// Opens connections to the manager.
    pub connector: Connector,
    /// Id of the tenant, as the metadata of calls.
    pub tenant: AsciiMetadataValue,
    /// Publishes Events in the tenant's cluster.
    pub events: Arc<Events>,
    /// Metrics.
    pub metrics: Metrics,
    /// Cancelled when the process shuts down.
    pub drain: CancellationToken,
}
