use proptest::prelude::*;

use super::super::received::Problem;
use super::*;

fn group(total: usize, wrong: usize, reason: &'static str) -> Group {
    let problem = || Problem {
        unknown: reason == "Unknown",
        reason: reason.parse().unwrap(),
        text: format!("rule r: {reason}").into(),
    };
    Group { total, wrong, worst: (wrong > 0).then(problem) }
}

/// Companions of which none, or some, have an ordering.
fn companions(all: Group, ordered: Group) -> Companions {
    Companions { all, ordered, ..Companions::default() }
}

fn apply(has: &Conditions, new: Conditions) -> Conditions {
    Conditions {
        information: new.information.or_else(|| has.information.clone()),
        gate: new.gate.or_else(|| has.gate.clone()),
    }
}

/// Status and reason of the conditions of a Pod with the gate, after these states, each of which has lasted or not.
fn after(states: &[(Knowledge<'_>, bool)]) -> [Option<(Status, String)>; 2] {
    let mut has = Conditions::default();
    for (knowledge, lasted) in states {
        has = apply(&has, decide(*knowledge, &has, true, *lasted, None));
    }
    [has.information, has.gate].map(|condition| condition.map(|c| (c.status, c.reason)))
}

fn is(status: Status, reason: &str) -> Option<(Status, String)> {
    Some((status, reason.to_owned()))
}

use Knowledge::{Absent, Elsewhere, Reported, Unheard, Unreachable, Unsupported};
use Status::{False, True};

#[test]
fn what_is_wrong_is_reported_when_it_lasts_and_until_it_is_right() {
    let refused = companions(group(2, 1, "QuotaExceeded"), Group::default());
    let failed = companions(group(2, 1, "Failed"), Group::default());
    let ready = companions(group(2, 0, ""), Group::default());
    let information = |states: &[(Knowledge<'_>, bool)]| after(states)[0].clone();
    assert_eq!(information(&[(Reported(&ready), true)]), None);
    assert_eq!(information(&[(Reported(&refused), false)]), None);
    assert_eq!(information(&[(Reported(&refused), true)]), is(False, "QuotaExceeded"));
    assert_eq!(information(&[(Reported(&refused), true), (Reported(&failed), false)]), is(False, "Failed"));
    assert_eq!(information(&[(Reported(&refused), true), (Reported(&ready), false)]), is(True, "Ready"));
    assert_eq!(information(&[(Reported(&refused), true), (Absent, false)]), is(True, "NoCompanion"));
    // It stays True, also through a moment in which something is wrong again.
    let moment = [(Reported(&refused), true), (Reported(&ready), false), (Reported(&failed), false)];
    assert_eq!(information(&moment), is(True, "Ready"));
    for outage in [Unheard, Elsewhere, Unreachable] {
        assert_eq!(information(&[(Reported(&refused), true), (outage, true)]), is(False, "QuotaExceeded"));
    }
    assert_eq!(
        information(&[(Reported(&refused), true), (Unsupported, true)]),
        is(Status::Unknown, "ManagerTooOld")
    );
}

#[test]
fn the_gate_opens_when_all_ordered_companions_are_ready() {
    let ready = companions(group(3, 1, "Failed"), group(2, 0, ""));
    let starting = companions(group(3, 2, "Failed"), group(2, 1, "Starting"));
    let unknown = companions(group(1, 1, "Unknown"), group(1, 1, "Unknown"));
    let none = companions(Group::default(), Group::default());
    let gate = |states: &[(Knowledge<'_>, bool)]| after(states)[1].clone();
    assert_eq!(gate(&[(Reported(&starting), false)]), is(False, "Starting"));
    assert_eq!(gate(&[(Reported(&unknown), false)]), is(False, "Unknown"));
    assert_eq!(gate(&[(Reported(&ready), false)]), is(True, "Ready"));
    assert_eq!(gate(&[(Reported(&ready), false), (Reported(&starting), false)]), is(False, "Starting"));
    for gone in [Reported(&none), Absent] {
        assert_eq!(gate(&[(gone, false)]), is(True, "NoCompanion"));
        assert_eq!(gate(&[(Reported(&starting), false), (gone, false)]), is(True, "NoCompanion"));
    }
    // Also the information is there at once where there is an ordering.
    assert_eq!(after(&[(Reported(&starting), false)])[0], is(False, "Failed"));
}

#[test]
fn the_gate_stays_in_an_outage_and_with_an_old_manager() {
    let ready = companions(group(1, 0, ""), group(1, 0, ""));
    let starting = companions(group(1, 1, "Starting"), group(1, 1, "Starting"));
    let gate = |states: &[(Knowledge<'_>, bool)]| after(states)[1].clone();
    for silent in [Unheard, Unreachable, Unsupported] {
        assert_eq!(gate(&[(Reported(&ready), false), (silent, true)]), is(True, "Ready"));
    }
    for silent in [Unheard, Unreachable] {
        assert_eq!(gate(&[(Reported(&starting), false), (silent, true)]), is(False, "Starting"));
    }
    // One that was opened for another Node closes until something is said of this one.
    let moved = [(Reported(&ready), false), (Elsewhere, false)];
    assert_eq!(gate(&moved), is(False, "WorkloadMoved"));
    assert_eq!(gate(&[&moved[..], &[(Reported(&ready), false)]].concat()), is(True, "Ready"));
    assert_eq!(gate(&[(Reported(&starting), false), (Elsewhere, true)]), is(False, "Starting"));
    assert_eq!(gate(&[(Elsewhere, true)]), None);
    // A Pod that nothing is known of isn't ready, and says so after a while.
    assert_eq!(gate(&[(Unheard, true)]), None);
    assert_eq!(gate(&[(Unreachable, false)]), None);
    assert_eq!(gate(&[(Unreachable, true)]), is(False, "ManagerUnreachable"));
    assert_eq!(gate(&[(Unsupported, false)]), is(False, "ManagerTooOld"));
    assert_eq!(gate(&[(Unsupported, false), (Reported(&ready), false)]), is(True, "Ready"));
}

#[test]
fn a_pod_without_the_gate_has_no_condition_of_it() {
    let starting = companions(group(1, 1, "Starting"), group(1, 1, "Starting"));
    for knowledge in [Reported(&starting), Absent, Unheard, Elsewhere, Unreachable, Unsupported] {
        assert_eq!(decide(knowledge, &Conditions::default(), false, true, None).gate, None);
    }
}

fn any_group() -> impl Strategy<Value = Group> {
    (0..3usize, 0..3usize, 0..3usize).prop_map(|(ready, wrong, reason)| {
        group(ready + wrong, wrong, ["QuotaExceeded", "Starting", "Unknown"][reason])
    })
}

fn any_condition() -> impl Strategy<Value = Option<Condition>> {
    let status = prop_oneof![Just(True), Just(False), Just(Status::Unknown)];
    proptest::option::of((status, "[A-C]", "[a-c]{0,2}").prop_map(|(status, reason, message)| Condition {
        status,
        reason,
        message,
    }))
}

proptest! {
    #[test]
    fn what_is_written_is_written_once(
        groups in (any_group(), any_group()), what in 0..6usize,
        information in any_condition(), gate in any_condition(), gated: bool, lasted: bool,
    ) {
        let received = companions(groups.0, groups.1);
        let knowledge = [Reported(&received), Absent, Unheard, Unreachable, Unsupported, Elsewhere][what];
        let has = Conditions { information, gate };
        let new = decide(knowledge, &has, gated, lasted, None);
        prop_assert!(gated || new.gate.is_none());
        let has = apply(&has, new.clone());
        prop_assert!(decide(knowledge, &has, gated, lasted, None).is_empty(), "{new:?}");
        for condition in [new.information, new.gate].into_iter().flatten() {
            prop_assert!(condition.message.len() <= MAX_MESSAGE && !condition.message.is_empty());
        }
    }

    /// Nothing but the manager's word opens a gate.
    #[test]
    fn silence_opens_no_gate(gate in any_condition(), what in 0..3usize, lasted: bool) {
        let has = Conditions { information: None, gate };
        let was = has.gate.as_ref().is_some_and(Condition::is_true);
        let now = apply(&has, decide([Unheard, Unreachable, Unsupported][what], &has, true, lasted, None)).gate;
        prop_assert_eq!(now.is_some_and(|gate| gate.is_true()), was);
    }
}

#[test]
fn a_pod_starts_only_after_the_word_of_an_open_stream() {
    let with = |start: Group| Companions {
        all: group(2, 2, "Failed"),
        ordered: group(1, 1, "NoDPU"),
        start,
        ..Companions::default()
    };
    let (none, ready, wrong) = (with(Group::default()), with(group(1, 0, "")), with(group(2, 1, "NoDPU")));
    let rule = RuleName::new("fw").unwrap();
    let reason = |knowledge, awaited| start(knowledge, awaited).map(|(reason, _)| reason);
    let waits = |reason: &str| Some(reason.to_owned());
    // Companions of other orderings don't count, however they are.
    assert_eq!(
        [reason(Reported(&none), None), reason(Reported(&ready), None), reason(Absent, None)],
        [None, None, None]
    );
    assert_eq!(reason(Reported(&wrong), None), waits("NoDPU"));
    assert_eq!(reason(Reported(&wrong), Some(&rule)), waits("NoDPU"));
    for knowledge in [Reported(&none), Reported(&ready), Absent, Unheard] {
        assert_eq!(reason(knowledge, Some(&rule)), waits("RuleNotServed"), "{knowledge:?}");
    }
    for awaited in [None, Some(&rule)] {
        assert_eq!(reason(Unreachable, awaited), waits("ManagerUnreachable"));
        assert_eq!(reason(Unsupported, awaited), waits("ManagerTooOld"));
        assert_eq!(reason(Elsewhere, awaited), waits("WorkloadMoved"));
    }
    assert_eq!(reason(Unheard, None), waits("ManagerUnreachable"), "a rule of the platform may concern it");
}
