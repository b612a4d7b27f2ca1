//! Rollouts where a tenant has more workloads than its DPUs have room for.

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
        for (first, replaced) in [(true, vec![0, 4, 5]), (false, vec![4, 5])] {
            let mut t = Tenant::with_rule(&rule, workloads(6));
            for key in &t.keys()[4..] {
                t.shows(key, unplaced("old", first));
            }
            assert_eq!(t.ask(), replaced, "first companions: {first}");
        }
    }
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
        let now = t.data.index.rule(&t.rule).unwrap().template_hash().to_owned();
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
    let has_run = |t: &mut Tenant| {
        let key = |key: &CompanionKey| t.data.with_companions(&key.rule, |of| of.has_run(key)).unwrap();
        keys.iter().map(key).collect::<Vec<_>>()
    };
    for key in &keys {
        t.data.companions.deleted(outrigger_core::template::Kind::Pod, &key.workload);
        t.data.companions.unwanted(key);
    }
    assert_eq!(has_run(&mut t), [false; 3]);
    t.shows(&keys[0], pod("old", false));
    t.data.first_sync(&keys);
    assert_eq!(has_run(&mut t), [false, true, true]);
    t.data.companions.forget_missing(&key(0).rule);
    assert_eq!(has_run(&mut t), [false; 3]);
    t.data.first_sync(&keys);
    t.data.companions.forget_all_missing();
    assert_eq!(has_run(&mut t), [false; 3]);
}
