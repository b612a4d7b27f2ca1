//! From a workload's message to its companion: the time that takes, and the trace that goes on across the queue.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use outrigger_runtime::telemetry::Origin;
use parking_lot::Mutex;
use tracing::{Span, debug_span};

use crate::metrics::Metrics;
use crate::state::CompanionId;

/// Which companions a workload's message has asked for, and when. One entry for each that is waiting for its step.
#[derive(Debug)]
pub struct CompanionLatency {
    asked: Mutex<HashMap<CompanionId, Asked>>,
    metrics: Arc<Metrics>,
}

/// The message that a companion's step is made for.
#[derive(Debug, Clone)]
pub struct Asked {
    at: Instant,
    origin: Origin,
}

impl Asked {
    /// By a message that came in now, in this span.
    pub fn now(span: &Span) -> Self {
        Self { at: Instant::now(), origin: Origin::of(span) }
    }
}

/// A step that is under way. What it was asked for by is forgotten at its end, unless it is put back.
#[derive(Debug)]
pub struct Step<'a> {
    latency: &'a CompanionLatency,
    id: &'a CompanionId,
    asked: Option<Asked>,
}

impl CompanionLatency {
    /// Nothing has been asked for.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { asked: Mutex::default(), metrics }
    }

    /// A message concerns these companions. One that waits since an earlier message waits since then.
    pub fn asked(&self, ids: &[CompanionId], by: &Asked) {
        let mut asked = self.asked.lock();
        for id in ids {
            asked.entry(id.clone()).or_insert_with(|| by.clone());
        }
    }

    /// A step for a companion begins.
    pub fn begin<'a>(&'a self, id: &'a CompanionId) -> Step<'a> {
        Step { latency: self, id, asked: self.asked.lock().remove(id) }
    }
}

impl Step<'_> {
    /// A span of what is done to the companion, in the trace of the message; none where no message asked for it.
    pub fn span(&self, action: &'static str) -> Span {
        let Some(asked) = &self.asked else { return Span::none() };
        let span = debug_span!("companion", action, otel.kind = "client");
        asked.origin.continued_by(&span);
        span
    }

    /// The companion has been created.
    pub fn created(&mut self) {
        if let Some(asked) = self.asked.take() {
            self.latency.metrics.latency.observe(asked.at.elapsed().as_secs_f64());
        }
    }

    /// It has not been dealt with: another step follows, for the same message.
    pub fn goes_on(&mut self) {
        if let Some(asked) = self.asked.take() {
            self.latency.asked.lock().insert(self.id.clone(), asked);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outrigger_core::ids::RuleName;
    use outrigger_core::index::CompanionKey;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn the_first_message_counts_until_the_companion_is_there() {
        let mut registry = Registry::default();
        let lag = CompanionLatency::new(Arc::new(Metrics::new(&mut registry)));
        let count = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            let line = text.lines().find_map(|l| l.strip_prefix("companion_lag_seconds_count ")).unwrap();
            line.parse::<u64>().unwrap()
        };
        let key = CompanionKey { rule: RuleName::new("r").unwrap(), workload: "w".into() };
        let id = CompanionId { namespace: "n".into(), key };
        let early = Asked { at: Instant::now() - Duration::from_secs(60), origin: Origin::default() };
        lag.asked(std::slice::from_ref(&id), &early);
        lag.asked(std::slice::from_ref(&id), &Asked::now(&Span::none()));
        let mut step = lag.begin(&id);
        assert_eq!(step.asked.as_ref().unwrap().at, early.at);
        step.goes_on();
        lag.begin(&id).created();
        assert_eq!(count(), 1);
        // Nobody's message: a rule that changed, say.
        lag.begin(&id).created();
        assert_eq!(count(), 1);
        // A step that had nothing to do.
        lag.asked(std::slice::from_ref(&id), &early);
        drop(lag.begin(&id));
        lag.begin(&id).created();
        assert_eq!(count(), 1);
        assert!(lag.asked.lock().is_empty());
    }
}
