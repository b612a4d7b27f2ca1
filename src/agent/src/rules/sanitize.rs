//! Sanitizes the status that a manager reports for a rule.
//!
//! The status is stored in the tenant's etcd and shown on terminals, and the manager is another party. Each part is
//! therefore copied separately, with a limited length.

use outrigger_core::reason::{MAX_MESSAGE, MAX_REASON};
use outrigger_proto::v1;

/// The condition types of a rule, in the order in which they are shown.
pub(super) const CONDITIONS: [&str; 4] = ["Accepted", "Synced", "Matched", "Ready"];
/// Replaces an invalid reason.
const UNREADABLE: &str = "Unreadable";

/// Truncates a text to [`MAX_MESSAGE`] bytes, with a note about the truncation, and makes it printable.
pub(super) fn message(text: &str) -> String {
    printable(text, MAX_MESSAGE)
}

/// Truncates a text to so many bytes, with a note about the truncation, and replaces control characters, and characters that are
/// invisible or change the direction of text, by spaces.
pub(crate) fn printable(text: &str, max: usize) -> String {
    let invisible = |c: char| matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    let plain = |c: char| if c.is_control() || invisible(c) { ' ' } else { c };
    if text.len() <= max {
        // A space takes one byte, so the text doesn't become longer.
        return text.chars().map(plain).collect();
    }
    let note = format!(" ... (truncated, {} bytes in all)", text.len());
    let head = text.get(..text.floor_char_boundary(max.saturating_sub(note.len()))).unwrap_or_default();
    head.chars().map(plain).chain(note.chars()).collect()
}

/// Validates a reason by the API conventions: one word in CamelCase.
fn reason(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b',' | b':');
    let word = text.as_bytes().first().is_some_and(u8::is_ascii_alphabetic)
        && text.bytes().all(plain)
        && !text.ends_with([',', ':']);
    if word && text.len() <= MAX_REASON { text.to_owned() } else { UNREADABLE.to_owned() }
}

/// Returns the known conditions of a status, each once and with limited texts, and non-negative counts.
pub(super) fn status(reported: &v1::RuleStatus) -> v1::RuleStatus {
    let condition = |kind: &&str| {
        let found = reported.conditions.iter().find(|condition| condition.r#type == **kind)?;
        let status = match found.status.as_str() {
            known @ ("True" | "False") => known,
            _ => "Unknown",
        };
        Some(v1::RuleCondition {
            r#type: (*kind).to_owned(),
            status: status.to_owned(),
            reason: reason(&found.reason),
            message: message(&found.message),
            // The manager's clock may differ; transition times are those of the tenant's cluster.
            last_transition_time: String::new(),
        })
    };
    let count = |count: i64| count.max(0);
    v1::RuleStatus {
        current: reported.current,
        matched: count(reported.matched),
        created: count(reported.created),
        ready: count(reported.ready),
        updated: count(reported.updated),
        conditions: CONDITIONS.iter().filter_map(condition).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn condition(kind: &str, status: &str, reason: &str, message: &str) -> v1::RuleCondition {
        v1::RuleCondition {
            r#type: kind.into(),
            status: status.into(),
            reason: reason.into(),
            message: message.into(),
            last_transition_time: "2026-01-01T00:00:00Z".into(),
        }
    }

    #[test]
    fn a_valid_status_is_unchanged() {
        let valid = v1::RuleStatus {
            current: true,
            matched: 3,
            conditions: vec![
                condition("Accepted", "True", "Valid", "ä"),
                condition("Ready", "False", "NoDPU", "1 of 2"),
            ],
            ..v1::RuleStatus::default()
        };
        let mut expected = valid.clone();
        expected.conditions.iter_mut().for_each(|c| c.last_transition_time.clear());
        assert_eq!(status(&valid), expected);
    }

    #[test]
    fn only_known_conditions_are_copied_each_once() {
        let many = (0..1000).map(|i| condition(&format!("T{i}"), "True", "R", ""));
        let conditions = many
            .chain([condition("Ready", "Maybe", "a b", "\u{1b}[2Jx"), condition("Ready", "True", "R", "")])
            .collect();
        let sanitized = status(&v1::RuleStatus { matched: -1, conditions, ..v1::RuleStatus::default() });
        assert_eq!(sanitized.matched, 0);
        let ready = v1::RuleCondition {
            last_transition_time: String::new(),
            ..condition("Ready", "Unknown", "Unreadable", " [2Jx")
        };
        assert_eq!(sanitized.conditions, [ready]);
    }

    #[test]
    fn truncation_is_noted() {
        let cut = message(&"ä".repeat(3000));
        assert!(cut.len() <= MAX_MESSAGE && cut.ends_with("ä ... (truncated, 6000 bytes in all)"), "{cut}");
        assert_eq!(message(&"x".repeat(MAX_MESSAGE)), "x".repeat(MAX_MESSAGE));
        assert_eq!(reason(&"R".repeat(MAX_REASON)).len(), MAX_REASON);
        assert_eq!(reason(&"R".repeat(MAX_REASON + 1)), UNREADABLE);
    }

    proptest! {
        #[test]
        fn every_status_is_bounded(text in ".{0,2000}", word in ".{0,200}") {
            let sanitized = status(&v1::RuleStatus { conditions: vec![condition("Ready", &word, &word, &text)], ..Default::default() });
            let ready = &sanitized.conditions[0];
            prop_assert!(ready.message.len() <= MAX_MESSAGE && ready.reason.len() <= MAX_REASON);
            prop_assert!(!ready.message.chars().any(char::is_control));
            prop_assert_eq!(&status(&sanitized), &sanitized, "idempotent");
        }
    }
}
