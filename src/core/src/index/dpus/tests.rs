use proptest::prelude::*;
use serde_json::Value;

use super::super::Desired;
use super::super::tests::{key, rule, workload, x_is_a};
use super::*;
use crate::companion::tests::{of_rule, planned_for};
use crate::companion::{Action, DeleteReason, Observed, own_name};
use crate::keys;
use crate::rule::DpuSelectionPolicy;

fn names(dpus: &[&str]) -> OwnDpus {
    OwnDpus { nodes: dpus.iter().map(|dpu| (*dpu).into()).collect(), hands_over: false }
}

/// The rule `all`, which has a companion on each DPU of a host, the rule `one`, and the workload `w` on the host `h`.
fn index() -> TenantIndex {
    let mut index = TenantIndex::default();
    index.apply_rule(rule("all", DpuSelectionPolicy::SameNodeAll, x_is_a()));
    index.apply_rule(rule("one", DpuSelectionPolicy::SameNode, x_is_a()));
    index.sync(vec![workload("w", Some("h"), &[("x", "a")])]);
    index
}

/// The next step for a companion that exists on this host, or for none.
fn step_for(index: &TenantIndex, key: &CompanionKey, host: Option<&str>) -> Action {
    let rule = index.rule(&key.rule).unwrap();
    let observed = host.map(|host| Observed { host: Some(host.to_owned()), ..of_rule(rule) });
    planned_for(key, &index.desired(key), observed.as_ref())
}

#[test]
fn each_dpu_of_the_host_has_a_companion_of_its_own() {
    let mut index = index();
    let (all, one) = (key("all", "w"), key("one", "w"));
    assert_eq!(index.companions_of(&all), []);
    assert_eq!(
        (index.wanted(index.rule(&all.rule).unwrap()), index.matched(&all.rule)),
        (1, 1),
        "it lacks one"
    );
    assert_eq!(
        index.set_dpus("h", names(&["d1", "d2"])),
        std::slice::from_ref(&all),
        "the other rule isn't concerned"
    );
    assert_eq!(index.set_dpus("h", names(&["d1", "d2"])), [], "as before");
    let another = OwnDpus { hands_over: true, ..names(&["d1", "d2"]) };
    assert_eq!(index.set_dpus("h", another), std::slice::from_ref(&all), "it isn't the tenant's yet");
    assert_eq!(index.set_dpus("i", names(&["d3"])), [], "no workload is there");
    assert_eq!(index.companions_of(&all), [all.on("d1"), all.on("d2")]);
    assert_eq!(index.companions_of(&all.on("d2")), [all.on("d1"), all.on("d2")]);
    assert_eq!(index.companions_of(&one), std::slice::from_ref(&one));
    assert_eq!(
        (index.wanted(index.rule(&all.rule).unwrap()), index.wanted(index.rule(&one.rule).unwrap())),
        (2, 1)
    );
    for dpu in ["d1", "d2"] {
        let Action::Create(pod) = step_for(&index, &all.on(dpu), None) else { panic!() };
        let metadata = &pod["metadata"];
        assert_eq!(metadata["name"], own_name(&all.on(dpu)));
        assert_eq!(metadata["annotations"][keys::DPU], dpu);
        assert_eq!(metadata["annotations"][keys::HOST], "h");
        assert_eq!(metadata["labels"][keys::WORKLOAD], "w");
    }
    let Action::Create(pod) = step_for(&index, &one, None) else { panic!() };
    assert_eq!(pod["metadata"]["annotations"][keys::DPU], Value::Null);
    // Neither key is one of a companion.
    for none in [all.clone(), one.on("d1"), all.on("d3")] {
        assert_eq!(step_for(&index, &none, None), Action::Nothing, "{none:?}");
    }
    assert_eq!(index.workload(&all.on("d1").workload), index.workload("w"));
}

#[test]
fn a_companion_goes_with_its_dpu_and_with_its_workload() {
    let mut index = index();
    index.set_dpus("h", names(&["d1", "d2"]));
    let (all, one) = (key("all", "w"), key("one", "w"));
    let reason = |index: &TenantIndex, key: &CompanionKey| match step_for(index, key, Some("h")) {
        Action::Delete { reason, .. } => Some(reason),
        Action::Nothing => None,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason(&index, &all.on("d2")), None);
    assert_eq!(index.set_dpus("h", names(&["d1"])), std::slice::from_ref(&all));
    assert_eq!(reason(&index, &all.on("d2")), Some(DeleteReason::DpuGone));
    assert_eq!(reason(&index, &all.on("d1")), None);
    // Of another policy: no DPU has to be gone for that.
    assert_eq!(reason(&index, &all), Some(DeleteReason::Unmatched));
    assert_eq!(reason(&index, &one.on("d1")), Some(DeleteReason::Unmatched));
    let touched = index.update(workload("w", Some("i"), &[("x", "a")]));
    assert_eq!(touched, [all.clone(), one], "each of them stands for all of its companions");
    assert_eq!(reason(&index, &all.on("d1")), Some(DeleteReason::Moved));
    index.update(workload("w", None, &[("x", "a")]));
    assert!(matches!(index.desired(&all.on("d1")), Desired::Waiting));
    assert_eq!(index.companions_of(&all), std::slice::from_ref(&all));
    index.update(workload("w", Some("h"), &[]));
    assert_eq!(reason(&index, &all.on("d1")), Some(DeleteReason::Unmatched));
    index.sync(Vec::new());
    assert!(matches!(index.desired(&all.on("d1")), Desired::Unwanted));
}

#[test]
fn dpus_are_found_by_the_name_that_the_host_has_as_a_node() {
    let mut index = index();
    let mut host_names = HostNames::default();
    host_names.insert("h", "serial-1").unwrap();
    index.dpus.names = Arc::new(host_names);
    let all = key("all", "w");
    assert_eq!(index.set_dpus("h", names(&["d1"])), [], "this host is no Node");
    assert_eq!(index.set_dpus("serial-1", names(&["d2"])), std::slice::from_ref(&all));
    assert_eq!(index.companions_of(&all), [all.on("d2")]);
}

proptest! {
    #[test]
    fn the_companions_are_one_for_each_dpu_whatever_came_before(
        changes in proptest::collection::vec((0_usize..3, proptest::collection::btree_set(0_u8..5, 0..5)), 1..12),
        node in proptest::option::of(0_usize..3),
    ) {
        const HOSTS: [&str; 3] = ["h", "i", "j"];
        let mut index = index();
        index.update(workload("w", node.map(|node| HOSTS[node]), &[("x", "a")]));
        let all = key("all", "w");
        let mut now: [BTreeSet<Arc<str>>; 3] = Default::default();
        for (host, dpus) in changes {
            let dpus: BTreeSet<Arc<str>> = dpus.iter().map(|dpu| format!("{}-dpu{dpu}", HOSTS[host]).into()).collect();
            let before = index.companions_of(&all);
            let own = OwnDpus { nodes: dpus.clone(), hands_over: false };
            let touched = index.set_dpus(HOSTS[host], own.clone());
            prop_assert_eq!(index.set_dpus(HOSTS[host], own), []);
            now[host] = dpus;
            let companions = index.companions_of(&all);
            prop_assert!(before == companions || touched == [all.clone()], "a change is reported");
            // What has been and what is: each is wanted where it belongs, and nowhere else.
            let known: BTreeSet<CompanionKey> = now.iter().flatten().map(|dpu| all.on(dpu)).chain(before).collect();
            let wanted = |key: &&CompanionKey| matches!(index.desired(key), Desired::Wanted { .. });
            let here = node.map(|node| &now[node]).into_iter().flatten();
            let expected: BTreeSet<CompanionKey> = here.map(|dpu| all.on(dpu)).collect();
            prop_assert_eq!(&known.iter().filter(wanted).cloned().collect::<BTreeSet<_>>(), &expected);
            if node.is_some() {
                prop_assert_eq!(&companions, &expected.iter().cloned().collect::<Vec<_>>());
            }
            let names: BTreeSet<String> = known.iter().map(own_name).collect();
            prop_assert_eq!(names.len(), known.len(), "no two have one name");
            for key in &companions {
                prop_assert_eq!(key.label(), "w");
                prop_assert_eq!(&key.whole(), &all);
                prop_assert_eq!(key.on(key.dpu().unwrap_or_default()) == *key, key.dpu().is_some());
            }
        }
    }
}
