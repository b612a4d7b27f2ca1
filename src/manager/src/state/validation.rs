//! The validation of a rule's template by a dry run: whether the API server would accept its companions, before any that runs is
//! replaced.
//!
//! The manager makes the dry run, because the webhook must not have the right to create Pods.

use std::time::Duration;

use tokio::time::Instant;

use super::Why;

/// Pause after the first validation that didn't succeed, and the longest that it grows to.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

#[derive(Debug, Clone, Default)]
pub(crate) struct TemplateValidation {
    verdict: Option<Result<(), Why>>,
    /// When it may be validated again, and the pause before that.
    next: Option<(Instant, Duration)>,
}

impl TemplateValidation {
    /// It was valid before.
    pub(crate) fn passed() -> Self {
        Self { verdict: Some(Ok(())), next: None }
    }

    /// Whether the API server takes it.
    pub(crate) fn has_passed(&self) -> bool {
        self.verdict == Some(Ok(()))
    }

    pub(crate) fn refusal(&self) -> Option<&Why> {
        self.verdict.as_ref()?.as_ref().err()
    }

    /// Whether it should be validated now.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        !self.has_passed() && self.left(now).is_none()
    }

    /// How long until it may be validated again; `None` when it has passed, or may be validated now.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        let (at, _) = self.next.filter(|_| !self.has_passed())?;
        at.checked_duration_since(now).filter(|left| !left.is_zero())
    }

    /// What came of a validation; `None` when the API server didn't say. Returns when to try again.
    pub(crate) fn record(&mut self, verdict: Option<Result<(), Why>>, now: Instant) -> Option<Duration> {
        if verdict.is_some() {
            self.verdict = verdict;
        }
        if self.has_passed() {
            self.next = None;
            return None;
        }
        let pause = self.next.map_or(PAUSE.0, |(_, pause)| (pause * 2).min(PAUSE.1));
        self.next = Some((now + pause, pause));
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use outrigger_core::reason::Cause;

    use super::*;

    #[test]
    fn it_is_tried_until_it_passes_with_exponential_backoff() {
        let mut validation = TemplateValidation::default();
        let mut now = Instant::now();
        let no = Why::new(Cause::Refused, "no");
        assert!(validation.is_due(now));
        for pause in [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000] {
            assert_eq!(validation.record(Some(Err(no.clone())), now), Some(Duration::from_millis(pause)));
            assert!(!validation.is_due(now));
            assert_eq!(validation.left(now), Some(Duration::from_millis(pause)));
            now += Duration::from_millis(pause);
            assert!(validation.is_due(now));
        }
        // That the API server is away says nothing about the template.
        validation.record(None, now);
        assert_eq!(validation.refusal(), Some(&no));
        assert_eq!(validation.record(Some(Ok(())), now), None);
        assert_eq!(validation.left(now), None);
        assert!(validation.has_passed() && !validation.is_due(now) && validation.refusal().is_none());
    }
}
