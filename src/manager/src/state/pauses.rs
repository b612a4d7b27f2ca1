//! How long a companion that failed waits before it is replaced, and how long what others change is left before it is written again:
//! longer each time, so that it doesn't keep the API server busy.

use outrigger_core::map::HashMap;
use std::hash::Hash;
use std::time::Duration;

use outrigger_core::index::CompanionKey;
use tokio::time::Instant;

use crate::sweep::Sweep;

const FIRST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(300);

/// FailurePauses by companion. A companion that hasn't failed for twice the longest pause is forgiven.
#[derive(Debug, Default)]
pub(crate) struct FailurePauses {
    by_key: HashMap<CompanionKey, Pause>,
    sweep: Sweep,
}

#[derive(Debug)]
struct Pause {
    length: Duration,
    until: Instant,
}

impl FailurePauses {
    /// How much longer a failed companion has to wait; `None` when it may be replaced now.
    pub(crate) fn wait(&mut self, key: &CompanionKey, now: Instant) -> Option<Duration> {
        let counts = |pause: &Pause| now < pause.until + 2 * LONGEST;
        self.sweep.before_new(&mut self.by_key, |pause| counts(pause));
        match self.by_key.get_mut(key).filter(|pause| counts(pause)) {
            None => {
                self.by_key.insert(key.clone(), Pause { length: FIRST, until: now + FIRST });
                Some(FIRST)
            }
            Some(pause) if now < pause.until => Some(pause.until - now),
            Some(pause) => {
                pause.length = (pause.length * 2).min(LONGEST);
                pause.until = now + pause.length;
                None
            }
        }
    }
}

/// The pause after a write, and the longest that it grows to while writes go on.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// How often something is written, such as a companion: the first time at once, again with exponential backoff while that goes on. So a
/// workload whose labels change all the time costs a write now and then, and a companion that somebody else deletes again and again
/// isn't created all the time. What is written is the latest.
#[derive(Debug)]
pub(crate) struct WritePauses<K = CompanionKey> {
    by_key: HashMap<K, Written>,
    sweep: Sweep,
}

impl<K> Default for WritePauses<K> {
    fn default() -> Self {
        Self { by_key: HashMap::default(), sweep: Sweep::default() }
    }
}

#[derive(Debug)]
struct Written {
    at: Instant,
    pause: Duration,
}

impl<K: Eq + Hash + Clone> WritePauses<K> {
    /// How much longer a key has to wait until it is written again; `None` when it may be now.
    pub(crate) fn left(&self, key: &K, now: Instant) -> Option<Duration> {
        let written = self.by_key.get(key)?;
        written.pause.checked_sub(now.duration_since(written.at)).filter(|left| !left.is_zero())
    }

    /// Whether a key may be written now, which then counts as done. The error is how much longer it has to wait.
    pub(crate) fn write(&mut self, key: &K, now: Instant) -> Result<(), Duration> {
        self.sweep.before_new(&mut self.by_key, |written| now < written.at + 2 * written.pause);
        if let Some(left) = self.left(key, now) {
            return Err(left);
        }
        let first = Written { at: now, pause: AGAIN.0 };
        let Some(written) = self.by_key.get_mut(key) else {
            self.by_key.insert(key.clone(), first);
            return Ok(());
        };
        let since = now.duration_since(written.at);
        // After a quiet time pauses are short again.
        *written = if since >= 2 * written.pause {
            first
        } else {
            Written { at: now, pause: (written.pause * 2).min(AGAIN.1) }
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn pauses_double_and_are_forgiven() {
        let key = fixtures::key("w");
        let mut pauses = FailurePauses::default();
        let t = Instant::now();
        assert_eq!(pauses.wait(&key, t), Some(FIRST));
        assert_eq!(pauses.wait(&key, t + FIRST), None, "replaced");
        let again = t + FIRST + Duration::from_secs(1);
        assert_eq!(pauses.wait(&key, again), Some(Duration::from_secs(9)));
        assert_eq!(pauses.wait(&key, again + 10 * LONGEST), Some(FIRST), "forgiven");
    }

    #[test]
    fn facts_that_go_on_changing_are_written_less_and_less_often() {
        let key = fixtures::key("w");
        let (mut facts, t) = (WritePauses::default(), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!(facts.write(&key, t), Ok(()));
        assert_eq!(facts.write(&key, t + second / 4), Err(second * 3 / 4));
        assert_eq!(facts.write(&key, t + second), Ok(()));
        assert_eq!(facts.write(&key, t + second * 2), Err(second), "two seconds now");
        assert_eq!(facts.write(&key, t + second * 3), Ok(()));
        assert_eq!(facts.write(&key, t + second * 60), Ok(()), "after a quiet while");
        assert_eq!(facts.write(&key, t + second * 61), Ok(()), "it starts again");
        for i in 0..1000 {
            let key = fixtures::key(&i.to_string());
            assert_eq!(facts.write(&key, t + second * 100 * i), Ok(()));
        }
        assert!(facts.by_key.len() < 100, "{}", facts.by_key.len());
    }
}
