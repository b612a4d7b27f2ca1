//! Metrics of the manager.

use std::sync::atomic::AtomicI64;
use std::time::Duration;

use outrigger_runtime::environment::Clock;
use outrigger_runtime::metrics::{self, LATENCY_BUCKETS};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::latency::CompanionLatency;

/// Times of queries about workloads, by how they ended.
type QueryTimes = Family<[(&'static str, QueryOutcome); 1], Histogram, fn() -> Histogram>;

#[derive(Debug)]
pub(crate) struct Metrics {
    /// Open workload streams.
    pub streams: Gauge<i64, AtomicI64>,
    /// Open calls that tell agents of companions.
    pub watches: Gauge<i64, AtomicI64>,
    /// Companions that a workload's message asked for, and since when.
    pub latency: CompanionLatency,
    messages: Family<[(&'static str, StreamMessage); 1], Counter>,
    queries: QueryTimes,
    writes: Family<WriteLabels, Histogram, fn() -> Histogram>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum StreamMessage {
    Update,
    Delete,
    /// WorkloadSync, or the end of one in chunks
    Sync,
    /// WorkloadSyncBegin, WorkloadSyncChunk
    Chunk,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Operation {
    Create,
    Annotate,
    Resize,
    Update,
    Delete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum WriteOutcome {
    Ok,
    /// The API server refused it (4xx).
    Refused,
    /// It failed (5xx, 429, no answer).
    Failed,
}

/// How a query about workloads ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum QueryOutcome {
    Answered,
    /// Its parameters can't be used.
    Invalid,
    /// Nobody is known by the token.
    NotAccepted,
    /// The user may not ask about the tenant.
    Forbidden,
    /// There is no such tenant, and the user may know that.
    NotFound,
    /// This replica doesn't know the tenant's workloads.
    Elsewhere,
    /// A limit was reached.
    Busy,
    /// The caller could not be reviewed, or the replica isn't ready.
    Failed,
}

impl WriteOutcome {
    /// How a call ended.
    pub(crate) fn of<T>(result: &Result<T, kube::Error>) -> Self {
        match result {
            Ok(_) => Self::Ok,
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 429 => {
                Self::Refused
            }
            Err(_) => Self::Failed,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    operation: Operation,
    outcome: WriteOutcome,
}

impl Metrics {
    pub(crate) fn new(registry: &mut Registry, clock: Clock) -> Self {
        let this = Self {
            streams: Gauge::default(),
            watches: Gauge::default(),
            latency: CompanionLatency::new(clock),
            messages: Family::default(),
            queries: Family::new_with_constructor(|| Histogram::new(LATENCY_BUCKETS)),
            writes: Family::new_with_constructor(|| Histogram::new(LATENCY_BUCKETS)),
        };
        metrics::STREAMS.register(registry, this.streams.clone());
        metrics::COMPANION_WATCHES.register(registry, this.watches.clone());
        metrics::MESSAGES.register(registry, this.messages.clone());
        metrics::COMPANION_LAG.register(registry, this.latency.histogram.clone());
        metrics::QUERIES.register(registry, this.queries.clone());
        // A family without samples isn't shown at all.
        let _ = this.queries.get_or_create(&[("outcome", QueryOutcome::Answered)]);
        metrics::COMPANION_WRITE.register(registry, this.writes.clone());
        this
    }

    pub(crate) fn received(&self, kind: StreamMessage) {
        self.messages.get_or_create(&[("kind", kind)]).inc();
    }

    pub(crate) fn queried(&self, outcome: QueryOutcome, took: Duration) {
        self.queries.get_or_create(&[("outcome", outcome)]).observe(took.as_secs_f64());
    }

    pub(crate) fn wrote(&self, operation: Operation, outcome: WriteOutcome, took: Duration) {
        self.writes.get_or_create(&WriteLabels { operation, outcome }).observe(took.as_secs_f64());
    }
}
