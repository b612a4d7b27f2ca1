//! Limits the rate of status writes in the tenant's cluster. Each write stores a revision of the whole rule in its
//! etcd, and the manager, another party, determines how often a status changes.

use outrigger_core::map::{HashMap, HashSet};
use tokio::time::Instant;

use outrigger_runtime::bucket::{Bucket, Rate};

/// Writes of one rule's status.
const RULE: Rate = Rate { burst: 20.0, minute: 12.0 };
/// Writes of all statuses. A new agent writes each status once.
const WRITES: Rate = Rate { burst: 1000.0, minute: 300.0 };
/// Bytes of the written rules.
const BYTES: Rate = Rate { burst: 64.0 * MIB, minute: 32.0 * MIB };
const MIB: f64 = (1 << 20) as f64;

#[derive(Debug)]
pub(super) struct Budget {
    rules: HashMap<String, Bucket>,
    writes: Bucket,
    bytes: Bucket,
    /// Whether something has been deferred back since this was last asked.
    deferred: bool,
}

impl Budget {
    pub(super) fn new(now: Instant) -> Self {
        Self { rules: HashMap::default(), writes: Bucket::new(now), bytes: Bucket::new(now), deferred: false }
    }

    /// Takes a write of the status of the rule with this uid and size. Returns false if the write must be deferred.
    pub(super) fn take(&mut self, uid: &str, bytes: usize, now: Instant) -> bool {
        let rule = self.rules.entry(uid.to_owned()).or_insert_with(|| Bucket::new(now));
        // One byte is enough: a rule that is larger than the remaining ones would never be written otherwise.
        let all = [(&*rule, RULE), (&self.writes, WRITES), (&self.bytes, BYTES)];
        if all.iter().any(|(bucket, rate)| bucket.next(*rate, now) > now) {
            self.deferred = true;
            return false;
        }
        rule.spend(RULE, 1.0, now);
        self.writes.spend(WRITES, 1.0, now);
        self.bytes.spend(BYTES, bytes as f64, now);
        true
    }

    /// Returns whether a write has been deferred since the last call.
    pub(super) fn take_deferred(&mut self) -> bool {
        std::mem::take(&mut self.deferred)
    }

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
    async fn writes_of_one_status_are_limited() {
        let (mut budget, begin) = unused();
        let writes = (0..3600).filter(|second| budget.take("a", 1000, begin + *second * SECOND)).count();
        assert!((720..=745).contains(&writes), "{writes} in an hour");
        assert!(budget.take_deferred() && !budget.take_deferred());
        assert!(budget.take("b", 1000, begin + 3600 * SECOND), "other rules are not affected");
    }

    #[tokio::test(start_paused = true)]
    async fn writes_of_many_and_of_large_rules_are_limited() {
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
    async fn a_new_agent_writes_every_status_immediately() {
        let (mut budget, now) = unused();
        assert!((0..1000).all(|rule| budget.take(&rule.to_string(), 1000, now)));
        assert!(!budget.take("one more", 1000, now));
    }
}
