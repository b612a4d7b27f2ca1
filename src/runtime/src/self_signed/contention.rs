//! Somebody else writes what we write, each time that we do: cert-manager's cainjector, say, which adds its own CA to whatever
//! it finds. Neither would ever end; so we go on, but ever less often, and say so.

use std::time::Duration;

use tokio::time::Instant;

/// Writes of the same that follow one another and mean nothing: somebody applies a file again, or puts an object back.
const TOLERATED: u32 = 20;

/// When nobody has changed anything for so long, it is over.
const CALM: Duration = Duration::from_secs(60);

/// Pauses from then on: the first, and the longest. A bundle that lacks our CA fails requests, so it isn't left for long.
const PAUSES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));

/// What became of one place.
#[derive(Debug, Default)]
pub(super) struct Contention {
    /// What was written last, and when.
    last: Option<(String, Instant)>,
    /// How often the same had to be written again.
    again: u32,
}

impl Contention {
    /// This has been written.
    pub(super) fn wrote(&mut self, trust: &str, now: Instant) {
        let same = self.last.as_ref().is_some_and(|(last, _)| last == trust);
        self.again = match self.disputed_until() {
            _ if !same => 0,
            Some(until) if now < until => self.again.saturating_add(1),
            _ => 1,
        };
        self.last = Some((trust.to_owned(), now));
    }

    /// How long not to write this; nothing where it may be written.
    pub(super) fn hold(&self, trust: &str, now: Instant) -> Option<Duration> {
        let (last, at) = self.last.as_ref()?;
        // What is new is told at once.
        let left = (*at + self.pause()).checked_duration_since(now).filter(|_| last == trust)?;
        (!left.is_zero()).then_some(left)
    }

    /// Whether somebody should know.
    pub(super) fn is_told(&self, now: Instant) -> bool {
        self.again > TOLERATED && self.disputed_until().is_some_and(|until| now < until)
    }

    fn disputed_until(&self) -> Option<Instant> {
        self.last.as_ref().map(|(_, at)| *at + self.pause() + CALM)
    }

    fn pause(&self) -> Duration {
        match self.again.checked_sub(TOLERATED) {
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
    fn who_is_overruled_all_the_time_writes_ever_less_often_and_says_so() {
        let (mut this, mut now) = (Contention::default(), Instant::now());
        let begin = now;
        let mut writes = 0;
        // Somebody undoes it within the second.
        while now < begin + 3600 * SECOND {
            match this.hold("a", now) {
                Some(left) => now += left,
                None => {
                    this.wrote("a", now);
                    writes += 1;
                    now += SECOND;
                }
            }
        }
        assert!(this.is_told(now));
        assert!((TOLERATED + 10..TOLERATED + 30).contains(&writes), "{writes} in an hour");
        this.wrote("a", now);
        assert!(this.hold("a", now).is_some_and(|left| left == PAUSES.1), "and is never silent for longer");
        assert_eq!(this.hold("b", now), None, "another CA is told at once");
        this.wrote("b", now);
        assert!(!this.is_told(now));
    }

    #[test]
    fn what_is_changed_now_and_then_is_mended_at_once() {
        let (mut this, mut now) = (Contention::default(), Instant::now());
        for _ in 0..10 * TOLERATED {
            assert_eq!(this.hold("a", now), None);
            this.wrote("a", now);
            assert!(!this.is_told(now));
            now += CALM;
        }
        // Until it begins, and after it has ended.
        for _ in 0..=TOLERATED {
            this.wrote("a", now);
        }
        assert!(this.is_told(now) && this.hold("a", now).is_some());
        now += PAUSES.0 + CALM;
        assert!(!this.is_told(now) && this.hold("a", now).is_none());
        this.wrote("a", now);
        assert_eq!(this.hold("a", now), None);
    }
}
