//! What the webhook counts.

use std::time::Duration;

use outrigger_runtime::admin::LATENCY_BUCKETS;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::admit::guests::Outcome;

/// Metrics of a webhook.
#[derive(Debug)]
pub struct Metrics {
    admissions: Family<Labels, Histogram, fn() -> Histogram>,
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

impl Metrics {
    /// Metrics that the registry shows.
    pub fn new(registry: &mut Registry) -> Self {
        let admissions: Family<Labels, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(LATENCY_BUCKETS));
        let help = "Time from a request's last byte to its answer, waiting for caches included";
        registry.register_with_unit("admission", help, Unit::Seconds, admissions.clone());
        let guests = Family::<GuestLabels, Counter>::default();
        registry.register("guests", "Guests of Machines that were admitted or refused", guests.clone());
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
