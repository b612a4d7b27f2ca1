//! Pauses between calls of the manager.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use outrigger_runtime::environment::Random;

/// Longest pause.
const LONGEST: Duration = Duration::from_secs(15);
/// A call that lasted longer resets the pause.
const STABLE: Duration = Duration::from_secs(10);

/// Pauses that grow from one call to the next until one of them has lasted.
pub(crate) struct Pauses {
    backoff: ExponentialBuilder,
    pauses: ExponentialBackoff,
}

impl Pauses {
    /// Pauses of which the first is the shortest.
    pub(crate) fn new(shortest: Duration, random: &Random) -> Self {
        let backoff = ExponentialBuilder::default()
            .with_min_delay(shortest)
            .with_max_delay(LONGEST)
            .with_jitter()
            .with_jitter_seed(random.seed())
            .without_max_times();
        Self { backoff, pauses: backoff.build() }
    }

    /// Returns the pause after a call that has lasted for so long.
    pub(crate) fn after(&mut self, lasted: Duration) -> Duration {
        if lasted > STABLE {
            self.pauses = self.backoff.build();
        }
        self.pauses.next().unwrap_or(LONGEST).min(LONGEST)
    }
}
