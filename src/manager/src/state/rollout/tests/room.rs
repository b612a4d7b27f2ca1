//! Rollouts where a tenant has more workloads than its DPUs have room for.

use outrigger_core::ids::WorkloadId;

use super::groups::{Tenant, workload};
use super::*;
use crate::fixtures;

fn workloads(count: usize) -> Vec<outrigger_core::workload::Workload> {
    (0..count).map(|i| workload(i, &[])).collect()
}

/// A companion that the scheduler has found no Node for.
fn unplaced(hash: &str, first: bool) -> Observed {
    Observed { unplaced: true, first, ..pod(hash, false) }
}

#[test]
fn companions_for_which_there_was_never_room_hold_nobody() {
    for rule in [fixtures::rule(), fixtures::admin_rule()] {
        for (first, replaced) in [(true, vec![0]), (false, vec![])] {
            let mut t = Tenant::with_rule(&rule, workloads(6));
            let now = t.template_hash();
            let keys = t.keys();
            for key in &keys[4..] {
                t.shows(key, unplaced(&now, first));
            }
            assert_eq!(t.ask_about(keys[..4].to_vec()), replaced, "first companions: {first}");
        }
    }
}

#[test]
fn those_that_never_ran_are_replaced_before_the_one_that_has_the_room() {
    let mut t = Tenant::with_rule(&fixtures::rule(), workloads(4));
    let now = t.template_hash();
    let keys = t.keys();
    for key in &keys[1..] {
        t.shows(key, unplaced("old", true));
    }
    assert_eq!(t.ask_about(vec![keys[0].clone()]), [0; 0], "one of the earlier template would get its room");
    for (i, key) in keys.iter().enumerate().skip(1) {
        assert_eq!(t.turns(), [0; 0]);
        assert_eq!(t.ask_about(vec![key.clone()]), [i]);
        t.data.companions.deleted(outrigger_core::template::Kind::Pod, &key.workload);
        t.data.companion_observed(key);
        t.shows(key, unplaced(&now, true));
    }
    assert_eq!(t.turns(), [0]);
}

#[test]
fn one_down_that_is_not_replaced_holds_nobody() {
    let with_last = |last: Observed| {
        let mut t = Tenant::with_rule(&fixtures::rule(), workloads(4));
        let keys = t.keys();
        t.shows(&keys[3], last);
        (t, keys)
    };
    let leaving = Observed { terminating: true, ..unplaced("old", true) };
    let (mut t, keys) = with_last(leaving);
    assert_eq!(t.ask_about(vec![keys[0].clone()]), [0], "it is being deleted");
    let (mut t, keys) = with_last(unplaced("old", true));
    assert_eq!(t.ask_about(vec![keys[0].clone()]), [0; 0]);
    t.data.index.delete(&WorkloadId::new(&keys[3].workload).unwrap());
    assert_eq!(t.turns(), [0], "its workload is gone");
}

#[test]
fn a_companion_that_has_lost_its_room_is_waited_for_until_the_deadline_of_the_platform() {
    for (rule, runs, later) in [
        (fixtures::rule(), true, 0),
        (fixtures::admin_rule(), true, 1),
        // Nothing shows that the new template runs anywhere.
        (fixtures::admin_rule(), false, 0),
    ] {
        let mut t = Tenant::with_rule(&rule, workloads(4));
        let now = t.template_hash();
        let keys = t.keys();
        // The one that was replaced has no room, because another one has got it.
        t.shows(&keys[0], unplaced(&now, false));
        t.shows(&keys[1], pod(&now, runs));
        assert_eq!(t.ask_about(keys[2..].to_vec()), [0; 0]);
        t.pass(Duration::from_secs(58));
        assert_eq!(t.turns(), [0; 0]);
        assert_eq!(t.turns().len(), later, "{runs}");
    }
}

#[test]
fn what_another_manager_has_deleted_counts_as_having_run() {
    let mut t = Tenant::with_rule(&fixtures::rule(), workloads(3));
    let keys = t.keys();
    let has_run = |t: &Tenant| {
        let key = |key: &CompanionKey| t.data.read_companions(&key.rule, |of| of.has_run(key)).unwrap();
        keys.iter().map(key).collect::<Vec<_>>()
    };
    for key in &keys {
        t.data.companions.deleted(outrigger_core::template::Kind::Pod, &key.workload);
        t.data.companions.unwanted(key);
    }
    assert_eq!(has_run(&t), [false; 3]);
    t.shows(&keys[0], pod("old", false));
    t.data.first_sync(&keys);
    assert_eq!(has_run(&t), [false, true, true]);
    t.data.companions.forget_missing(&key(0).rule);
    assert_eq!(has_run(&t), [false; 3]);
    t.data.first_sync(&keys);
    t.data.companions.forget_all_missing();
    assert_eq!(has_run(&t), [false; 3]);
}

#[test]
fn a_companion_is_down_from_the_moment_in_which_the_cache_loses_it() {
    for rule in [fixtures::rule(), fixtures::admin_rule()] {
        let mut t = Tenant::with_rule(&rule, workloads(4));
        let keys = t.keys();
        assert_eq!(t.ask(), [0], "one of four");
        t.shows(&keys[0], Observed { terminating: true, ..pod("old", false) });
        // The watch has taken it out, and the rollout doesn't know it yet.
        t.data.with_companions(&t.rule.clone(), |of| of.deleted(Default::default(), &keys[0].workload));
        assert_eq!(t.turns(), [0; 0], "a second one would be down");
        t.data.companion_observed(&keys[0]);
        assert_eq!(t.turns(), [0; 0]);
        let now = t.template_hash();
        t.shows(&keys[0], pod(&now, true));
        assert_eq!(t.turns(), [1]);
    }
}

#[test]
fn a_companion_is_down_whoever_has_deleted_it_until_it_is_there_again() {
    let mut t = Tenant::with_rule(&fixtures::rule(), workloads(4));
    let (keys, now) = (t.keys(), t.template_hash());
    assert_eq!(t.ask(), [0], "one of four");
    let deleted = |t: &mut Tenant| {
        t.data.with_companions(&t.rule.clone(), |of| of.deleted(Default::default(), &keys[0].workload));
        t.data.companion_observed(&keys[0]);
    };
    deleted(&mut t);
    // It has been created again, isn't ready, and somebody else deletes it.
    t.shows(&keys[0], pod(&now, false));
    deleted(&mut t);
    assert_eq!(t.turns(), [0; 0], "a second one would be down");
    t.shows(&keys[0], pod(&now, true));
    assert_eq!(t.turns(), [1]);
}

#[test]
fn one_that_was_down_when_its_turn_came_is_replaced_only_while_it_is() {
    let mut t = Tenant::with_rule(&fixtures::rule(), workloads(4));
    let keys = t.keys();
    let down = Observed { resource_version: 7, ..pod("old", false) };
    t.shows(&keys[0], down);
    assert_eq!(t.ask_about(vec![keys[0].clone()]), [0], "it costs nothing");
    let ready = |t: &Tenant, uid: &str| t.data.replaceable(&keys[0], uid).map(|o| o.ready);
    assert_eq!((ready(&t, "old"), ready(&t, "another")), (Some(false), None));
    t.shows(&keys[0], pod("old", true));
    assert_eq!(ready(&t, "old"), None, "it has to ask again");
    assert_eq!(t.ask_about(vec![keys[0].clone()]), [0]);
    assert_eq!(ready(&t, "old"), Some(true));
}
