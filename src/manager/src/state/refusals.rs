//! Companions that can't be made for a reason that only a user can remove, and what Events have said of them.
//!
//! A user decides how often a workload matches a rule and no longer does, and thus how often its companion is wanted again. So a refusal
//! outlives that for its pause, and Events are about a rule and a cause: how many there are doesn't depend on how often that happens.

use std::collections::BTreeMap;
use std::time::Duration;

use outrigger_core::ids::RuleName;
use outrigger_core::index::CompanionKey;
use outrigger_core::reason::Cause;
use tokio::time::Instant;

use crate::sweep::Sweep;

/// How long a cause has to be absent from a rule until its next refusal is news.
const NEWS_AGAIN: Duration = Duration::from_secs(600);

/// Why the API server refuses an object of a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Why {
    /// For the rule's status and Events: its words may be those of the cluster's other admission plugins.
    pub message: String,
    pub cause: Cause,
    /// Faults of the rule's own fields, each with its path, as the API server says them; empty for none.
    pub faults: String,
}

impl Why {
    pub(crate) fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self { message: message.into(), cause, faults: String::new() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub why: Why,
    /// Generation of the rule that was refused: another generation is not delayed.
    pub generation: i64,
    pub until: Instant,
}

/// The refusals of one namespace.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Those of companions that are wanted.
    by_key: BTreeMap<CompanionKey, Refusal>,
    /// Those of companions that weren't wanted when they were looked at last, until their pauses are over.
    aside: BTreeMap<CompanionKey, Refusal>,
    sweep: Sweep,
    /// When Events have reported a rule's refusals, or would have: the last time for each cause.
    reported: BTreeMap<RuleName, BTreeMap<Cause, Instant>>,
}

impl Refusals {
    pub(crate) fn get(&self, key: &CompanionKey) -> Option<&Refusal> {
        self.by_key.get(key)
    }

    /// How many companions are wanted and refused.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// A companion is refused. Returns its last refusal.
    pub(crate) fn insert(&mut self, key: CompanionKey, refusal: Refusal) -> Option<Refusal> {
        self.by_key.insert(key, refusal)
    }

    /// A companion is no longer refused.
    pub(crate) fn remove(&mut self, key: &CompanionKey) {
        self.by_key.remove(key);
        self.aside.remove(key);
    }

    /// A companion isn't wanted: it counts no longer as refused. If it is wanted again within its pause, it goes on waiting.
    pub(crate) fn set_aside(&mut self, key: &CompanionKey, now: Instant) {
        let Some(refusal) = self.by_key.remove(key).filter(|refusal| now < refusal.until) else { return };
        self.sweep.before_new(&mut self.aside, |refusal| now < refusal.until);
        self.aside.insert(key.clone(), refusal);
    }

    /// A companion is wanted: a refusal that was set aside holds again for the rest of its pause.
    pub(crate) fn take_back(&mut self, key: &CompanionKey, now: Instant) {
        if let Some(refusal) = self.aside.remove(key).filter(|refusal| now < refusal.until) {
            self.by_key.entry(key.clone()).or_insert(refusal);
        }
    }

    /// The workloads are unknown from now on.
    pub(crate) fn clear(&mut self) {
        self.by_key.clear();
        self.aside.clear();
    }

    /// Companions of a rule that can't be created, in the order of their workloads. A tenant may have as many refusals as matches, so
    /// those of other rules are skipped.
    pub(crate) fn of_rule<'a>(
        &'a self,
        rule: &'a RuleName,
    ) -> impl Iterator<Item = (&'a CompanionKey, &'a Refusal)> {
        of_rule(&self.by_key, rule)
    }

    /// A rule is another one than before, or is deleted.
    pub(crate) fn forget_rule(&mut self, rule: &RuleName) {
        self.reported.remove(rule);
        for refusals in [&mut self.by_key, &mut self.aside] {
            let keys: Vec<CompanionKey> = of_rule(refusals, rule).map(|(key, _)| key.clone()).collect();
            for key in keys {
                refusals.remove(&key);
            }
        }
    }

    /// What Events have to say of a rule's refusals, which then counts as reported: one message for each cause that hasn't been there for
    /// a while, with the number of companions.
    pub(crate) fn news(&mut self, rule: &RuleName, now: Instant) -> Vec<String> {
        let mut by_cause: BTreeMap<Cause, (usize, &Refusal)> = BTreeMap::new();
        for (_, refusal) in of_rule(&self.by_key, rule) {
            by_cause.entry(refusal.why.cause).or_insert((0, refusal)).0 += 1;
        }
        let mut news = Vec::new();
        for (cause, (count, first)) in by_cause {
            let last = self.reported.entry(rule.clone()).or_default().insert(cause, now);
            if last.is_none_or(|last| now >= last + NEWS_AGAIN) {
                let message = &first.why.message;
                news.push(match count {
                    1 => message.clone(),
                    _ => format!("{count} companions of this rule are refused, one of them: {message}"),
                });
            }
        }
        news
    }
}

fn of_rule<'a>(
    refusals: &'a BTreeMap<CompanionKey, Refusal>,
    rule: &'a RuleName,
) -> impl Iterator<Item = (&'a CompanionKey, &'a Refusal)> {
    let first = CompanionKey { rule: rule.clone(), workload: std::sync::Arc::default() };
    refusals.range(first..).take_while(move |(key, _)| key.rule == *rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::key;

    const PAUSE: Duration = Duration::from_secs(30);

    fn refusal(cause: Cause, message: &str, until: Instant) -> Refusal {
        Refusal { why: Why::new(cause, message), generation: 1, until }
    }

    #[test]
    fn a_refusal_holds_for_its_pause_while_the_companion_is_not_wanted() {
        let (mut refusals, k, begin) = (Refusals::default(), key("w"), Instant::now());
        let refused = refusal(Cause::QuotaExceeded, "full", begin + PAUSE);
        refusals.insert(k.clone(), refused.clone());
        refusals.set_aside(&k, begin);
        assert_eq!((refusals.len(), refusals.of_rule(&k.rule).count()), (0, 0), "it isn't wanted");
        refusals.take_back(&k, begin + PAUSE / 2);
        assert_eq!(refusals.get(&k), Some(&refused));
        refusals.set_aside(&k, begin);
        refusals.take_back(&k, begin + PAUSE);
        assert_eq!(refusals.get(&k), None, "its pause is over");
        refusals.insert(k.clone(), refused);
        refusals.set_aside(&k, begin);
        refusals.forget_rule(&k.rule);
        refusals.take_back(&k, begin);
        assert_eq!(refusals.get(&k), None, "the rule has changed");
    }

    #[test]
    fn refusals_of_workloads_that_never_come_back_are_dropped() {
        let (mut refusals, begin) = (Refusals::default(), Instant::now());
        for i in 0..1000 {
            let now = begin + PAUSE * i;
            refusals.insert(key(&i.to_string()), refusal(Cause::Refused, "no", now + PAUSE));
            refusals.set_aside(&key(&i.to_string()), now);
        }
        assert!(refusals.aside.len() < 100, "{}", refusals.aside.len());
    }

    #[test]
    fn a_cause_of_a_rule_is_reported_once_with_the_number_of_companions() {
        let (mut refusals, rule, begin) = (Refusals::default(), key("w").rule, Instant::now());
        let insert = |refusals: &mut Refusals, workload: &str, cause| {
            refusals.insert(key(workload), refusal(cause, workload, begin));
        };
        assert_eq!(refusals.news(&rule, begin), [""; 0]);
        insert(&mut refusals, "a", Cause::QuotaExceeded);
        insert(&mut refusals, "b", Cause::QuotaExceeded);
        insert(&mut refusals, "c", Cause::PodSecurity);
        let mut news = refusals.news(&rule, begin);
        news.sort();
        assert_eq!(news, ["2 companions of this rule are refused, one of them: a", "c"]);
        // Others of the same cause, and the same again, are no news.
        insert(&mut refusals, "d", Cause::QuotaExceeded);
        for minute in 1..60 {
            let now = begin + Duration::from_secs(60 * minute);
            refusals.set_aside(&key("d"), now);
            assert_eq!(refusals.news(&rule, now), [""; 0]);
            insert(&mut refusals, "d", Cause::QuotaExceeded);
            assert_eq!(refusals.news(&rule, now), [""; 0]);
        }
        assert_eq!(refusals.news(&rule, begin + Duration::from_secs(3540) + NEWS_AGAIN).len(), 2);
        refusals.forget_rule(&rule);
        insert(&mut refusals, "a", Cause::QuotaExceeded);
        assert_eq!(refusals.news(&rule, begin), ["a"], "the rule has changed");
    }
}
