//! How often the statuses of rules are written.
//!
//! etcd stores a whole object again for each write of its status, and a tenant decides how large its rules are and how often what
//! their statuses count changes. So writes are paced by the size of the object, each rule by itself and all of a tenant together.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use outrigger_core::tenant::Limits;
use outrigger_core::validate::json_bytes;
use outrigger_runtime::bucket::{Bucket, Rate};
use serde::Serialize;
use tokio::time::Instant;

/// Least time between two writes of one rule's status.
pub(crate) const PACE: Duration = Duration::from_secs(1);

/// Bytes of an object, as JSON with its managed fields, that may be written in each [`PACE`]. Rules have fewer, unless their
/// templates are unusually large.
const BYTES: usize = 16 << 10;

/// Least time between two writes of a larger object where nothing differs but counts.
const COUNTS: Duration = Duration::from_secs(30);

/// How much of the bucket is full after a pause: so many seconds of the rate may be written at once.
const BURST: Duration = Duration::from_secs(10);

/// The part of `ruleBytesPerSecond` that writes of statuses may take beside the calls that it is for.
const PART: u64 = 4;

/// Least bytes in a second of all statuses of a tenant, however few bytes its calls may have.
const LEAST: u64 = 64 << 10;

/// The last write of an object's status by this replica.
#[derive(Debug, Clone)]
pub(crate) struct Written<T> {
    pub at: Instant,
    /// Bytes of the object, its status among them, as JSON.
    pub bytes: usize,
    /// What the object shows since then, until somebody else writes it.
    pub shown: T,
}

impl<T> Written<T> {
    /// The write whose answer is this object.
    pub(crate) fn new(object: &impl Serialize, shown: T, at: Instant) -> Self {
        Self { at, bytes: json_bytes(object), shown }
    }

    /// How long the next write has to wait. `only_counts`: the next status differs in nothing else ([`same_verdicts`]).
    pub(crate) fn left(&self, only_counts: bool, now: Instant) -> Duration {
        pace(self.bytes, only_counts).saturating_sub(now.duration_since(self.at))
    }
}

/// Least time between two writes of the status of an object of so many bytes.
fn pace(bytes: usize, only_counts: bool) -> Duration {
    if bytes <= BYTES {
        return PACE;
    }
    let by_size = PACE.mul_f64(bytes as f64 / BYTES as f64);
    if only_counts { by_size.max(COUNTS) } else { by_size }
}

/// Whether two lists have the same conditions with the same statuses and reasons: their messages have counts.
pub(crate) fn same_verdicts(before: &[Condition], now: &[Condition]) -> bool {
    let verdict =
        |c: &Condition| (c.type_.clone(), c.status.clone(), c.reason.clone(), c.observed_generation);
    before.len() == now.len() && before.iter().zip(now).all(|(before, now)| verdict(before) == verdict(now))
}

/// The bytes that all writes of a tenant's rules' statuses take together.
#[derive(Debug, Default)]
pub(crate) struct StatusBytes(Option<Bucket>);

impl StatusBytes {
    /// How long the next write has to wait.
    pub(crate) fn left(&mut self, limits: &Limits, now: Instant) -> Duration {
        self.bucket(now).wait(rate(limits), 0.0, now)
    }

    /// An object of so many bytes has been written.
    pub(crate) fn wrote(&mut self, bytes: usize, limits: &Limits, now: Instant) {
        self.bucket(now).spend(rate(limits), bytes as f64, now);
    }

    fn bucket(&mut self, now: Instant) -> &mut Bucket {
        self.0.get_or_insert_with(|| Bucket::new(now))
    }
}

fn rate(limits: &Limits) -> Rate {
    Rate::per_second((limits.rule_bytes_per_second / PART).max(LEAST), BURST)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However large a rule is, and whatever changes in its status, it takes no more bytes in a second than a small one may.
        #[test]
        fn no_rule_takes_more_bytes_than_a_small_one(bytes in 0_usize..2 << 20, only_counts: bool) {
            let pace = pace(bytes, only_counts);
            prop_assert!(pace >= PACE);
            prop_assert!(bytes as f64 / pace.as_secs_f64() <= BYTES as f64 * 1.001);
            prop_assert_eq!(pace == PACE, bytes <= BYTES);
        }

        /// The rules of a tenant, however many and whatever their sizes, take the burst and the rate, and one object beyond.
        #[test]
        fn all_rules_of_a_tenant_keep_to_its_rate(sizes in prop::collection::vec(1_usize..1 << 20, 1..300)) {
            let (start, mut bytes) = (Instant::now(), StatusBytes::default());
            let limits = Limits::default();
            let (mut now, mut total) = (start, 0);
            for size in &sizes {
                now += bytes.left(&limits, now);
                prop_assert!(bytes.left(&limits, now).is_zero());
                bytes.wrote(*size, &limits, now);
                total += size;
            }
            let allowed = (BURST + (now - start)).as_secs_f64() * rate(&limits).minute / 60.0;
            prop_assert!(total as f64 <= allowed + f64::from(1 << 20), "{total} of {allowed}");
        }
    }

    #[test]
    fn counts_of_a_large_rule_wait_longer_than_its_verdicts() {
        let seconds = |bytes, only_counts| pace(bytes, only_counts).as_secs();
        assert_eq!([seconds(8 << 10, true), seconds(BYTES, true), seconds(BYTES, false)], [1, 1, 1]);
        assert_eq!([seconds(64 << 10, false), seconds(64 << 10, true)], [4, 30]);
        assert_eq!([seconds(512 << 10, false), seconds(512 << 10, true)], [32, 32]);
        let quiet = Limits { rule_bytes_per_second: 1, ..Limits::default() };
        let in_minute = [rate(&quiet), rate(&Limits::default())].map(|rate| rate.minute as u64);
        assert_eq!(in_minute, [60 * LEAST, 60 * (256 << 10)]);
    }
}
