//! The webhook's metrics.

use std::cell::Cell;
use std::time::Duration;

use outrigger_admission::webhooks::{Endpoint, gate_endpoints};
use outrigger_admission::{GuestOutcome, StepObserver};
use outrigger_runtime::environment::Clock;
use outrigger_runtime::metrics::{self, LATENCY_BUCKETS, MICRO_BUCKETS};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::time::Instant;

type Times<L> = Family<L, Histogram, fn() -> Histogram>;
type StepLabels = [(&'static str, &'static str); 2];

/// Metrics of a webhook.
#[derive(Debug)]
pub struct Metrics {
    admissions: Times<Labels>,
    steps: Times<StepLabels>,
    guests: Family<[(&'static str, String); 1], Counter>,
}

/// How a request was answered: the label `verdict`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Verdict {
    /// Admitted unchanged.
    Allowed,
    /// Admitted and changed.
    Patched,
    /// Admitted, and refused if the tenant's level of enforcement were Enforce.
    WouldDeny,
    /// Refused.
    Denied,
    /// Refused because a cache was stale for too long.
    Behind,
    /// Refused because there was no room for it.
    Crowded,
    /// Not a review.
    Invalid,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    webhook: &'static str,
    verdict: Verdict,
}

/// Measures the steps of one mutation, at less than a microsecond a step.
#[derive(Debug)]
pub struct StepTimes<'a> {
    metrics: &'a Metrics,
    clock: Clock,
    began: Cell<Instant>,
}

impl StepObserver for StepTimes<'_> {
    fn started(&self) {
        self.began.set(self.clock.now());
    }

    fn finished(&self, step: &'static str, passed: bool, _: &Value) {
        let now = self.clock.now();
        let took = now - self.began.replace(now);
        let verdict = if passed { "Passed" } else { "Denied" };
        self.metrics.steps.get_or_create(&[("step", step), ("verdict", verdict)]).observe(took.as_secs_f64());
    }
}

impl Metrics {
    /// Registers the metrics.
    pub fn new(registry: &mut Registry) -> Self {
        let admissions: Times<Labels> = Family::new_with_constructor(|| Histogram::new(LATENCY_BUCKETS));
        metrics::ADMISSION.register(registry, admissions.clone());
        let steps: Times<StepLabels> = Family::new_with_constructor(|| Histogram::new(MICRO_BUCKETS));
        metrics::ADMISSION_STEP.register(registry, steps.clone());
        let guests = Family::<_, Counter>::default();
        for outcome in GuestOutcome::ALL {
            guests.get_or_create(&[("outcome", format!("{outcome:?}"))]).inc_by(0);
        }
        metrics::GUESTS.register(registry, guests.clone());
        Self { admissions, steps, guests }
    }

    /// Registers the metrics of a server of readiness gates, which has neither steps nor guests.
    pub fn of_gates(registry: &mut Registry) -> Self {
        let admissions: Times<Labels> = Family::new_with_constructor(|| Histogram::new(LATENCY_BUCKETS));
        metrics::ADMISSION.register(registry, admissions.clone());
        for endpoint in gate_endpoints() {
            drop(admissions.get_or_create(&Labels { webhook: endpoint.label, verdict: Verdict::Allowed }));
        }
        let steps: Times<StepLabels> = Family::new_with_constructor(|| Histogram::new(MICRO_BUCKETS));
        Self { admissions, steps, guests: Family::default() }
    }

    /// Returns an observer for the steps of one mutation.
    pub fn steps(&self, clock: Clock) -> StepTimes<'_> {
        StepTimes { metrics: self, clock, began: Cell::new(clock.now()) }
    }

    /// Counts a guest that has been admitted or refused.
    pub fn guest(&self, outcome: GuestOutcome) {
        self.guests.get_or_create(&[("outcome", format!("{outcome:?}"))]).inc();
    }

    /// Counts a request that has been answered.
    pub fn answered(&self, endpoint: &Endpoint, verdict: Verdict, took: Duration) {
        let labels = Labels { webhook: endpoint.label, verdict };
        self.admissions.get_or_create(&labels).observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use outrigger_runtime::environment::Environment;

    use super::*;

    #[test]
    fn each_step_is_counted_under_its_name() {
        let metrics = Metrics::new(&mut outrigger_runtime::admin::registry());
        let labels = |step, verdict| [("step", step), ("verdict", verdict)];
        let times = metrics.steps(Environment::system().clock);
        times.started();
        times.finished("one", true, &Value::Null);
        times.finished("two", false, &Value::Null);
        assert!(metrics.steps.get(&labels("one", "Passed")).is_some());
        assert!(metrics.steps.get(&labels("two", "Denied")).is_some());
        assert!(metrics.steps.get(&labels("two", "Passed")).is_none());
    }
}
