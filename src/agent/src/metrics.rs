//! What the agent counts.

use std::sync::atomic::AtomicI64;

use outrigger_proto::v1::workload_chunked_stream_request::Message;
use outrigger_runtime::metrics;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Metrics of an agent. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Workloads of the tenant cluster.
    pub workloads: Gauge<i64, AtomicI64>,
    /// Whether a stream is open.
    pub connected: Gauge<i64, AtomicI64>,
    /// Streams begun.
    pub connections: Counter,
    messages: Family<MessageLabels, Counter>,
    rounds: Family<RoundLabels, Counter>,
}

/// How a comparison of rules ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Round {
    /// Both sides are compared.
    Ok,
    /// The manager could not be reached, or failed.
    Failed,
    /// It has no service for rules.
    Unsupported,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
enum Kind {
    Update,
    Delete,
    Sync,
    Chunk,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MessageLabels {
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoundLabels {
    outcome: Round,
}

impl Metrics {
    /// Metrics that the registry shows.
    pub fn new(registry: &mut Registry) -> Self {
        let this = Self::default();
        metrics::AGENT_WORKLOADS.register(registry, this.workloads.clone());
        metrics::AGENT_CONNECTED.register(registry, this.connected.clone());
        metrics::AGENT_CONNECTIONS.register(registry, this.connections.clone());
        metrics::AGENT_MESSAGES.register(registry, this.messages.clone());
        metrics::AGENT_ROUNDS.register(registry, this.rounds.clone());
        this
    }

    /// A message is about to be sent.
    pub fn sent(&self, message: &Message) {
        let kind = match message {
            Message::WorkloadUpdate(_) => Kind::Update,
            Message::WorkloadDelete(_) => Kind::Delete,
            // A sync in chunks is one sync.
            Message::WorkloadSync(_) | Message::WorkloadSyncEnd(_) => Kind::Sync,
            Message::WorkloadSyncBegin(_) | Message::WorkloadSyncChunk(_) => Kind::Chunk,
        };
        self.messages.get_or_create(&MessageLabels { kind }).inc();
    }

    /// Rules have been compared, or not.
    pub fn round(&self, outcome: Round) {
        self.rounds.get_or_create(&RoundLabels { outcome }).inc();
    }
}
