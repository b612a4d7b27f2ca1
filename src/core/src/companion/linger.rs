//! Companions that outlive their workloads for the time that their rules ask for (`lingerSeconds`).
//!
//! The end of the workload is recorded on the companion itself, by an annotation ([`keys::WORKLOAD_ENDED`]): so the time doesn't
//! begin again when a manager restarts or another one takes over. The time that a rule asks for isn't recorded: that of the
//! present rule counts. Only managers' clocks matter. Another manager's clock may be behind the one that the record was made by, so
//! an end in the future is recorded again as now: records only move back, and a companion never lingers longer than its rule
//! asks for, counted from the moment when a manager looks at it.
//!
//! Only a companion that has been ready outlives its workload. A tenant can end as many workloads as it likes, and companions that no
//! DPU could run would stay for all of them. The record says of a companion that it has been ready: no other one gets it. For the same
//! reason there is room for a limited number of them, which the rules share ([`equal_part`]).

use std::time::Duration;

use serde_json::{Value, json};

use super::{DeleteReason, Observed};
use crate::rule::Rule;
use crate::{fault, keys};

/// What [`Observed::ended`] has for a record that can't be read. It is in the future, and so is replaced.
pub const UNREADABLE_END: i64 = i64::MAX;

/// A companion whose workload has ended, and whose rule lets it linger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lingering {
    /// uid of the companion.
    pub uid: String,
    /// The end of the workload as recorded, in milliseconds since 1970; `None` while it isn't.
    pub ended: Option<i64>,
    /// How long the rule lets it linger.
    pub time: Duration,
    resource_version: u64,
}

/// What a lingering companion needs now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LingerStep {
    /// That now is recorded as the end of its workload, by [`Lingering::mark`].
    Mark,
    /// Nothing for this time.
    Stay(Duration),
    /// To be deleted.
    Delete,
}

impl Lingering {
    /// The error is why the companion is deleted instead: it is another rule's, was never admitted, or has never been ready.
    pub(super) fn of(rule: &Rule, o: &Observed) -> Result<Self, DeleteReason> {
        if o.rule_uid != rule.uid() || o.gated || rule.linger().is_zero() {
            return Err(DeleteReason::Unmatched);
        }
        if !o.ready && !o.was_ready && o.ended.is_none() && !fault("never-ready-companion-lingers") {
            return Err(DeleteReason::NeverReady);
        }
        let resource_version = o.resource_version;
        Ok(Self { uid: o.uid.clone(), ended: o.ended, time: rule.linger(), resource_version })
    }

    /// What it needs at a time, in milliseconds since 1970.
    pub fn step(&self, now: i64) -> LingerStep {
        let Some(since) = self.ended.and_then(|ended| now.checked_sub(ended)) else {
            return LingerStep::Mark;
        };
        match u64::try_from(since).map(Duration::from_millis) {
            Err(_) if fault("end-in-the-future-is-due") => LingerStep::Delete,
            // It is in the future.
            Err(_) => LingerStep::Mark,
            Ok(since) if since >= self.time => LingerStep::Delete,
            Ok(since) => LingerStep::Stay(self.time - since),
        }
    }

    /// The JSON merge patch that records the end, which is given in words. It is for the observed state of the companion only: one
    /// with a record that isn't known here keeps it.
    pub fn mark(&self, end: &str) -> Value {
        json!({"metadata": {"uid": self.uid, "resourceVersion": self.resource_version.to_string(),
            "annotations": {keys::WORKLOAD_ENDED: end}}})
    }
}

/// The JSON merge patch that removes the record, because the workload is there; `None` where there is none.
pub(super) fn unmark(o: &Observed) -> Option<Value> {
    o.ended
        .filter(|_| !fault("record-of-the-end-stays"))
        .map(|_| json!({"metadata": {"uid": o.uid, "annotations": {keys::WORKLOAD_ENDED: null}}}))
}

/// How many companions of each rule may outlive their workloads where `room` of all rules may: an equal part for each, and what the
/// others leave of theirs. So no rule takes another one's place, however many workloads of it end. `counts`: how many of each rule do.
pub fn equal_part(mut counts: Vec<usize>, room: usize) -> usize {
    counts.sort_unstable();
    let (mut left, mut rules) = (room, counts.len());
    for count in counts {
        let part = left / rules;
        if count > part {
            return part;
        }
        left -= count;
        rules -= 1;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::companion::Action;
    use crate::companion::tests::{of_rule, planned_for};
    use crate::index::Desired;
    use crate::index::tests::key;
    use crate::rule::RuleSpec;
    use crate::rule::tests::{compiled, named};
    use crate::workload::Workload;
    use crate::workload::tests::nginx;

    fn rule(linger_seconds: i64) -> Arc<Rule> {
        compiled(RuleSpec { linger_seconds, ..named("r") })
    }

    /// A companion as the rule wants it, which is ready.
    fn companion(rule: &Rule) -> Observed {
        Observed { resource_version: 7, host: nginx().node_name, ready: true, ..of_rule(rule) }
    }

    fn planned(desired: &Desired<'_>, observed: Option<&Observed>) -> Action {
        planned_for(&key("r", "w"), desired, observed)
    }

    #[test]
    fn a_companion_lingers_once_its_workload_has_ended() {
        let rule = rule(60);
        let (o, desired) = (companion(&rule), Desired::Ended { rule: &rule });
        let Action::Linger(lingering) = planned(&desired, Some(&o)) else { panic!("it doesn't linger") };
        assert_eq!((lingering.ended, lingering.time), (None, Duration::from_secs(60)));
        assert_eq!(
            lingering.mark("then"),
            json!({"metadata": {"uid": "pod-uid", "resourceVersion": "7", "annotations": {keys::WORKLOAD_ENDED: "then"}}})
        );
        // It isn't replaced, whatever it is like.
        let other = Observed { failed: true, template_hash: "earlier".into(), host: None, ..o.clone() };
        assert!(matches!(planned(&desired, Some(&other)), Action::Linger(_)));
        assert_eq!(planned(&desired, None), Action::Nothing, "none is created");
        assert_eq!(planned(&desired, Some(&Observed { terminating: true, ..o.clone() })), Action::Wait);
        let unmatched = Action::Delete { uid: "pod-uid".into(), reason: DeleteReason::Unmatched };
        for other in
            [Observed { rule_uid: "former".into(), ..o.clone() }, Observed { gated: true, ..o.clone() }]
        {
            assert_eq!(planned(&desired, Some(&other)), unmatched, "{other:?}");
        }
        assert_eq!(
            planned(&Desired::Unwanted, Some(&o)),
            unmatched,
            "the workload is there and doesn't match"
        );
    }

    #[test]
    fn only_a_companion_that_has_been_ready_outlives_its_workload() {
        let rule = rule(60);
        let desired = Desired::Ended { rule: &rule };
        let never = Observed { ready: false, ..companion(&rule) };
        let deleted = Action::Delete { uid: "pod-uid".into(), reason: DeleteReason::NeverReady };
        assert_eq!(planned(&desired, Some(&never)), deleted);
        let formerly = Observed { was_ready: true, ..never.clone() };
        let recorded = Observed { ended: Some(5), ..never };
        for served in [companion(&rule), formerly, recorded] {
            assert!(matches!(planned(&desired, Some(&served)), Action::Linger(_)), "{served:?}");
        }
    }

    #[test]
    fn rules_share_the_room_and_what_one_leaves_is_the_others() {
        for (counts, room, expected) in [
            (vec![], 0, usize::MAX),
            (vec![3], 3, usize::MAX),
            (vec![4], 3, 3),
            (vec![1, 9, 9], 9, 4),
            (vec![9, 0, 9], 18, usize::MAX),
            (vec![9, 5], 10, 5),
            (vec![1, 1], 1, 0),
        ] {
            assert_eq!(equal_part(counts.clone(), room), expected, "{counts:?} {room}");
        }
    }

    proptest! {
        #[test]
        fn no_more_stay_than_there_is_room_for_and_none_goes_without_need(
            counts in prop::collection::vec(0..50_usize, 0..8), room in 0..200_usize
        ) {
            let part = equal_part(counts.clone(), room);
            let stay: usize = counts.iter().map(|count| part.min(*count)).sum();
            let all: usize = counts.iter().sum();
            prop_assert!(stay <= room && (stay == all) == (all <= room));
            // What is left of the room isn't enough for one more of each rule.
            prop_assert!(stay == all || room - stay < counts.len());
        }
    }

    #[test]
    fn a_workload_that_is_there_again_has_the_record_removed() {
        let rule = rule(60);
        let (workload, o) = (Arc::new(nginx()), companion(&rule));
        let marked = Observed { ended: Some(5), ..o.clone() };
        let removed = json!({"metadata": {"uid": "pod-uid", "annotations": {keys::WORKLOAD_ENDED: null}}});
        let wanted = Desired::Wanted { rule: &rule, workload: &workload };
        for desired in [wanted, Desired::OverLimit] {
            assert_eq!(planned(&desired, Some(&o)), Action::Nothing);
            assert_eq!(planned(&desired, Some(&marked)), Action::Annotate(removed.clone()), "{desired:?}");
        }
        for desired in [Desired::Unknown, Desired::RuleUnknown] {
            assert_eq!(planned(&desired, Some(&marked)), Action::Nothing, "nothing is known");
        }
        // Together with facts that have changed.
        let stale = Observed { injected: None, ..marked.clone() };
        let Action::Annotate(patch) = planned(&wanted, Some(&stale)) else { panic!("no patch") };
        assert_eq!(
            patch["metadata"]["annotations"],
            json!({keys::WORKLOAD_ENDED: null, keys::INJECTED: "[]"})
        );
        // Facts that are too large don't keep it.
        let full = Observed { annotations_size: super::super::MAX_ANNOTATIONS + 1, ..stale };
        assert_eq!(planned(&wanted, Some(&full)), Action::Annotate(removed));
        assert!(matches!(planned(&wanted, Some(&Observed { ended: None, ..full })), Action::Refuse(..)));
        // One that is replaced anyway doesn't have to be changed before.
        let failed = Observed { failed: true, ..marked };
        assert!(matches!(
            planned(&wanted, Some(&failed)),
            Action::Delete { reason: DeleteReason::Failed, .. }
        ));
        let moved = Arc::new(Workload { node_name: Some("elsewhere".into()), ..nginx() });
        let wanted = Desired::Wanted { rule: &rule, workload: &moved };
        assert!(matches!(
            planned(&wanted, Some(&failed)),
            Action::Delete { reason: DeleteReason::Moved, .. }
        ));
    }

    fn lingering(ended: Option<i64>, seconds: u64) -> Lingering {
        let time = Duration::from_secs(seconds);
        Lingering { uid: String::new(), ended, time, resource_version: 0 }
    }

    #[test]
    fn steps_follow_from_the_recorded_end_and_the_present_time() {
        use LingerStep::{Delete, Mark, Stay};
        for (ended, now, expected) in [
            (None, 1_000, Mark),
            (Some(1_000), 1_000, Stay(Duration::from_secs(2))),
            (Some(1_000), 2_999, Stay(Duration::from_millis(1))),
            (Some(1_000), 3_000, Delete),
            (Some(-5_000), 3_000, Delete),
            (Some(1_001), 1_000, Mark),
            (Some(UNREADABLE_END), 1_000, Mark),
            (Some(UNREADABLE_END), -1_000, Mark),
        ] {
            assert_eq!(lingering(ended, 2).step(now), expected, "{ended:?} {now}");
        }
    }

    proptest! {
        /// Managers with clocks that differ look at a companion one after the other.
        #[test]
        fn it_lingers_as_long_as_asked_but_for_the_difference_of_clocks(
            seconds in 1..=u64::from(crate::rule::MAX_LINGER),
            looks in prop::collection::vec((0..600_000_i64, -60_000..60_000_i64), 1..50),
        ) {
            let linger = i64::try_from(seconds * 1_000).unwrap();
            let (mut time, mut ended, mut first) = (0, None, None);
            for (pause, skew) in looks {
                time += pause;
                let now = time + skew;
                match lingering(ended, seconds).step(now) {
                    LingerStep::Mark => {
                        prop_assert!(ended.is_none_or(|ended| now < ended), "records only move back");
                        first.get_or_insert(time);
                        ended = Some(now);
                    }
                    LingerStep::Stay(left) => {
                        prop_assert!(!left.is_zero() && left <= Duration::from_secs(seconds));
                        prop_assert!(time - first.unwrap() < linger + 120_000, "it isn't kept too long");
                    }
                    LingerStep::Delete => {
                        prop_assert!(time - first.unwrap() > linger - 120_000, "it isn't deleted too early");
                        break;
                    }
                }
            }
        }
    }
}
