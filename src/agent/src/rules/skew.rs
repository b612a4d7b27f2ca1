//! Compatibility with managers of other versions, which neither keep nor report fields that they don't know.

use std::time::Duration;

use outrigger_api::rule_wire;
use outrigger_core::fault;
use outrigger_proto::v1;
use tokio::time::Instant;

/// Number of ineffective writes in a row after which a rule is not written for [`RETRY_AFTER`].
const MAX_WRITES: u32 = 3;

/// Time after which a rule that the manager doesn't keep is written again. The manager may have been upgraded meanwhile, which
/// nothing reports: the connection is restored by itself.
const RETRY_AFTER: Duration = Duration::from_secs(300);

/// Message for such a rule.
pub(super) const PARTLY_STORED: &str =
    "the infrastructure cluster's manager is of an older version and drops fields of this rule; upgrade it";

/// Whether the manager reports origin and revision of its rules. Earlier versions report neither.
pub(super) fn reports_origin(listed: &v1::Rule) -> bool {
    !listed.revision.is_empty()
}

/// Whether an agent of this tenant created the listed rule. Without a reported origin, the finalizer of the rule in the
/// tenant's cluster shows it.
pub(super) fn is_owned(listed: &v1::Rule, has_finalizer: bool) -> bool {
    if reports_origin(listed) {
        !listed.origin.is_empty() || fault("rule-of-others-is-overwritten")
    } else {
        has_finalizer
    }
}

/// Whether a listed rule equals the rule of the tenant's cluster.
pub(super) fn is_current(listed: &v1::Rule, desired: &v1::Rule) -> bool {
    revision(listed) == desired.revision && (!reports_origin(listed) || listed.origin == desired.origin)
}

/// The fingerprint of a listed rule.
fn revision(listed: &v1::Rule) -> String {
    if reports_origin(listed) {
        return listed.revision.clone();
    }
    listed.data.as_ref().map(rule_wire::revision).unwrap_or_default()
}

/// Consecutive writes of a rule to which the manager always responds with the same other content, because it drops fields
/// that it doesn't know.
#[derive(Debug)]
pub(super) struct IneffectiveWrites {
    /// Generation of the rule in the tenant's cluster.
    generation: i64,
    /// Fingerprint of the rule that the manager listed.
    listed: String,
    count: u32,
    last: Instant,
}

impl IneffectiveWrites {
    /// Counts a write of a rule that the manager listed with other content.
    pub(super) fn count(before: Option<&Self>, generation: i64, listed: &v1::Rule, now: Instant) -> Self {
        let listed = revision(listed);
        let before = before.filter(|before| before.generation == generation && before.listed == listed);
        Self { generation, listed, count: before.map_or(0, |before| before.count) + 1, last: now }
    }

    /// Whether one more write makes it final.
    pub(super) fn is_last(&self, generation: i64, listed: &v1::Rule) -> bool {
        self.generation == generation && self.listed == revision(listed) && self.count + 1 >= MAX_WRITES
    }

    /// Whether another write now would be ineffective as well.
    pub(super) fn is_final(&self, generation: i64, listed: &v1::Rule, now: Instant) -> bool {
        self.is_last(generation, listed) && self.count >= MAX_WRITES && now < self.last + RETRY_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(origin: &str, template: &str, revision: bool) -> v1::Rule {
        let data =
            v1::RuleData { rule_template: template.as_bytes().to_vec().into(), ..v1::RuleData::default() };
        v1::Rule {
            id: "r".to_owned(),
            origin: origin.to_owned(),
            revision: if revision { rule_wire::revision(&data) } else { String::new() },
            data: Some(data),
            ..v1::Rule::default()
        }
    }

    #[test]
    fn without_a_reported_origin_the_finalizer_and_the_content_decide() {
        let desired = rule("uid", "{}", true);
        for (listed, has_finalizer, expected) in [
            (rule("uid", "{}", true), false, (true, true)),
            (rule("uid", "{1}", true), false, (true, false)),
            (rule("other", "{}", true), true, (true, false)),
            (rule("", "{}", true), true, (false, false)),
            (rule("", "{}", false), true, (true, true)),
            (rule("", "{1}", false), true, (true, false)),
            (rule("", "{}", false), false, (false, true)),
        ] {
            let found = (is_owned(&listed, has_finalizer), is_current(&listed, &desired));
            assert_eq!(found, expected, "{listed:?} {has_finalizer}");
        }
    }

    #[test]
    fn ineffective_writes_end_and_drift_is_corrected() {
        let now = Instant::now();
        let listed = rule("uid", "less", true);
        let mut writes: Option<IneffectiveWrites> = None;
        for count in 0..MAX_WRITES {
            assert!(!writes.as_ref().is_some_and(|w| w.is_final(1, &listed, now)), "{count}");
            writes = Some(IneffectiveWrites::count(writes.as_ref(), 1, &listed, now));
        }
        let writes = writes.unwrap();
        assert!(writes.is_final(1, &listed, now));
        assert!(!writes.is_final(2, &listed, now), "the rule has changed");
        assert!(!writes.is_final(1, &rule("uid", "drift", true), now), "the listed rule has changed");
        let later = now + RETRY_AFTER;
        assert!(!writes.is_final(1, &listed, later), "the manager may have been upgraded");
        let writes = IneffectiveWrites::count(Some(&writes), 1, &listed, later);
        assert!(writes.is_final(1, &listed, later), "one more write is enough");
        let mut writes = None;
        for template in ["a", "b", "a", "b"] {
            let listed = rule("uid", template, true);
            writes = Some(IneffectiveWrites::count(writes.as_ref(), 1, &listed, now));
        }
        assert!(!writes.unwrap().is_final(1, &rule("uid", "b", true), now), "another client writes it");
    }
}
