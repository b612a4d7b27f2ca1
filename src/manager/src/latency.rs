//! The time from a workload's message to the creation of its companion, and the trace that continues across the queue.

use outrigger_core::map::HashMap;
use outrigger_runtime::environment::Clock;
use outrigger_runtime::telemetry::Origin;
use parking_lot::Mutex;
use prometheus_client::metrics::histogram::Histogram;
use tokio::time::Instant;
use tracing::{Span, debug_span};

use crate::state::CompanionId;

/// Upper bounds of the buckets, in seconds: up to an API server that is unavailable for minutes.
const BUCKETS: [f64; 14] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];

/// The companions that a workload's message has asked for, and when. There is one entry for each that waits for its step.
#[derive(Debug)]
pub(crate) struct CompanionLatency {
    requests: Mutex<HashMap<CompanionId, CompanionRequest>>,
    clock: Clock,
    /// Time from a workload's message to its companion's creation.
    pub(crate) histogram: Histogram,
}

/// The message that asked for a companion's step.
#[derive(Debug, Clone)]
pub(crate) struct CompanionRequest {
    at: Instant,
    origin: Origin,
}

/// A step that is under way. The request for it is forgotten at its end, unless it is put back.
#[derive(Debug)]
pub(crate) struct TracedStep<'a> {
    latency: &'a CompanionLatency,
    id: &'a CompanionId,
    request: Option<CompanionRequest>,
}

impl CompanionLatency {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { requests: Mutex::default(), clock, histogram: Histogram::new(BUCKETS) }
    }

    /// The request of a message that came in now, in this span.
    pub(crate) fn request(&self, span: &Span) -> CompanionRequest {
        CompanionRequest { at: self.clock.now(), origin: Origin::of(span) }
    }

    /// A message asks for these companions. One that an earlier message has asked for waits since then.
    pub(crate) fn requested(&self, ids: &[CompanionId], by: &CompanionRequest) {
        let mut requests = self.requests.lock();
        for id in ids {
            requests.entry(id.clone()).or_insert_with(|| by.clone());
        }
    }

    pub(crate) fn begin<'a>(&'a self, id: &'a CompanionId) -> TracedStep<'a> {
        TracedStep { latency: self, id, request: self.requests.lock().remove(id) }
    }
}

impl TracedStep<'_> {
    /// A span of what is done to the companion, in the trace of the message; none where no message asked for it.
    pub(crate) fn span(&self, action: &'static str) -> Span {
        let Some(request) = &self.request else { return Span::none() };
        let span = debug_span!("companion", action, otel.kind = "client");
        request.origin.continued_by(&span);
        span
    }

    /// Steps of these companions follow for the same message, and none of this one.
    pub(crate) fn passes_to(&mut self, ids: &[CompanionId]) {
        if let Some(request) = self.request.take_if(|_| !ids.is_empty()) {
            self.latency.requested(ids, &request);
        }
    }

    pub(crate) fn created(&mut self) {
        if let Some(request) = self.request.take() {
            let took = self.latency.clock.now() - request.at;
            self.latency.histogram.observe(took.as_secs_f64());
        }
    }

    /// Another step follows for the same message.
    pub(crate) fn continues(&mut self) {
        if let Some(request) = self.request.take() {
            self.latency.requests.lock().insert(self.id.clone(), request);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outrigger_runtime::environment::Environment;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::fixtures;
    use crate::metrics::Metrics;

    #[test]
    fn the_first_message_counts_until_the_companion_is_there() {
        let mut registry = Registry::default();
        let latency = Metrics::new(&mut registry, Environment::system().clock).latency;
        let count = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            let line = text.lines().find_map(|l| l.strip_prefix("companion_lag_seconds_count ")).unwrap();
            line.parse::<u64>().unwrap()
        };
        let key = fixtures::key("w");
        let id = CompanionId { namespace: "n".into(), key };
        let now = latency.request(&Span::none());
        let early = CompanionRequest { at: now.at - Duration::from_secs(60), origin: Origin::default() };
        latency.requested(std::slice::from_ref(&id), &early);
        latency.requested(std::slice::from_ref(&id), &now);
        let mut step = latency.begin(&id);
        assert_eq!(step.request.as_ref().unwrap().at, early.at);
        step.continues();
        latency.begin(&id).created();
        assert_eq!(count(), 1);
        // No message asked for it: a rule may have changed.
        latency.begin(&id).created();
        assert_eq!(count(), 1);
        // A step that had nothing to do.
        latency.requested(std::slice::from_ref(&id), &early);
        drop(latency.begin(&id));
        latency.begin(&id).created();
        assert_eq!(count(), 1);
        assert!(latency.requests.lock().is_empty());
    }

    #[test]
    fn the_message_of_a_workload_counts_for_its_companion_on_each_dpu() {
        let mut registry = Registry::default();
        let latency = Metrics::new(&mut registry, Environment::system().clock).latency;
        let key = fixtures::key("w");
        let whole = CompanionId { namespace: "n".into(), key };
        let on = ["d1", "d2"].map(|dpu| CompanionId { key: whole.key.on(dpu), ..whole.clone() });
        let request = latency.request(&Span::none());
        latency.requested(std::slice::from_ref(&whole), &request);
        latency.begin(&whole).passes_to(&on);
        for id in &on {
            assert_eq!(latency.begin(id).request.as_ref().unwrap().at, request.at);
        }
        // Where no message has asked, none is passed on; where there is no DPU, none either.
        latency.begin(&whole).passes_to(&on);
        latency.requested(std::slice::from_ref(&whole), &request);
        latency.begin(&whole).passes_to(&[]);
        assert!(latency.requests.lock().is_empty());
    }
}
