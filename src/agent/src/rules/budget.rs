//! How often statuses are written in the tenant's cluster: each write is a revision of the whole rule in its etcd, and what the
//! statuses say is the manager's word.

use std::collections::{HashMap, HashSet};

use tokio::time::Instant;

/// So much at once, and so much a minute from then on.
#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: f64,
    minute: f64,
}

/// Writes of one rule's status.
const RULE: Rate = Rate { burst: 20.0, minute: 12.0 };
/// Writes of all statuses. A new agent writes each rule's once.
const WRITES: Rate = Rate { burst: 1000.0, minute: 300.0 };
/// Bytes of the rules that are written.
const BYTES: Rate = Rate { burst: 64.0 * MIB, minute: 32.0 * MIB };
const MIB: f64 = (1 << 20) as f64;

/// What is left of a rate.
#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn new(rate: Rate, now: Instant) -> Self {
        Self { left: rate.burst, at: now }
    }

    fn refill(&mut self, rate: Rate, now: Instant) {
        let minutes = now.duration_since(self.at).as_secs_f64() / 60.0;
        self.left = (self.left + minutes * rate.minute).min(rate.burst);
        self.at = now;
    }
}

/// What may be written now.
#[derive(Debug)]
pub(super) struct Budget {
    rules: HashMap<String, Bucket>,
    writes: Bucket,
    bytes: Bucket,
    /// Whether something has been held back since this was last asked.
    held: bool,
}

impl Budget {
    /// A budget of which nothing has been used.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            rules: HashMap::default(),
            writes: Bucket::new(WRITES, now),
            bytes: Bucket::new(BYTES, now),
            held: false,
        }
    }

    /// Whether the status of the rule with this uid may be written, which has so many bytes as a whole. It counts as written then.
    pub(super) fn take(&mut self, uid: &str, bytes: usize, now: Instant) -> bool {
        self.writes.refill(WRITES, now);
        self.bytes.refill(BYTES, now);
        let rule = self.rules.entry(uid.to_owned()).or_insert_with(|| Bucket::new(RULE, now));
        rule.refill(RULE, now);
        // One that is larger than what is left takes what will come, so that a large rule is written at all.
        if rule.left < 1.0 || self.writes.left < 1.0 || self.bytes.left <= 0.0 {
            self.held = true;
            return false;
        }
        rule.left -= 1.0;
        self.writes.left -= 1.0;
        #[allow(clippy::cast_precision_loss)]
        let bytes = bytes as f64;
        self.bytes.left -= bytes;
        true
    }

    /// Whether something has been held back, since this was last asked.
    pub(super) fn held(&mut self) -> bool {
        std::mem::take(&mut self.held)
    }

    /// Forgets all other rules.
    pub(super) fn retain(&mut self, uids: &HashSet<String>) {
        self.rules.retain(|uid, _| uids.contains(uid));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn unused() -> (Budget, Instant) {
        let now = Instant::now();
        (Budget::new(now), now)
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_that_changes_all_the_time_is_written_now_and_then() {
        let (mut budget, begin) = unused();
        let writes = (0..3600).filter(|second| budget.take("a", 1000, begin + *second * SECOND)).count();
        assert!((720..=745).contains(&writes), "{writes} in an hour");
        assert!(budget.held() && !budget.held());
        assert!(budget.take("b", 1000, begin + 3600 * SECOND), "and others are not held back by it");
    }

    #[tokio::test(start_paused = true)]
    async fn many_rules_and_large_ones_are_written_at_a_bounded_rate() {
        for (count, bytes, most) in [(5000, 1000, 19_500), (200, 1 << 20, 2_100)] {
            let (mut budget, begin) = unused();
            let writes = (0..3600 / 5)
                .map(|round| {
                    let now = begin + round * 5 * SECOND;
                    (0..count).filter(|rule| budget.take(&rule.to_string(), bytes, now)).count()
                })
                .sum::<usize>();
            assert!((most / 2..=most).contains(&writes), "{writes} in an hour");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_agent_writes_each_status_at_once() {
        let (mut budget, now) = unused();
        assert!((0..1000).all(|rule| budget.take(&rule.to_string(), 1000, now)));
        assert!(!budget.take("one more", 1000, now));
    }
}
