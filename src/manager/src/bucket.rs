//! Token buckets: how much may be taken in a time.
//!
//! They are own code: they follow limits that change while the process runs, take more than they hold at once (a rule may be larger
//! than what a second allows) and go by a clock that tests can stop.

use std::time::Duration;

use tokio::time::Instant;

/// A bucket that fills at a rate. It may owe something: whoever takes from it waits until nothing is owed.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// How long it takes to fill.
    depth: Duration,
    /// When it was full, or will be if nothing more is taken.
    full_at: Instant,
}

impl Bucket {
    pub(crate) fn new(depth: Duration, now: Instant) -> Self {
        Self { depth, full_at: now }
    }

    pub(crate) fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }

    /// Takes an amount. Returns how long to wait before it may be used. The error is that time, when it is longer than
    /// `patience`; nothing is taken then.
    pub(crate) fn take(
        &mut self,
        amount: u64,
        per_second: u64,
        patience: Duration,
        now: Instant,
    ) -> Result<Duration, Duration> {
        let cost = Duration::from_secs_f64(amount as f64 / per_second.max(1) as f64);
        let full_at = self.full_at.max(now);
        // What a single call takes beyond the depth is owed by those that come after it.
        let wait = (full_at + cost.min(self.depth)).saturating_duration_since(now + self.depth);
        if wait > patience {
            return Err(wait);
        }
        self.full_at = full_at + cost;
        Ok(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_waits_and_a_trickle_does_not() {
        const DEPTH: Duration = Duration::from_millis(100);
        let now = Instant::now();
        let mut burst = Bucket::new(DEPTH, now);
        let waits: Vec<u128> =
            (0..100).map(|_| burst.take(1, 100, Duration::MAX, now).unwrap().as_millis()).collect();
        assert_eq!((waits[9], waits[10], waits[99]), (0, 10, 900));
        let mut trickle = Bucket::new(DEPTH, now);
        for i in 0..50 {
            let later = now + Duration::from_millis(20) * i;
            assert_eq!(trickle.take(1, 100, Duration::ZERO, later), Ok(Duration::ZERO));
        }
    }
}
