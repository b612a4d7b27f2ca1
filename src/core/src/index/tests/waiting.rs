//! Room for matches where some wait for their workload's node.

use super::*;

/// Rules with an odd number ask for a companion on the node of the workload.
fn policy(rule: &RuleName) -> DpuSelectionPolicy {
    let odd = rule.as_str().parse::<usize>().unwrap() % 2 == 1;
    if odd { DpuSelectionPolicy::SameNode } else { DpuSelectionPolicy::Any }
}

proptest! {
    /// Matches that have companions and those that wait have as much room each, and none of the other's.
    #[test]
    fn matches_that_wait_take_no_room_of_others(
        most in 0usize..6,
        operations in proptest::collection::vec(any_operation(), 1..24),
    ) {
        let mut index = TenantIndex::default();
        index.limit(most);
        index.sync(Vec::new());
        let (mut rules, mut workloads, mut before) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        for operation in operations {
            let touched = match operation {
                Operation::Rule(r, terms) => {
                    let name = RuleName::new(&r.to_string()).unwrap();
                    let rule = rule(name.as_str(), policy(&name), terms);
                    rules.insert(r, rule.clone());
                    index.apply_rule(rule)
                }
                other => perform(other, &mut index, &mut rules, &mut workloads),
            };
            let waits = |key: &CompanionKey| {
                policy(&key.rule) == DpuSelectionPolicy::SameNode && workloads[&*key.workload].node_name.is_none()
            };
            let (wait, have): (BTreeSet<_>, BTreeSet<_>) = naive(&rules, &workloads).into_iter().partition(waits);
            let kept: BTreeSet<CompanionKey> = index.matches().collect();
            prop_assert_eq!(kept.intersection(&have).count(), have.len().min(most), "{:?}", kept);
            prop_assert_eq!(kept.intersection(&wait).count(), wait.len().min(most), "{:?}", kept);
            prop_assert_eq!(kept.len(), have.len().min(most) + wait.len().min(most));
            prop_assert_eq!(index.own_matches(), have.len().min(most));
            let left_out: BTreeSet<&str> =
                have.union(&wait).filter(|key| !kept.contains(*key)).map(|key| &*key.workload).collect();
            let reported: Vec<&str> = index.left_out_after(None).map(|label| &**label).collect();
            prop_assert!(reported.is_sorted() && index.left_out() == reported.len());
            for key in kept.symmetric_difference(&before) {
                prop_assert!(touched.contains(key), "{:?} has changed, and nothing reconciles it", key);
            }
            for key in have.union(&wait) {
                match index.desired(key) {
                    Desired::Wanted { .. } => prop_assert!(kept.contains(key) && have.contains(key)),
                    Desired::Waiting => prop_assert!(kept.contains(key) && wait.contains(key)),
                    Desired::OverLimit => prop_assert!(!kept.contains(key) && reported.contains(&&*key.workload)),
                    other => prop_assert!(false, "{:?} {:?}", key, other),
                }
            }
            prop_assert!(left_out.iter().all(|label| reported.contains(label)));
            before = kept;
        }
        index.limit(usize::MAX);
        prop_assert_eq!(index.matches().collect::<BTreeSet<_>>(), naive(&rules, &workloads));
        prop_assert!(!index.has_more());
    }
}

#[test]
fn a_workload_that_a_queue_holds_back_waits_with_each_policy_unless_the_rule_serves_it() {
    let gated = Workload { gated: true, ..workload("w", None, &[("x", "a")]) };
    for (serves, policy) in [
        (false, DpuSelectionPolicy::Any),
        (true, DpuSelectionPolicy::Any),
        (true, DpuSelectionPolicy::SameNode),
    ] {
        let mut index = TenantIndex::default();
        let rule = crate::rule::tests::named("r");
        index.apply_rule(compiled(RuleSpec { terms: x_is_a(), policy, serves_gated: serves, ..rule }));
        index.sync(vec![gated.clone()]);
        let is_wanted = |index: &TenantIndex| matches!(index.desired(&key("r", "w")), Desired::Wanted { .. });
        assert_eq!(is_wanted(&index), serves && policy == DpuSelectionPolicy::Any, "{policy:?}");
        assert_eq!(index.own_matches(), usize::from(is_wanted(&index)), "one that waits takes no room");
        let node = Some("n".to_owned());
        let touched = index.update(Workload { gated: false, node_name: node, ..gated.clone() });
        assert!(is_wanted(&index) && touched == [key("r", "w")]);
    }
}

#[test]
fn pods_that_can_not_be_scheduled_keep_no_other_from_its_companion() {
    const MOST: usize = 100;
    let mut index = TenantIndex::default();
    index.limit(MOST);
    index.apply_rule(rule("r", DpuSelectionPolicy::SameNode, x_is_a()));
    index.sync((0..10 * MOST).map(|i| workload(&format!("w{i}"), None, &[("x", "a")])).collect());
    assert_eq!((index.matched(&RuleName::new("r").unwrap()), index.own_matches()), (MOST, 0));
    // Also one of those that were left out, and each takes room by itself.
    for i in (0..10 * MOST).rev().take(MOST) {
        let name = format!("w{i}");
        index.update(workload(&name, Some("n"), &[("x", "a")]));
        assert!(matches!(index.desired(&key("r", &name)), Desired::Wanted { .. }), "{name}");
    }
    index.update(workload("w0", Some("n"), &[("x", "a")]));
    assert!(matches!(index.desired(&key("r", "w0")), Desired::OverLimit));
    assert_eq!(index.own_matches(), MOST);
}
