//! What the parts of an agent share.

use std::sync::Arc;

use kube::Client;
use outrigger_runtime::environment::Environment;
use outrigger_runtime::events::Events;
use tokio_util::sync::CancellationToken;
use tonic::metadata::AsciiMetadataValue;

use crate::connect::Connector;
use crate::metrics::Metrics;

/// Everything that comes into an agent from outside, and its metrics.
pub struct Context {
    /// The tenant's own cluster.
    pub client: Client,
    /// Time and randomness.
    pub environment: Environment,
    /// Opens connections to the manager.
    pub connector: Connector,
    /// The tenant, as calls name it.
    pub tenant: AsciiMetadataValue,
    /// Events in the tenant's cluster.
    pub events: Arc<Events>,
    /// Counts.
    pub metrics: Metrics,
    /// Cancelled when the process drains.
    pub drain: CancellationToken,
}
