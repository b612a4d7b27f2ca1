//! Schedules rounds, and determines after how many failures the tenant is notified.

use std::time::Duration;

/// Number of rounds that follow a change at a short interval, so that its effect is reported soon, and this interval.
const FOLLOW_UPS: (u32, Duration) = (8, Duration::from_millis(500));
/// Number of failures in a row before the tenant is notified. A proxy may return any error for a moment.
const NOTIFY_AFTER: u32 = 3;

/// Whether the tenant is notified of a failed round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    None,
    First,
    Again,
}

impl Notice {
    fn after(rounds: u32) -> Self {
        match rounds {
            ..NOTIFY_AFTER => Self::None,
            NOTIFY_AFTER => Self::First,
            _ => Self::Again,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Remaining rounds at the short interval.
    follow_ups: u32,
    /// Failed rounds in a row.
    failures: u32,
    /// Rounds since the manager last had a service for rules.
    unsupported: u32,
}

impl Pace {
    /// Records a successful round, and whether it has written anything.
    pub(super) fn succeeded(&mut self, wrote: bool) {
        let follow_ups = if wrote { FOLLOW_UPS.0 } else { self.follow_ups.saturating_sub(1) };
        *self = Self { follow_ups, ..Self::default() };
    }

    /// Records that the manager has no service for rules, which doesn't change soon.
    pub(super) fn unsupported(&mut self) -> Notice {
        self.follow_ups = 0;
        self.failures = 0;
        self.unsupported = self.unsupported.saturating_add(1);
        Notice::after(self.unsupported)
    }

    pub(super) fn failed(&mut self) -> Notice {
        self.failures = self.failures.saturating_add(1);
        Notice::after(self.failures)
    }

    /// Records that a rule of the tenant's cluster has changed.
    pub(super) fn changed(&mut self) {
        self.follow_ups = FOLLOW_UPS.0;
    }

    /// Returns the delay until the next round; `interval` is the regular one.
    pub(super) fn pause(&self, interval: Duration) -> Duration {
        if self.follow_ups > 0 && self.failures == 0 { FOLLOW_UPS.1.min(interval) } else { interval }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    #[test]
    fn rounds_follow_a_change_at_a_short_interval() {
        let mut pace = Pace::default();
        assert_eq!(pace.pause(INTERVAL), INTERVAL);
        pace.changed();
        pace.succeeded(true);
        for _ in 0..FOLLOW_UPS.0 {
            assert_eq!(pace.pause(INTERVAL), FOLLOW_UPS.1);
            assert_eq!(pace.pause(Duration::from_millis(1)), Duration::from_millis(1));
            pace.succeeded(false);
        }
        assert_eq!(pace.pause(INTERVAL), INTERVAL);
        pace.changed();
        pace.failed();
        assert_eq!(pace.pause(INTERVAL), INTERVAL, "failures are retried at the regular interval");
        pace.succeeded(false);
        assert_eq!(pace.pause(INTERVAL), FOLLOW_UPS.1);
    }

    #[test]
    fn a_manager_without_the_service_is_reported_after_several_rounds() {
        let mut pace = Pace::default();
        pace.changed();
        for notice in [Notice::None, Notice::None, Notice::First, Notice::Again] {
            assert_eq!(pace.unsupported(), notice);
            assert_eq!(pace.pause(INTERVAL), INTERVAL);
            pace.changed();
        }
        // A failed round in between does not reset the count.
        assert_eq!(pace.failed(), Notice::None);
        assert_eq!(pace.unsupported(), Notice::Again);
        assert_eq!(pace.failed(), Notice::None, "the failures were not in a row");
        assert_eq!(pace.failed(), Notice::None);
        assert_eq!(pace.failed(), Notice::First);
        pace.succeeded(false);
        assert_eq!(pace.unsupported(), Notice::None);
    }
}
