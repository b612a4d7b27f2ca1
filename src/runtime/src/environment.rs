//! Time and randomness, which come into a process from outside.
//!
//! Code that decides or schedules asks its [`Environment`] what time it is and draws random numbers from it. A server has
//! [`Environment::system`]. A simulation has [`Environment::simulated`]: on one thread, under tokio's paused time, the same seed
//! then leads to the same run. Keys and serial numbers of certificates are secrets, and never come from here.

#![allow(clippy::disallowed_methods, reason = "this is where the system's clocks and randomness are read")]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

/// Time and randomness of a process. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct Environment {
    /// What time it is.
    pub clock: Clock,
    /// Where random numbers come from.
    pub random: Random,
}

impl Environment {
    /// The system's clock, and randomness seeded by the operating system.
    pub fn system() -> Self {
        Self { clock: Clock::system(), random: Random::new(StdRng::from_os_rng()) }
    }

    /// Randomness from this seed, and a wall clock that shows `wall` now and moves with tokio's time. Replicas of one simulation
    /// whose clocks differ get different times here.
    pub fn simulated(seed: u64, wall: Timestamp) -> Self {
        let clock = Clock { wall: Some((wall, Instant::now())) };
        Self { clock, random: Random::new(StdRng::seed_from_u64(seed)) }
    }
}

impl Default for Environment {
    fn default() -> Self {
        Self::system()
    }
}

/// The clocks of a process.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// What the wall clock shows at which moment; the system's where there is none.
    wall: Option<(Timestamp, Instant)>,
}

impl Clock {
    /// The system's clocks: for what talks about this process and not about objects, such as metrics and certificate files.
    pub const fn system() -> Self {
        Self { wall: None }
    }

    /// The monotonic clock: for durations, deadlines and pauses. It is tokio's, and so stands still where tokio's time is paused.
    pub fn now(&self) -> Instant {
        Instant::now()
    }

    /// The wall clock: for what is written into objects and compared with what others have written. It may be set back.
    pub fn wall(&self) -> Timestamp {
        match self.wall {
            None => Timestamp::now(),
            Some((wall, at)) => wall.saturating_add(at.elapsed()).unwrap_or(wall),
        }
    }

    /// The wall clock in seconds of Unix time: for certificates and metrics.
    pub fn unix(&self) -> i64 {
        self.wall().as_second()
    }
}

/// Random numbers for jitter, names and the like. They aren't fit for secrets.
#[derive(Clone)]
pub struct Random {
    state: Arc<Mutex<StdRng>>,
}

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Random")
    }
}

impl Random {
    fn new(state: StdRng) -> Self {
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Any number, for example the seed of something that draws its own.
    pub fn seed(&self) -> u64 {
        self.state.lock().random()
    }

    /// A number from 0 to below 1.
    pub fn fraction(&self) -> f64 {
        self.state.lock().random()
    }

    /// A duration shorter than `limit`.
    pub fn below(&self, limit: Duration) -> Duration {
        limit.mul_f64(self.fraction())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_simulated_environment_repeats_itself() {
        let wall: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let (one, other) = (Environment::simulated(7, wall), Environment::simulated(7, wall));
        let begin = one.clock.now();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(one.clock.now() - begin, Duration::from_secs(3600));
        assert_eq!(one.clock.wall().to_string(), "2026-01-02T04:04:05Z");
        let draw = |of: &Environment| (of.random.seed(), of.random.below(Duration::from_secs(1)));
        let first = draw(&one);
        assert_eq!(first, draw(&other));
        assert_ne!(first, draw(&one), "clones share their randomness");
        assert_ne!(first, draw(&Environment::simulated(8, wall)));
    }
}
