//! What the webhook counts.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use outrigger_runtime::metrics::{self, LATENCY_BUCKETS, MICRO_BUCKETS};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::admit::guests::Outcome;

/// Histograms by labels.
type Times<L> = Family<L, Histogram, fn() -> Histogram>;

/// Time of the steps of all mutations of this process. Decisions are pure but for this: they are made by functions that
/// know of no server.
static STEPS: LazyLock<Times<StepLabels>> =
    LazyLock::new(|| Family::new_with_constructor(|| Histogram::new(MICRO_BUCKETS)));

/// Metrics of a webhook.
#[derive(Debug)]
pub struct Metrics {
    admissions: Times<Labels>,
    guests: Family<GuestLabels, Counter>,
}

/// How a request was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Verdict {
    /// Taken as it is.
    Allowed,
    /// Taken and changed.
    Patched,
    /// Refused.
    Denied,
    /// Refused because a cache was behind for too long.
    Behind,
    /// Refused because there was no room for it.
    Crowded,
    /// Not a review.
    Invalid,
}

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Webhook {
    /// `/mutate/pods`.
    MutatePods,
    /// `/validate/pods`, bindings included.
    ValidatePods,
    /// `/validate/resourceclaims` and `/validate/resourceclaimtemplates`.
    ValidateClaims,
    /// `/validate/workloadrules`.
    ValidateRules,
    /// `/validate/adminworkloadrules`.
    ValidateAdminRules,
    /// `/validate/tenants`.
    ValidateTenants,
    /// `/validate/namespaceoffloadings`.
    ValidateOffloadings,
    /// `/validate/machines`.
    ValidateMachines,
    /// `/validate/guests`.
    ValidateGuests,
}

impl Webhook {
    /// Whether a yes is written down: what it gives away can be had once.
    pub fn writes(self) -> bool {
        matches!(self, Self::ValidateMachines | Self::ValidateGuests)
    }
}

/// What came of a guest of a Machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GuestLabels {
    outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    webhook: Webhook,
    verdict: Verdict,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabels {
    step: &'static str,
    verdict: StepVerdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
enum StepVerdict {
    Passed,
    Denied,
}

/// Takes the time of one mutation's steps. That costs less than a microsecond a step.
#[derive(Debug)]
pub struct StepClock {
    began: Instant,
}

impl StepClock {
    /// The first step begins.
    #[allow(clippy::new_without_default, reason = "a clock that starts isn't a default")]
    pub fn new() -> Self {
        Self { began: Instant::now() }
    }

    /// A step of this name is over, and the next one begins.
    pub fn over(&mut self, step: &'static str, passed: bool) {
        let now = Instant::now();
        let took = now - std::mem::replace(&mut self.began, now);
        let verdict = if passed { StepVerdict::Passed } else { StepVerdict::Denied };
        STEPS.get_or_create(&StepLabels { step, verdict }).observe(took.as_secs_f64());
    }
}

impl Metrics {
    /// Metrics that the registry shows.
    pub fn new(registry: &mut Registry) -> Self {
        let admissions: Times<Labels> = Family::new_with_constructor(|| Histogram::new(LATENCY_BUCKETS));
        metrics::ADMISSION.register(registry, admissions.clone());
        metrics::ADMISSION_STEP.register(registry, STEPS.clone());
        let guests = Family::<GuestLabels, Counter>::default();
        for outcome in Outcome::ALL {
            guests.get_or_create(&GuestLabels { outcome }).inc_by(0);
        }
        metrics::GUESTS.register(registry, guests.clone());
        Self { admissions, guests }
    }

    /// A guest has been admitted, or refused.
    pub fn guest(&self, outcome: Outcome) {
        self.guests.get_or_create(&GuestLabels { outcome }).inc();
    }

    /// A request has been answered.
    pub fn answered(&self, webhook: Webhook, verdict: Verdict, took: Duration) {
        self.admissions.get_or_create(&Labels { webhook, verdict }).observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_counted_under_its_name() {
        let labels = |step, verdict| StepLabels { step, verdict };
        let mut clock = StepClock::new();
        clock.over("test one", true);
        clock.over("test two", false);
        assert!(STEPS.get(&labels("test one", StepVerdict::Passed)).is_some());
        assert!(STEPS.get(&labels("test two", StepVerdict::Denied)).is_some());
        assert!(STEPS.get(&labels("test two", StepVerdict::Passed)).is_none());
    }
}
