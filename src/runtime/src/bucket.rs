//! Token buckets, which bound what another party can make a process read, write or ask.

use tokio::time::Instant;

/// A burst, and a sustained rate per minute.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    /// Number of tokens of an unused bucket.
    pub burst: f64,
    /// Number of tokens that are added each minute.
    pub minute: f64,
}

/// A bucket of tokens. Its rate is given with each call, because all buckets of one kind share it.
#[derive(Debug)]
pub struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    /// A full bucket.
    pub fn new(rate: Rate, now: Instant) -> Self {
        Self { left: rate.burst, at: now }
    }

    /// Adds the tokens for the time since the last call. Returns the number of tokens.
    pub fn refill(&mut self, rate: Rate, now: Instant) -> f64 {
        let minutes = now.duration_since(self.at).as_secs_f64() / 60.0;
        self.left = (self.left + minutes * rate.minute).min(rate.burst);
        self.at = now;
        self.left
    }

    /// Removes tokens. The bucket may become negative.
    pub fn spend(&mut self, tokens: f64) {
        self.left -= tokens;
    }

    /// Removes one token, and returns whether there was one.
    pub fn take(&mut self, rate: Rate, now: Instant) -> bool {
        let there = self.refill(rate, now) >= 1.0;
        if there {
            self.spend(1.0);
        }
        there
    }

    /// Returns when there is a token again; `now` if there is one.
    pub fn next(&mut self, rate: Rate, now: Instant) -> Instant {
        let missing = (1.0 - self.refill(rate, now)).max(0.0);
        now + std::time::Duration::from_secs_f64(missing / rate.minute * 60.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_empty_bucket_has_a_token_when_it_says() {
        let rate = Rate { burst: 2.0, minute: 6.0 };
        let begin = Instant::now();
        let mut bucket = Bucket::new(rate, begin);
        assert_eq!([(); 3].map(|()| bucket.take(rate, begin)), [true, true, false]);
        let next = bucket.next(rate, begin);
        assert_eq!(next - begin, Duration::from_secs(10));
        assert!(!bucket.take(rate, next - Duration::from_millis(10)));
        assert!(bucket.take(rate, next + Duration::from_millis(10)));
        let hour = begin + Duration::from_secs(3600);
        assert_eq!([(); 3].map(|()| bucket.take(rate, hour)), [true, true, false], "no more than the burst");
    }
}
