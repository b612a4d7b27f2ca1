//! Backoff for objects that others overwrite after each write, for example cert-manager's cainjector, which sets its own CA.
//! Writes continue with exponential backoff, and a warning is shown.

use std::time::Duration;

use tokio::time::Instant;

/// Repeated writes of the same bundle without a backoff: others may apply a manifest or restore an object now and then.
const TOLERATED: u32 = 20;

/// Time without a repeated write after which the contention is over.
const CALM: Duration = Duration::from_secs(60);

/// First and longest pause of the backoff. Requests fail while the bundle lacks the CA, so the pauses are limited.
const PAUSES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));

#[derive(Debug, Default)]
pub(super) struct Contention {
    /// The bundle that was written last, and when.
    last: Option<(String, Instant)>,
    /// How often the same bundle had to be written again.
    repeated: u32,
}

impl Contention {
    pub(super) fn written(&mut self, bundle: &str, now: Instant) {
        let same = self.last.as_ref().is_some_and(|(last, _)| last == bundle);
        self.repeated = match self.contended_until() {
            _ if !same => 0,
            Some(until) if now < until => self.repeated.saturating_add(1),
            _ => 1,
        };
        self.last = Some((bundle.to_owned(), now));
    }

    /// How long this bundle must not be written; `None` if it may be.
    pub(super) fn backoff(&self, bundle: &str, now: Instant) -> Option<Duration> {
        let (last, at) = self.last.as_ref()?;
        // A new bundle is published at once.
        let left = (*at + self.pause()).checked_duration_since(now).filter(|_| last == bundle)?;
        (!left.is_zero()).then_some(left)
    }

    /// Whether the contention goes on, and should be reported.
    pub(super) fn is_persistent(&self, now: Instant) -> bool {
        self.repeated > TOLERATED && self.contended_until().is_some_and(|until| now < until)
    }

    fn contended_until(&self) -> Option<Instant> {
        self.last.as_ref().map(|(_, at)| *at + self.pause() + CALM)
    }

    fn pause(&self) -> Duration {
        match self.repeated.checked_sub(TOLERATED) {
            None | Some(0) => Duration::ZERO,
            Some(more) => PAUSES.0.saturating_mul(1 << (more - 1).min(10)).min(PAUSES.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn persistent_contention_backs_off_and_is_reported() {
        let (mut this, mut now) = (Contention::default(), Instant::now());
        let begin = now;
        let mut writes = 0;
        // Another writer reverts it within a second.
        while now < begin + 3600 * SECOND {
            match this.backoff("a", now) {
                Some(left) => now += left,
                None => {
                    this.written("a", now);
                    writes += 1;
                    now += SECOND;
                }
            }
        }
        assert!(this.is_persistent(now));
        assert!((TOLERATED + 10..TOLERATED + 30).contains(&writes), "{writes} in an hour");
        this.written("a", now);
        assert!(this.backoff("a", now).is_some_and(|left| left == PAUSES.1), "the pauses are limited");
        assert_eq!(this.backoff("b", now), None, "a new CA is published at once");
        this.written("b", now);
        assert!(!this.is_persistent(now));
    }

    #[test]
    fn occasional_changes_are_reverted_at_once() {
        let (mut this, mut now) = (Contention::default(), Instant::now());
        for _ in 0..10 * TOLERATED {
            assert_eq!(this.backoff("a", now), None);
            this.written("a", now);
            assert!(!this.is_persistent(now));
            now += CALM;
        }
        // Until it begins, and after it has ended.
        for _ in 0..=TOLERATED {
            this.written("a", now);
        }
        assert!(this.is_persistent(now) && this.backoff("a", now).is_some());
        now += PAUSES.0 + CALM;
        assert!(!this.is_persistent(now) && this.backoff("a", now).is_none());
        this.written("a", now);
        assert_eq!(this.backoff("a", now), None);
    }
}
