//! Managers of other versions: what an older one doesn't know, it neither keeps nor tells.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use outrigger_api::rule_wire;
use outrigger_proto::v1;
use tokio::time::Instant;

/// How often a rule is written over the same other one before it is clear that the manager keeps only a part of it.
const TRIES: u32 = 3;

/// How long it is left alone then. The manager may be upgraded meanwhile, and nothing else tells of that: a connection comes
/// back by itself.
const AGAIN: Duration = Duration::from_secs(300);

/// What the tenant is told of such a rule.
pub(super) const KEPT_IN_PART: &str = "the infrastructure cluster's manager is of an older version and leaves a part of this rule out; upgrade it";

/// Whether the manager has told whose its rules are, and what they say in short. One of a version before that told
/// neither: then what carries our finalizer here is what we have made there.
pub(super) fn tells(there: &v1::Rule) -> bool {
    !there.revision.is_empty()
}

/// Whether a rule of the manager's list has been made from a rule here, of which `has_finalizer` is told.
pub(super) fn is_ours(there: &v1::Rule, has_finalizer: bool) -> bool {
    if tells(there) { !there.origin.is_empty() } else { has_finalizer }
}

/// Whether a rule of the manager's list is what ours says.
pub(super) fn is_same(there: &v1::Rule, ours: &v1::Rule) -> bool {
    if tells(there) {
        return there.revision == ours.revision && there.origin == ours.origin;
    }
    says(there) == ours.revision
}

/// What a rule of the manager's list says, in short.
fn says(there: &v1::Rule) -> String {
    if tells(there) {
        return there.revision.clone();
    }
    there.data.as_ref().map(rule_wire::revision).unwrap_or_default()
}

/// Rules that a manager doesn't keep as they are written: it drops the fields that it doesn't know, and what it shows is
/// never what was asked for.
#[derive(Debug, Default)]
pub(super) struct Stubborn(HashMap<String, Writes>);

/// What was written of one rule, to no effect.
#[derive(Debug)]
struct Writes {
    /// The rule's generation here.
    generation: i64,
    /// What the list showed at that time.
    shown: String,
    /// How often in a row.
    times: u32,
    /// When last.
    last: Instant,
}

impl Stubborn {
    /// A rule was written while the list showed it like this.
    pub(super) fn wrote(&mut self, uid: &str, generation: i64, shown: &v1::Rule, now: Instant) {
        let shown = says(shown);
        let before = self.0.get(uid).filter(|known| known.generation == generation && known.shown == shown);
        let times = before.map_or(0, |known| known.times) + 1;
        self.0.insert(uid.to_owned(), Writes { generation, shown, times, last: now });
    }

    /// The list shows a rule as it was written.
    pub(super) fn kept(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Whether it has been written often enough to know that it won't be kept, for now.
    pub(super) fn is(&self, uid: &str, generation: i64, shown: &v1::Rule, now: Instant) -> bool {
        self.0.get(uid).is_some_and(|known| {
            known.generation == generation
                && known.shown == says(shown)
                && known.times >= TRIES
                && now < known.last + AGAIN
        })
    }

    /// Forgets all other rules.
    pub(super) fn retain(&mut self, uids: &HashSet<String>) {
        self.0.retain(|uid, _| uids.contains(uid));
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
            status: None,
        }
    }

    #[test]
    fn a_manager_that_tells_is_believed_and_of_another_the_rule_itself_is_compared() {
        let ours = rule("uid", "{}", true);
        for (there, has_finalizer, expected) in [
            (rule("uid", "{}", true), false, (true, true)),
            (rule("uid", "{1}", true), false, (true, false)),
            (rule("other", "{}", true), true, (true, false)),
            (rule("", "{}", true), true, (false, false)),
            (rule("", "{}", false), true, (true, true)),
            (rule("", "{1}", false), true, (true, false)),
            (rule("", "{}", false), false, (false, true)),
        ] {
            let found = (is_ours(&there, has_finalizer), is_same(&there, &ours));
            assert_eq!(found, expected, "{there:?} {has_finalizer}");
        }
    }

    #[test]
    fn what_a_manager_never_keeps_is_not_written_for_ever_and_drift_is() {
        let mut stubborn = Stubborn::default();
        let now = Instant::now();
        let theirs = rule("uid", "less", true);
        for times in 0..TRIES {
            assert!(!stubborn.is("uid", 1, &theirs, now), "{times}");
            stubborn.wrote("uid", 1, &theirs, now);
        }
        assert!(stubborn.is("uid", 1, &theirs, now));
        assert!(!stubborn.is("uid", 2, &theirs, now), "it says something else now");
        assert!(!stubborn.is("uid", 1, &rule("uid", "drift", true), now), "somebody else has written it");
        let later = now + AGAIN;
        assert!(!stubborn.is("uid", 1, &theirs, later), "the manager may be another one by now");
        stubborn.wrote("uid", 1, &theirs, later);
        assert!(stubborn.is("uid", 1, &theirs, later), "it isn't: once is enough to know");
        stubborn.kept("uid");
        assert!(!stubborn.is("uid", 1, &theirs, later));
        for shown in ["a", "b", "a", "b"] {
            stubborn.wrote("uid", 1, &rule("uid", shown, true), now);
        }
        assert!(!stubborn.is("uid", 1, &rule("uid", "b", true), now), "it changes, so it is somebody's");
        stubborn.retain(&HashSet::new());
        assert!(stubborn.0.is_empty());
    }
}
