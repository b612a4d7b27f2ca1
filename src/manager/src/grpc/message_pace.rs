//! How fast one stream may be.

use std::time::Duration;

use outrigger_runtime::environment::Clock;
use tokio::time::Instant;

/// The time that a rate is counted over: long enough for a burst, short enough for nobody to notice the wait.
const WINDOW: Duration = Duration::from_millis(100);

/// Lets a stream's messages through at a rate. Who is faster waits, and HTTP/2 lets its client wait too.
#[derive(Debug)]
pub(super) struct Pace {
    per_window: u32,
    left: u32,
    ends: Instant,
    clock: Clock,
}

impl Pace {
    /// So many messages a second, at least ten.
    pub(super) fn new(per_second: u32, clock: Clock) -> Self {
        let per_window = (per_second / 10).max(1);
        Self { per_window, left: per_window, ends: clock.now() + WINDOW, clock }
    }

    /// To be called after each message: waits where it came too early.
    pub(super) async fn wait(&mut self) {
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        tokio::time::sleep_until(self.ends).await;
        self.left = self.per_window;
        self.ends = self.clock.now() + WINDOW;
    }
}

#[cfg(test)]
mod tests {
    use outrigger_runtime::environment::Environment;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_waits_and_a_trickle_does_not() {
        let mut pace = Pace::new(100, Environment::system().clock);
        let start = Instant::now();
        for _ in 0..100 {
            pace.wait().await;
        }
        assert_eq!(start.elapsed().as_millis(), 1000);
        let mut pace = Pace::new(100, Environment::system().clock);
        let start = Instant::now();
        for _ in 0..50 {
            tokio::time::advance(Duration::from_millis(20)).await;
            pace.wait().await;
        }
        assert_eq!(start.elapsed().as_millis(), 1000);
    }
}
