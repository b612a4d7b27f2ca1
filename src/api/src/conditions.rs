//! Status conditions as the Kubernetes API conventions define them: the transition time changes only with the status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use outrigger_core::reason::MAX_MESSAGE;
use outrigger_core::text::truncate_bytes;

/// The status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The condition holds.
    True,
    /// The condition doesn't hold.
    False,
    /// It is not known whether the condition holds.
    Unknown,
}

impl Status {
    /// Returns the value as the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// Suffix of a truncated message.
const CUT: &str = " ...";

/// Creates a condition whose transition time is `now`, to the second. The API stores no fractions; a condition in
/// memory that had one would never equal the stored one. A message of more than [`MAX_MESSAGE`] bytes is truncated
/// and ends with ` ...`: `metav1.Condition` allows 32,768 characters, and a status is read by people.
pub fn condition(
    kind: &str,
    status: Status,
    reason: &str,
    message: &str,
    generation: i64,
    now: Timestamp,
) -> Condition {
    Condition {
        type_: kind.to_owned(),
        status: status.as_str().to_owned(),
        reason: reason.to_owned(),
        message: truncate_bytes(message, MAX_MESSAGE, CUT).into_owned(),
        observed_generation: Some(generation),
        last_transition_time: Time(Timestamp::from_second(now.as_second()).unwrap_or(now)),
    }
}

/// Returns `new` with the transition times of `old` wherever the status of a condition is unchanged.
pub fn merge(old: &[Condition], mut new: Vec<Condition>) -> Vec<Condition> {
    for condition in &mut new {
        if let Some(before) = old.iter().find(|c| c.type_ == condition.type_ && c.status == condition.status)
        {
            condition.last_transition_time = before.last_transition_time.clone();
        }
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_condition_equals_the_original() {
        let now: Timestamp = "2026-01-02T03:04:05.678901234Z".parse().unwrap();
        let fresh = condition("Ready", Status::True, "A", "", 1, now);
        let stored: Condition = serde_json::from_value(serde_json::to_value(&fresh).unwrap()).unwrap();
        assert_eq!(stored, fresh);
    }

    #[test]
    fn a_long_message_is_truncated_with_a_suffix() {
        let shown =
            |message: &str| condition("Ready", Status::False, "A", message, 1, Timestamp::UNIX_EPOCH).message;
        assert_eq!(shown(&"x".repeat(1024)), "x".repeat(1024));
        assert_eq!(shown(&"x".repeat(1025)), "x".repeat(1020) + " ...");
        // Each character takes two bytes.
        assert_eq!(shown(&"ä".repeat(513)), "ä".repeat(510) + " ...");
    }

    #[test]
    fn the_transition_time_changes_only_with_the_status() {
        let t0 = Timestamp::UNIX_EPOCH;
        let t1 = Timestamp::from_second(100).unwrap();
        let old = vec![condition("Ready", Status::True, "A", "", 1, t0)];
        let same = merge(&old, vec![condition("Ready", Status::True, "B", "", 2, t1)]);
        assert_eq!(same[0].last_transition_time, Time(t0));
        assert_eq!(same[0].reason, "B");
        let changed = merge(&old, vec![condition("Ready", Status::False, "B", "", 2, t1)]);
        assert_eq!(changed[0].last_transition_time, Time(t1));
    }
}
