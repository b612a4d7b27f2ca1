//! Token buckets, which bound what another party can make a process read, write or ask.
//!
//! They are own code: they follow rates that change while the process runs, take more than they hold at once (a rule may be larger
//! than what a second allows) and go by a clock that tests can stop.

use std::time::Duration;

use tokio::time::Instant;

/// Longest time that one call adds, in seconds.
const LONGEST: f64 = 1e9;

/// A burst, and a sustained rate per minute.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    /// Number of tokens of an unused bucket.
    pub burst: f64,
    /// Number of tokens that are added each minute.
    pub minute: f64,
}

impl Rate {
    /// So many tokens a second, and those of a time at once.
    pub fn per_second(tokens: u64, at_once: Duration) -> Self {
        let second = tokens.max(1) as f64;
        Self { burst: second * at_once.as_secs_f64(), minute: second * 60.0 }
    }

    /// How long it takes until so many tokens are added.
    fn time(self, tokens: f64) -> Duration {
        Duration::from_secs_f64((tokens * 60.0 / self.minute).min(LONGEST))
    }
}

/// A bucket of tokens. Its rate is given with each call, because all buckets of one kind share it, and it may change.
#[derive(Debug)]
pub struct Bucket {
    /// When it was full, or will be if nothing more is taken.
    full_at: Instant,
}

impl Bucket {
    /// A full bucket.
    pub fn new(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// Returns whether nothing is missing.
    pub fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }

    /// Returns how long it takes until there are so many tokens. For more than the burst, the full bucket is enough.
    pub fn wait(&self, rate: Rate, tokens: f64, now: Instant) -> Duration {
        let used_up_at = self.full_at.max(now) + rate.time(tokens.min(rate.burst));
        used_up_at.saturating_duration_since(now + rate.time(rate.burst))
    }

    /// Removes tokens, also those that are not there: whoever takes from it waits until nothing is owed.
    pub fn spend(&mut self, rate: Rate, tokens: f64, now: Instant) {
        self.full_at = self.full_at.max(now) + rate.time(tokens);
    }

    /// Removes tokens. Returns how long to wait before they may be used.
    ///
    /// # Errors
    /// That time, when it is longer than `patience`; nothing is removed then.
    pub fn reserve(
        &mut self,
        rate: Rate,
        tokens: f64,
        patience: Duration,
        now: Instant,
    ) -> Result<Duration, Duration> {
        let wait = self.wait(rate, tokens, now);
        if wait > patience {
            return Err(wait);
        }
        self.spend(rate, tokens, now);
        Ok(wait)
    }

    /// Removes one token, and returns whether there was one.
    pub fn take(&mut self, rate: Rate, now: Instant) -> bool {
        self.reserve(rate, 1.0, Duration::ZERO, now).is_ok()
    }

    /// Returns when there is a token again; `now` if there is one.
    pub fn next(&self, rate: Rate, now: Instant) -> Instant {
        now + self.wait(rate, 1.0, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_empty_bucket_has_a_token_when_it_says() {
        let rate = Rate { burst: 2.0, minute: 6.0 };
        let begin = Instant::now();
        let mut bucket = Bucket::new(begin);
        assert_eq!([(); 3].map(|()| bucket.take(rate, begin)), [true, true, false]);
        let next = bucket.next(rate, begin);
        assert_eq!(next - begin, Duration::from_secs(10));
        assert!(!bucket.take(rate, next - Duration::from_millis(10)));
        assert!(bucket.take(rate, next));
        assert!(!bucket.is_full(next) && bucket.is_full(next + Duration::from_secs(20)));
        let hour = begin + Duration::from_secs(3600);
        assert_eq!([(); 3].map(|()| bucket.take(rate, hour)), [true, true, false], "no more than the burst");
        bucket.spend(rate, f64::MAX, hour);
        assert!(bucket.next(rate, hour) > hour + Duration::from_secs(3600), "any amount may be owed");
    }

    #[test]
    fn a_burst_waits_and_a_trickle_does_not() {
        let rate = Rate::per_second(100, Duration::from_millis(100));
        let now = Instant::now();
        let mut burst = Bucket::new(now);
        let mut wait = || burst.reserve(rate, 1.0, Duration::MAX, now).unwrap().as_millis();
        let waits: Vec<u128> = (0..100).map(|_| wait()).collect();
        assert_eq!((waits[9], waits[10], waits[99]), (0, 10, 900));
        let mut trickle = Bucket::new(now);
        for i in 0..50 {
            let later = now + Duration::from_millis(20) * i;
            assert_eq!(trickle.reserve(rate, 1.0, Duration::ZERO, later), Ok(Duration::ZERO));
        }
    }
}
