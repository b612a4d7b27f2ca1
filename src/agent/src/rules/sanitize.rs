//! What is taken over of what a manager says about a rule.
//!
//! It goes into the tenant's own cluster, into its etcd and onto people's terminals; so it is taken over piece by piece, each of a
//! known length.

use outrigger_proto::v1;

/// The conditions that a rule has, in the order in which they are shown.
pub(super) const CONDITIONS: [&str; 4] = ["Accepted", "Synced", "Matched", "Ready"];
/// Longest reason, in bytes.
pub(super) const MAX_REASON: usize = 128;
/// Longest message, in bytes, what is said of its end included.
pub(super) const MAX_MESSAGE: usize = 1024;
/// Stands for a reason that is none.
const UNREADABLE: &str = "Unreadable";

/// A text with at most [`MAX_MESSAGE`] bytes, in one line and without control characters. One that was longer says so at its end.
pub(super) fn message(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    if text.len() <= MAX_MESSAGE {
        // A control character may take two bytes and a space takes one, so it doesn't become longer.
        return text.chars().map(plain).collect();
    }
    let note = format!(" ... (truncated, {} bytes in all)", text.len());
    let head = text.get(..text.floor_char_boundary(MAX_MESSAGE - note.len())).unwrap_or_default();
    head.chars().map(plain).chain(note.chars()).collect()
}

/// A reason as the API's conventions want it: one word in CamelCase.
fn reason(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b',' | b':');
    let word = text.as_bytes().first().is_some_and(u8::is_ascii_alphabetic)
        && text.bytes().all(plain)
        && !text.ends_with([',', ':']);
    if word && text.len() <= MAX_REASON { text.to_owned() } else { UNREADABLE.to_owned() }
}

/// Of a status the conditions that there are, each once, with texts of bounded length, and counts that can be.
pub(super) fn status(said: &v1::RuleStatus) -> v1::RuleStatus {
    let condition = |kind: &&str| {
        let found = said.conditions.iter().find(|condition| condition.r#type == **kind)?;
        let status = match found.status.as_str() {
            known @ ("True" | "False") => known,
            _ => "Unknown",
        };
        Some(v1::RuleCondition {
            r#type: (*kind).to_owned(),
            status: status.to_owned(),
            reason: reason(&found.reason),
            message: message(&found.message),
            // Whose clock it is nobody knows: the times in a cluster are that cluster's.
            last_transition_time: String::new(),
        })
    };
    let count = |count: i64| count.max(0);
    v1::RuleStatus {
        current: said.current,
        matched: count(said.matched),
        created: count(said.created),
        ready: count(said.ready),
        updated: count(said.updated),
        conditions: CONDITIONS.iter().filter_map(condition).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn said(kind: &str, status: &str, reason: &str, message: &str) -> v1::RuleCondition {
        v1::RuleCondition {
            r#type: kind.into(),
            status: status.into(),
            reason: reason.into(),
            message: message.into(),
            last_transition_time: "2026-01-01T00:00:00Z".into(),
        }
    }

    #[test]
    fn what_is_well_stays_as_it_is() {
        let well = v1::RuleStatus {
            current: true,
            matched: 3,
            conditions: vec![
                said("Accepted", "True", "Valid", "ä"),
                said("Ready", "False", "NoDPU", "1 of 2"),
            ],
            ..v1::RuleStatus::default()
        };
        let mut expected = well.clone();
        expected.conditions.iter_mut().for_each(|c| c.last_transition_time.clear());
        assert_eq!(status(&well), expected);
    }

    #[test]
    fn only_known_conditions_are_taken_and_each_once() {
        let many = (0..1000).map(|i| said(&format!("T{i}"), "True", "R", ""));
        let conditions = many
            .chain([said("Ready", "Maybe", "a b", "\u{1b}[2Jx"), said("Ready", "True", "R", "")])
            .collect();
        let taken = status(&v1::RuleStatus { matched: -1, conditions, ..v1::RuleStatus::default() });
        assert_eq!(taken.matched, 0);
        let ready = v1::RuleCondition {
            last_transition_time: String::new(),
            ..said("Ready", "Unknown", "Unreadable", " [2Jx")
        };
        assert_eq!(taken.conditions, [ready]);
    }

    #[test]
    fn what_is_cut_off_says_so() {
        let cut = message(&"ä".repeat(3000));
        assert!(cut.len() <= MAX_MESSAGE && cut.ends_with("ä ... (truncated, 6000 bytes in all)"), "{cut}");
        assert_eq!(message(&"x".repeat(MAX_MESSAGE)), "x".repeat(MAX_MESSAGE));
        assert_eq!(reason(&"R".repeat(MAX_REASON)).len(), MAX_REASON);
        assert_eq!(reason(&"R".repeat(MAX_REASON + 1)), UNREADABLE);
    }

    proptest! {
        #[test]
        fn whatever_is_said_is_bounded(text in ".{0,2000}", word in ".{0,200}") {
            let taken = status(&v1::RuleStatus { conditions: vec![said("Ready", &word, &word, &text)], ..Default::default() });
            let ready = &taken.conditions[0];
            prop_assert!(ready.message.len() <= MAX_MESSAGE && ready.reason.len() <= MAX_REASON);
            prop_assert!(!ready.message.chars().any(char::is_control));
            prop_assert_eq!(&status(&taken), &taken, "twice is once");
        }
    }
}
