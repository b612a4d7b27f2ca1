//! Conditions as the Kubernetes API conventions want them: the transition time moves only when the status does.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The three values of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It holds.
    True,
    /// It doesn't.
    False,
    /// It can't be told now.
    Unknown,
}

impl Status {
    /// The value as the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// Longest message, in bytes (`metav1.Condition` allows 32,768 characters; a status is read by people).
const MAX_MESSAGE: usize = 1024;

/// Ends a message that was longer.
const CUT: &str = " ...";

/// A condition that became so at `now`, to the second: the API stores no more, and a status in memory with more would never
/// be the same as the one that is stored. A message of more than 1,024 bytes is cut, and says so by ` ...`.
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
        message: cut(message),
        observed_generation: Some(generation),
        last_transition_time: Time(Timestamp::from_second(now.as_second()).unwrap_or(now)),
    }
}

fn cut(message: &str) -> String {
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(MAX_MESSAGE - CUT.len());
    message.get(..end).unwrap_or_default().to_owned() + CUT
}

/// `new` with the transition times of `old` wherever a condition's status is unchanged.
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
    fn a_condition_is_the_same_after_it_has_been_stored() {
        let now: Timestamp = "2026-01-02T03:04:05.678901234Z".parse().unwrap();
        let fresh = condition("Ready", Status::True, "A", "", 1, now);
        let stored: Condition = serde_json::from_value(serde_json::to_value(&fresh).unwrap()).unwrap();
        assert_eq!(stored, fresh);
    }

    #[test]
    fn a_long_message_is_cut_and_says_so() {
        let told =
            |message: &str| condition("Ready", Status::False, "A", message, 1, Timestamp::UNIX_EPOCH).message;
        assert_eq!(told(&"x".repeat(1024)), "x".repeat(1024));
        assert_eq!(told(&"x".repeat(1025)), "x".repeat(1020) + " ...");
        // Each has two bytes.
        assert_eq!(told(&"ä".repeat(513)), "ä".repeat(510) + " ...");
    }

    #[test]
    fn transition_time_moves_with_the_status_only() {
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
