//! Metrics of the plugin.

use std::sync::atomic::AtomicI64;
use std::time::Duration;

use outrigger_runtime::metrics::{self, LATENCY_BUCKETS};
use prometheus_client::encoding::EncodeLabelValue;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Metrics of a plugin.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// Whether the kubelet has registered it.
    pub(crate) registered: Gauge<i64, AtomicI64>,
    claims: Family<[(&'static str, Outcome); 1], Counter>,
    calls: Family<[(&'static str, Outcome); 1], Histogram>,
}

/// What came of a claim, or of the worst claim of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelValue)]
pub(crate) enum Outcome {
    /// The Pod may start.
    Ready,
    /// The Pod has to wait.
    NotReady,
    /// The agent could not be asked.
    Failed,
}

impl Metrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let this = Self {
            registered: Gauge::default(),
            claims: Family::default(),
            calls: Family::new_with_constructor(|| Histogram::new(LATENCY_BUCKETS)),
        };
        metrics::HOST_REGISTERED.register(registry, this.registered.clone());
        metrics::HOST_CLAIMS.register(registry, this.claims.clone());
        metrics::HOST_PREPARE.register(registry, this.calls.clone());
        // They are shown before anything has happened.
        for outcome in [Outcome::Ready, Outcome::NotReady, Outcome::Failed] {
            let _ = this.claims.get_or_create(&[("outcome", outcome)]);
            let _ = this.calls.get_or_create(&[("outcome", outcome)]);
        }
        this
    }

    /// A call has been answered.
    pub(crate) fn answered(&self, outcomes: &[Outcome], time: Duration) {
        for outcome in outcomes {
            self.claims.get_or_create(&[("outcome", *outcome)]).inc();
        }
        let worst = outcomes.iter().max().copied().unwrap_or(Outcome::Ready);
        self.calls.get_or_create(&[("outcome", worst)]).observe(time.as_secs_f64());
    }
}
