//! How long a companion that failed waits before it is replaced: longer each time, so that one which can't live doesn't
//! keep the API server busy.

use std::collections::HashMap;
use std::time::Duration;

use outrigger_core::index::CompanionKey;
use tokio::time::Instant;

const FIRST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(300);

/// Pauses by companion. A companion that hasn't failed for twice the longest pause is forgiven.
#[derive(Debug, Default)]
pub struct Pauses {
    by_key: HashMap<CompanionKey, Pause>,
}

#[derive(Debug)]
struct Pause {
    length: Duration,
    until: Instant,
}

impl Pauses {
    /// How much longer a failed companion has to wait; `None` when it may be replaced now.
    pub fn wait(&mut self, key: &CompanionKey, now: Instant) -> Option<Duration> {
        self.by_key.retain(|_, pause| now < pause.until + 2 * LONGEST);
        match self.by_key.get_mut(key) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::ids::RuleName;

    #[test]
    fn pauses_double_and_are_forgiven() {
        let key = CompanionKey { rule: RuleName::new("r").unwrap(), workload: "w".into() };
        let mut pauses = Pauses::default();
        let t = Instant::now();
        assert_eq!(pauses.wait(&key, t), Some(FIRST));
        assert_eq!(pauses.wait(&key, t + FIRST), None, "replaced");
        let again = t + FIRST + Duration::from_secs(1);
        assert_eq!(pauses.wait(&key, again), Some(Duration::from_secs(9)));
        assert_eq!(pauses.wait(&key, again + 10 * LONGEST), Some(FIRST), "forgiven");
    }
}
