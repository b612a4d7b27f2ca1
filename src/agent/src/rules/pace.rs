//! How rounds follow each other, and after how many in vain the tenant is told.

use std::time::Duration;

/// How often rounds follow a change closely, so that what became of it is soon told, and at what distance.
const CLOSELY: (u32, Duration) = (8, Duration::from_millis(500));
/// How many rounds have to end in the same way before it is told: a proxy on the way may say anything for a moment.
const IN_VAIN: u32 = 3;

/// Whether the tenant is told of a round that came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// Not yet.
    No,
    /// For the first time.
    First,
    /// As before.
    Again,
}

impl Told {
    fn after(rounds: u32) -> Self {
        match rounds {
            ..IN_VAIN => Self::No,
            IN_VAIN => Self::First,
            _ => Self::Again,
        }
    }
}

/// What the last rounds came to.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// How many more rounds follow closely.
    closely: u32,
    /// How many rounds in a row have failed.
    failures: u32,
    /// How many rounds the manager has had no service for, since the last that it had one for.
    unsupported: u32,
}

impl Pace {
    /// A round went well; whether anything was written in it.
    pub(super) fn went(&mut self, wrote: bool) {
        let closely = if wrote { CLOSELY.0 } else { self.closely.saturating_sub(1) };
        *self = Self { closely, ..Self::default() };
    }

    /// The manager has no service for rules, it says. It won't have one in a moment.
    pub(super) fn unsupported(&mut self) -> Told {
        self.closely = 0;
        self.failures = 0;
        self.unsupported = self.unsupported.saturating_add(1);
        Told::after(self.unsupported)
    }

    /// A round failed.
    pub(super) fn failed(&mut self) -> Told {
        self.failures = self.failures.saturating_add(1);
        Told::after(self.failures)
    }

    /// A rule here has changed.
    pub(super) fn changed(&mut self) {
        self.closely = CLOSELY.0;
    }

    /// How long to wait for the next round when nothing happens, where `interval` is usual.
    pub(super) fn pause(&self, interval: Duration) -> Duration {
        if self.closely > 0 && self.failures == 0 { CLOSELY.1.min(interval) } else { interval }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    #[test]
    fn what_has_changed_is_followed_closely_for_a_while() {
        let mut pace = Pace::default();
        assert_eq!(pace.pause(INTERVAL), INTERVAL);
        pace.changed();
        pace.went(true);
        for _ in 0..CLOSELY.0 {
            assert_eq!(pace.pause(INTERVAL), CLOSELY.1);
            assert_eq!(pace.pause(Duration::from_millis(1)), Duration::from_millis(1));
            pace.went(false);
        }
        assert_eq!(pace.pause(INTERVAL), INTERVAL);
        pace.changed();
        pace.failed();
        assert_eq!(pace.pause(INTERVAL), INTERVAL, "who doesn't answer isn't asked more often");
        pace.went(false);
        assert_eq!(pace.pause(INTERVAL), CLOSELY.1);
    }

    #[test]
    fn a_manager_without_the_service_is_asked_at_the_usual_pace_and_told_of_when_it_is_sure() {
        let mut pace = Pace::default();
        pace.changed();
        for told in [Told::No, Told::No, Told::First, Told::Again] {
            assert_eq!(pace.unsupported(), told);
            assert_eq!(pace.pause(INTERVAL), INTERVAL);
            pace.changed();
        }
        // It goes away for a moment, and comes back as it was.
        assert_eq!(pace.failed(), Told::No);
        assert_eq!(pace.unsupported(), Told::Again);
        assert_eq!(pace.failed(), Told::No, "the failures were not in a row");
        assert_eq!(pace.failed(), Told::No);
        assert_eq!(pace.failed(), Told::First);
        pace.went(false);
        assert_eq!(pace.unsupported(), Told::No);
    }
}
