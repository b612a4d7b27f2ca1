//! Companions of rules of the platform whose replacement waits for what their tenant causes: owners and PodDisruptionBudgets that it tells, and
//! workloads that are more than its DPUs have room for.
//!
//! The beginning is recorded on the companion itself, by an annotation ([`keys::ROLLOUT_HELD`]). A tenant can make its agent change to
//! another manager, and the administrator's deadline would begin again with each change if managers counted it by themselves.

use serde_json::{Value, json};

use super::{MAX_ANNOTATIONS, Observed};
use crate::keys;

/// Bytes of a record with its key, at most: a time has 30, and a generation 20.
const RECORD: usize = keys::ROLLOUT_HELD.len() + 51;

/// The record of a companion whose replacement waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Since when, in milliseconds since 1970, by the clock of the manager that wrote it.
    pub since: i64,
    /// The rule's `metadata.generation` then. The record says nothing about a later one.
    pub generation: i64,
}

impl Held {
    /// Reads a time and a generation, separated by a space. `None` for anything else. `time` reads the time.
    pub fn read(text: &str, time: impl FnOnce(&str) -> Option<i64>) -> Option<Self> {
        let (since, generation) = text.split_once(' ')?;
        Some(Self { since: time(since)?, generation: generation.parse().ok()? })
    }

    /// Milliseconds since the beginning. `None` where the record is about another generation, or the beginning is in the future: then
    /// it is written again, as [`super::Lingering`] does.
    pub fn waited(&self, generation: i64, now: i64) -> Option<u64> {
        let since = now.checked_sub(self.since).filter(|_| self.generation == generation)?;
        u64::try_from(since).ok()
    }

    /// Whether a companion has room for the record, which the tenant's annotations may have used up.
    pub fn fits(o: &Observed) -> bool {
        o.annotations_size + RECORD <= MAX_ANNOTATIONS
    }

    /// The JSON merge patch that records a beginning, which is given in words.
    pub fn mark(o: &Observed, since: &str, generation: i64) -> Value {
        json!({"metadata": {"uid": o.uid,
            "annotations": {keys::ROLLOUT_HELD: format!("{since} {generation}")}}})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_about_one_generation_and_the_past() {
        let read = |text| Held::read(text, |time| time.parse().ok());
        let held = read("500 7").unwrap();
        assert_eq!(held, Held { since: 500, generation: 7 });
        assert_eq!((held.waited(7, 1500), held.waited(7, 500)), (Some(1000), Some(0)));
        assert_eq!((held.waited(8, 1500), held.waited(7, 499)), (None, None));
        assert_eq!(Held { since: i64::MIN, generation: 7 }.waited(7, 1), None);
        for text in ["", "500", "500 ", " 7", "500 7 8", "x 7", "500 x"] {
            assert_eq!(read(text), None, "{text}");
        }
        let mut o = Observed { uid: "u".to_owned(), ..Observed::default() };
        let patch = Held::mark(&o, "500", 7);
        assert_eq!(patch["metadata"], json!({"uid": "u", "annotations": {keys::ROLLOUT_HELD: "500 7"}}));
        assert!(Held::fits(&o));
        o.annotations_size = MAX_ANNOTATIONS - RECORD;
        assert!(Held::fits(&o));
        o.annotations_size += 1;
        assert!(!Held::fits(&o));
    }
}
