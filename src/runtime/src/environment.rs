//! The source of time and randomness of a process.
//!
//! Code that decides or schedules reads time and random numbers from its [`Environment`]. Servers use [`Environment::system`].
//! Simulations use [`Environment::simulated`]: on one thread, with tokio's paused time, the same seed leads to the same run. Keys
//! and serial numbers of certificates must be unpredictable, and never come from here.

#![allow(clippy::disallowed_methods, reason = "this is where the system's clocks and randomness are read")]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinError;
use tokio::time::Instant;

/// Time and randomness of a process. Cheap to clone; all clones share their state.
#[derive(Debug, Clone)]
pub struct Environment {
    /// The clocks.
    pub clock: Clock,
    /// The random numbers.
    pub random: Random,
}

impl Environment {
    /// The system's clock, and randomness seeded by the operating system.
    pub fn system() -> Self {
        Self { clock: Clock::system(), random: Random::new(StdRng::from_os_rng()) }
    }

    /// Randomness from this seed, and a wall clock that starts at `wall` and advances with tokio's time. Different times simulate
    /// clock skew between replicas.
    pub fn simulated(seed: u64, wall: Timestamp) -> Self {
        let clock = Clock { wall: Some((wall, Instant::now())) };
        Self { clock, random: Random::new(StdRng::seed_from_u64(seed)) }
    }

    /// Does work that takes a moment on a thread for such work, so that the workers stay free. A simulation has one thread only.
    ///
    /// # Errors
    /// When the work panics, or the runtime shuts down.
    pub async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        if self.clock.wall.is_some() {
            return Ok(work());
        }
        tokio::task::spawn_blocking(work).await
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
    /// The simulated wall time at an instant; `None` for the system's clock.
    wall: Option<(Timestamp, Instant)>,
}

impl Clock {
    /// The system's clocks, for metrics and certificate files, which no simulation has.
    pub const fn system() -> Self {
        Self { wall: None }
    }

    /// The monotonic clock, for durations, deadlines and pauses. It is tokio's, so it stands still while tokio's time is paused.
    pub fn now(&self) -> Instant {
        Instant::now()
    }

    /// The wall clock, for times in objects. It may go back.
    pub fn wall(&self) -> Timestamp {
        match self.wall {
            None => Timestamp::now(),
            Some((wall, at)) => wall.saturating_add(at.elapsed()).unwrap_or(wall),
        }
    }

    /// The wall clock in seconds of Unix time, for certificates and metrics.
    pub fn unix(&self) -> i64 {
        self.wall().as_second()
    }
}

/// Random numbers for jitter and names. They must not be used for secrets.
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

    /// A random number, for example the seed of another generator.
    pub fn seed(&self) -> u64 {
        self.state.lock().random()
    }

    /// A random number from 0 to below 1.
    pub fn fraction(&self) -> f64 {
        self.state.lock().random()
    }

    /// A random duration shorter than `limit`.
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
