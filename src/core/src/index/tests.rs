use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::rule::tests::compiled;
use crate::rule::{DpuSelectionPolicy, ExpressionSpec, Operator, RuleSpec};
use crate::texts::Texts;
use crate::workload::DisruptionGroup;
use crate::workload::tests::nginx;

mod waiting;

/// Small alphabets, so that random rules and workloads meet.
const VALUES: [&str; 3] = ["a", "b", "5"];
const FIELDS: [&str; 8] = [
    ".state.extra.labels.x",
    ".state.extra.labels.y",
    ".state.extra.annotations.x",
    ".state.extra.other.y",
    ".metadata.resourceNamespace",
    ".metadata.resourceName",
    ".state.nodeName",
    ".state.ready",
];

pub(super) fn rule(name: &str, policy: DpuSelectionPolicy, terms: Vec<Vec<ExpressionSpec>>) -> Arc<Rule> {
    named(RuleName::new(name).unwrap(), policy, terms)
}

fn named(name: RuleName, policy: DpuSelectionPolicy, terms: Vec<Vec<ExpressionSpec>>) -> Arc<Rule> {
    let template = json!({}).into();
    compiled(RuleSpec { uid: name.as_str().into(), terms, policy, template, ..RuleSpec::new(name) })
}

pub(super) fn workload(id: &str, node: Option<&str>, labels: &[(&str, &str)]) -> Workload {
    Workload {
        id: WorkloadId::new(id).unwrap(),
        resource_namespace: "a".into(),
        resource_name: "b".into(),
        node_name: node.map(str::to_owned),
        labels: Texts::new(labels.to_vec()),
        annotations: Texts::default(),
        ..nginx()
    }
}

pub(crate) fn key(rule: &str, id: &str) -> CompanionKey {
    CompanionKey::of(&RuleName::new(rule).unwrap(), &WorkloadId::new(id).unwrap())
}

pub(super) fn x_is_a() -> Vec<Vec<ExpressionSpec>> {
    vec![vec![ExpressionSpec::new(FIELDS[0], Operator::In, &["a"])]]
}

#[test]
fn a_workloads_life() {
    let mut index = TenantIndex::default();
    let k = key("r", "w/1");
    assert!(matches!(index.desired(&k), Desired::RuleUnknown));
    index.apply_rule(rule("r", DpuSelectionPolicy::SameNode, x_is_a()));
    assert!(matches!(index.desired(&k), Desired::Unknown), "not synced: it may exist");
    assert_eq!(index.update(workload("w/1", None, &[("x", "a")])), std::slice::from_ref(&k));
    assert!(matches!(index.desired(&k), Desired::Waiting));
    assert_eq!(index.update(workload("w/1", Some("n"), &[("x", "a")])), std::slice::from_ref(&k));
    assert!(matches!(index.desired(&k), Desired::Wanted { .. }));
    assert_eq!(index.update(workload("w/1", Some("n"), &[("x", "a")])), [], "nothing changed");
    assert_eq!(index.matched(&k.rule), 1);
    assert_eq!(index.update(workload("w/1", Some("n"), &[("x", "b")])), std::slice::from_ref(&k));
    assert!(matches!(index.desired(&k), Desired::Unwanted));
    assert_eq!(index.matched(&k.rule), 0);
    assert_eq!(index.update(workload("w/1", Some("m"), &[("x", "b")])), [], "matched neither before nor now");
    index.update(workload("w/1", Some("m"), &[("x", "a")]));
    assert_eq!(index.delete(&WorkloadId::new("w/1").unwrap()), std::slice::from_ref(&k));
    assert!(matches!(index.desired(&k), Desired::Unknown) && !index.synced());
    index.sync(vec![]);
    assert!(index.synced());
    assert!(matches!(index.desired(&k), Desired::Unwanted));
}

#[test]
fn a_companion_may_outlive_a_workload_that_has_ended_and_no_other() {
    let rule = |linger_seconds| {
        compiled(RuleSpec { linger_seconds, terms: x_is_a(), ..crate::rule::tests::named("r") })
    };
    let mut index = TenantIndex::default();
    index.apply_rule(rule(60));
    let k = key("r", "1");
    assert!(matches!(index.desired(&k), Desired::Unknown), "not synced: it may exist");
    index.sync(vec![workload("1", Some("n"), &[("x", "a")])]);
    assert!(matches!(index.desired(&k), Desired::Wanted { .. }));
    index.update(workload("1", Some("n"), &[("x", "b")]));
    assert!(matches!(index.desired(&k), Desired::Unwanted), "it is there, and doesn't match");
    index.delete(&WorkloadId::new("1").unwrap());
    assert!(matches!(index.desired(&k), Desired::Ended { rule } if rule.linger().as_secs() == 60));
    index.apply_rule(rule(0));
    assert!(matches!(index.desired(&k), Desired::Unwanted));
    index.doubt(|_| false);
    assert!(matches!(index.desired(&k), Desired::Unknown));
}

#[test]
fn a_sync_removes_what_it_does_not_name() {
    let mut index = TenantIndex::default();
    index.apply_rule(rule("r", DpuSelectionPolicy::Any, x_is_a()));
    index.update(workload("1", None, &[("x", "a")]));
    index.update(workload("2", None, &[("x", "a")]));
    index.update(workload("3", None, &[]));
    let four = |value| workload("4", None, &[("x", value)]);
    let touched = index.sync(vec![workload("2", None, &[("x", "a")]), four("b"), four("a")]);
    assert_eq!(touched, [key("r", "1"), key("r", "4")], "2 is as it was");
    assert_eq!(index.workloads(), 2);
    assert!(matches!(index.desired(&key("r", "4")), Desired::Wanted { .. }), "Any needs no node");
}

#[test]
fn a_rule_touches_its_own_companions_only() {
    let mut index = TenantIndex::default();
    index.apply_rule(rule("other", DpuSelectionPolicy::Any, x_is_a()));
    index.update(workload("1", None, &[("x", "a")]));
    index.update(workload("2", None, &[("x", "b")]));
    assert_eq!(index.apply_rule(rule("r", DpuSelectionPolicy::Any, x_is_a())), [key("r", "1")]);
    let x_is_b = vec![vec![ExpressionSpec::new(FIELDS[0], Operator::In, &["b"])]];
    assert_eq!(
        index.apply_rule(rule("r", DpuSelectionPolicy::Any, x_is_b)),
        [key("r", "1"), key("r", "2")],
        "matched before, matches now"
    );
    assert_eq!(index.remove_rule(&RuleName::new("r").unwrap()), [key("r", "2")]);
    assert!(matches!(index.desired(&key("r", "2")), Desired::RuleUnknown));
    assert!(matches!(index.desired(&key("other", "1")), Desired::Wanted { .. }));
}

#[test]
fn what_many_rules_ask_for_alike_is_not_what_they_are_filed_under() {
    let mut index = TenantIndex::default();
    for i in 0..100 {
        let term = vec![
            ExpressionSpec::new(FIELDS[0], Operator::In, &["shared"]),
            ExpressionSpec::new(FIELDS[1], Operator::Exists, &[]),
            ExpressionSpec::new(".metadata.resourceNamespace", Operator::In, &[&format!("team-{i}")]),
        ];
        index.apply_rule(rule(&format!("r{i}"), DpuSelectionPolicy::Any, vec![term]));
    }
    assert!(index.terms.longest_list() <= 2, "{}", index.terms.longest_list());
}

#[test]
fn lookups() {
    let mut index = TenantIndex::default();
    let r = rule("r", DpuSelectionPolicy::Any, x_is_a());
    index.apply_rule(r.clone());
    let odd = workload("w/1", None, &[("x", "a")]);
    index.update(odd.clone());
    index.update(workload("2", None, &[("x", "b")]));
    let k = key("r", "w/1");
    let two = index.workload("2").unwrap();
    assert!(index.labels().any(|label| Arc::ptr_eq(label, two.id.shared())), "there is one copy of an id");
    assert_eq!(index.labels().collect::<BTreeSet<_>>(), BTreeSet::from([&k.workload, &"2".into()]));
    assert!(index.rules().map(Arc::as_ptr).eq([Arc::as_ptr(&r)]));
    assert_eq!(index.workload(&k.workload).map(|w| &**w), Some(&odd));
    assert!(index.workload("w/1").is_none(), "workloads go by their label value");
    assert_eq!(index.workloads_of(&k.rule).map(|w| &w.id).collect::<Vec<_>>(), [&odd.id]);
    assert_eq!(index.matching(&odd), std::slice::from_ref(&k.rule));
    assert_eq!(index.rule(&k.rule).map(|r| r.name()), Some(&k.rule));
    // An id that looks like another one's hash is a workload of its own as long as that other one isn't there.
    let same = workload(&k.workload, None, &[]);
    assert_eq!(index.update(same.clone()), std::slice::from_ref(&k));
    assert_eq!(index.workloads(), 2);
    assert_eq!(index.workload(&k.workload).map(|w| &**w), Some(&same), "it has its own id");
}

#[test]
fn a_rule_that_asks_for_an_object_finds_the_workloads_that_come_later() {
    let mut index = TenantIndex::default();
    for (i, object) in ["@", ".metadata", ".state.extra", ".state.extra.labels"].into_iter().enumerate() {
        let terms = vec![vec![ExpressionSpec::new(object, Operator::Exists, &[])]];
        index.apply_rule(rule(&format!("r{i}"), DpuSelectionPolicy::Any, terms));
    }
    assert_eq!(index.update(workload("1", None, &[])), [0, 1, 2, 3].map(|i| key(&format!("r{i}"), "1")));
}

#[test]
fn room_for_many_is_given_to_a_few_at_a_time() {
    const WORKLOADS: usize = room::LOOKS + 1;
    let mut index = TenantIndex::default();
    index.limit(0);
    index.apply_rule(rule("r", DpuSelectionPolicy::Any, x_is_a()));
    index.sync((0..WORKLOADS).map(|i| workload(&format!("w{i}"), None, &[("x", "a")])).collect());
    assert_eq!((index.left_out(), index.has_more()), (WORKLOADS, false), "there is no room");
    assert_eq!(index.left_out_changed().len(), WORKLOADS);
    assert_eq!((index.fill().len(), index.left_out_changed().len()), (0, 0), "nor has anything changed");
    let labels: Vec<_> = index.left_out_after(None).collect();
    assert_eq!(index.left_out_after(Some(labels[0])).collect::<Vec<_>>(), labels[1..]);
    assert_eq!((index.limit(WORKLOADS).len(), index.has_more()), (room::LOOKS, true));
    assert_eq!((index.fill().len(), index.has_more()), (1, false));
}

#[derive(Debug, Clone)]
enum Operation {
    Rule(usize, Vec<Vec<ExpressionSpec>>),
    RemoveRule(usize),
    Update(Workload),
    Delete(usize),
    Sync(Vec<Workload>),
}

fn any_expression() -> impl Strategy<Value = ExpressionSpec> {
    use Operator::{DoesNotExist, Exists, Gt, In, Lt, NotIn};
    (0..FIELDS.len(), 0usize..6, proptest::collection::vec(0..VALUES.len(), 1..3)).prop_map(
        |(field, op, values)| {
            let operator = [In, NotIn, Exists, DoesNotExist, Gt, Lt][op];
            let values: Vec<&str> = match operator {
                In | NotIn => values.into_iter().map(|v| VALUES[v]).collect(),
                Exists | DoesNotExist => vec![],
                Gt | Lt => vec!["3"],
            };
            ExpressionSpec::new(FIELDS[field], operator, &values)
        },
    )
}

fn any_terms() -> impl Strategy<Value = Vec<Vec<ExpressionSpec>>> {
    proptest::collection::vec(proptest::collection::vec(any_expression(), 1..4), 1..3)
}

const GROUPS: [&str; 2] = ["g", "h"];

fn group(id: &str) -> DisruptionGroup {
    DisruptionGroup { id: id.into(), desired_healthy: None }
}

fn any_workload() -> impl Strategy<Value = Workload> {
    let text = || (0..VALUES.len()).prop_map(|v| VALUES[v].to_owned());
    let map =
        || proptest::collection::btree_map((0..2usize).prop_map(|k| ["x", "y"][k].to_owned()), text(), 0..3);
    let node = proptest::option::of(text());
    let groups = || proptest::collection::vec(0..GROUPS.len(), 0..4);
    (0..4usize, text(), text(), node, any::<bool>(), map(), map(), (map(), groups())).prop_map(
        |(id, namespace, name, node_name, ready, labels, annotations, (other, groups))| Workload {
            resource_namespace: namespace,
            resource_name: name,
            node_name,
            ready,
            labels: (&labels).into(),
            annotations: (&annotations).into(),
            extra: BTreeMap::from([("other".to_owned(), (&other).into())]),
            groups: groups.into_iter().map(|i| group(GROUPS[i])).collect(),
            ..workload(&id.to_string(), None, &[])
        },
    )
}

fn any_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        (0..4usize, any_terms()).prop_map(|(r, terms)| Operation::Rule(r, terms)),
        (0..4usize).prop_map(Operation::RemoveRule),
        any_workload().prop_map(Operation::Update),
        (0..4usize).prop_map(Operation::Delete),
        proptest::collection::vec(any_workload(), 0..4).prop_map(Operation::Sync),
    ]
}

proptest! {
    /// Whatever happens, the index says what trying every rule on every workload would say, and tells of every change.
    #[test]
    fn the_index_is_the_naive_evaluation(operations in proptest::collection::vec(any_operation(), 1..24)) {
        let mut index = TenantIndex::default();
        let mut rules: BTreeMap<usize, Arc<Rule>> = BTreeMap::new();
        let mut workloads: BTreeMap<String, Workload> = BTreeMap::new();
        for operation in operations {
            let before = naive(&rules, &workloads);
            let touched = perform(operation, &mut index, &mut rules, &mut workloads);
            let now = naive(&rules, &workloads);
            for key in &touched {
                prop_assert!(before.contains(key) || now.contains(key), "{:?} is reported without a change", key);
            }
            for r in 0..4usize {
                for w in 0..4usize {
                    let (r, w) = (r.to_string(), w.to_string());
                    let key = key(&r, &w);
                    let wanted = matches!(index.desired(&key), Desired::Wanted { .. });
                    prop_assert_eq!(wanted, now.contains(&key), "{:?}", key);
                    if before.contains(&key) != now.contains(&key) {
                        prop_assert!(touched.contains(&key), "{:?} changed unreported", key);
                    }
                }
                let name = RuleName::new(&r.to_string()).unwrap();
                prop_assert_eq!(index.matched(&name), now.iter().filter(|k| k.rule == name).count());
            }
            prop_assert_eq!(index.workloads(), workloads.len());
            for id in GROUPS {
                let of = workloads.iter().filter(|(_, workload)| workload.groups.contains(&group(id)));
                let (labels, ready): (BTreeSet<Arc<str>>, Vec<bool>) =
                    of.map(|(label, workload)| (label.as_str().into(), workload.ready)).unzip();
                let members = index.group(id);
                prop_assert_eq!(members.map_or(0, Members::ready), ready.iter().filter(|ready| **ready).count());
                prop_assert_eq!(members.map(Members::labels), Some(&labels).filter(|labels| !labels.is_empty()));
            }
            for (id, workload) in &workloads {
                prop_assert_eq!(&**index.workload(id).unwrap(), workload);
                let names: Vec<RuleName> = rules.values().filter(|r| r.matches(workload)).map(|r| r.name().clone()).collect();
                prop_assert_eq!(index.matching(workload), names);
            }
        }
        for r in rules.keys() {
            index.remove_rule(&RuleName::new(&r.to_string()).unwrap());
        }
        prop_assert!(index.terms.is_empty(), "{:?}", index.terms);
    }
}

/// Does it to the index, and to what the index is compared with. Returns what the index says it touched.
fn perform(
    operation: Operation,
    index: &mut TenantIndex,
    rules: &mut BTreeMap<usize, Arc<Rule>>,
    workloads: &mut BTreeMap<String, Workload>,
) -> Vec<CompanionKey> {
    match operation {
        Operation::Rule(r, terms) => {
            let rule = rule(&r.to_string(), DpuSelectionPolicy::Any, terms);
            rules.insert(r, rule.clone());
            index.apply_rule(rule)
        }
        Operation::RemoveRule(r) => {
            rules.remove(&r);
            index.remove_rule(&RuleName::new(&r.to_string()).unwrap())
        }
        Operation::Update(w) => {
            workloads.insert(w.id.to_string(), w.clone());
            index.update(w)
        }
        Operation::Delete(w) => {
            workloads.remove(&w.to_string());
            index.delete(&WorkloadId::new(&w.to_string()).unwrap())
        }
        Operation::Sync(list) => {
            *workloads = list.iter().map(|w| (w.id.to_string(), w.clone())).collect();
            index.sync(list)
        }
    }
}

fn naive(
    rules: &BTreeMap<usize, Arc<Rule>>,
    workloads: &BTreeMap<String, Workload>,
) -> BTreeSet<CompanionKey> {
    let pairs =
        rules.iter().flat_map(|(r, rule)| workloads.iter().map(move |(w, workload)| (r, rule, w, workload)));
    pairs
        .filter(|(_, rule, _, workload)| rule.matches(workload))
        .map(|(r, _, w, _)| key(&r.to_string(), w))
        .collect()
}

proptest! {
    /// Of what trying every rule on every workload would say, the index keeps as much as there is room for. It says of the rest that it
    /// was left out, never that it isn't wanted: that would delete companions.
    #[test]
    fn what_there_is_no_room_for_is_left_out(
        most in 0usize..8,
        lower in 0usize..8,
        operations in proptest::collection::vec(any_operation(), 1..24),
    ) {
        let mut index = TenantIndex::default();
        index.limit(most);
        index.sync(Vec::new());
        let (mut rules, mut workloads) = (BTreeMap::new(), BTreeMap::new());
        let (mut before, mut left_out_before) = (BTreeSet::new(), BTreeSet::new());
        for operation in operations {
            let of_workloads = !matches!(operation, Operation::Rule(..) | Operation::RemoveRule(_));
            let touched = perform(operation, &mut index, &mut rules, &mut workloads);
            let all = naive(&rules, &workloads);
            let wanted: BTreeSet<CompanionKey> = index.matches().collect();
            prop_assert_eq!(wanted.len(), all.len().min(most), "{:?} of {:?}", wanted, all);
            for key in (0..4usize).flat_map(|r| (0..4usize).map(move |w| key(&r.to_string(), &w.to_string()))) {
                let desired = index.desired(&key);
                prop_assert_eq!(wanted.contains(&key), matches!(desired, Desired::Wanted { .. }));
                let over = all.contains(&key) && !wanted.contains(&key);
                prop_assert_eq!(over, matches!(desired, Desired::OverLimit), "{:?}", key);
                prop_assert!(!over || index.over_limit(&key.rule) == Some(most), "{:?} isn't reported", key);
                prop_assert!(wanted.contains(&key) == before.contains(&key) || touched.contains(&key));
                let is_unwanted_now = left_out_before.contains(&key) && !all.contains(&key);
                prop_assert!(!of_workloads || !is_unwanted_now || touched.contains(&key), "{:?} stays", key);
            }
            // Where there is room left, nothing is said to be left out.
            if all.len() < most {
                prop_assert!((0..4).all(|r| index.over_limit(&RuleName::new(&r.to_string()).unwrap()).is_none()));
            }
            // Of workloads that lack something it is known which rules they lack, and each change of that is noticed.
            let noticed = index.left_out_changed();
            let left_out: BTreeSet<CompanionKey> = all.difference(&wanted).cloned().collect();
            for label in (0..4usize).map(|w| w.to_string()) {
                let of = |keys: &BTreeSet<CompanionKey>| -> BTreeSet<_> {
                    keys.iter().filter(|key| *key.workload == *label).map(|key| key.rule.clone()).collect()
                };
                let reported: BTreeSet<_> = index.left_out_of(&label).iter().map(|rule| rule.name().clone()).collect();
                prop_assert_eq!(&reported, &of(&left_out));
                prop_assert!(reported == of(&left_out_before) || noticed.contains(label.as_str()), "{}", label);
                prop_assert!(reported.is_empty() || index.left_out_after(None).any(|lacking| **lacking == *label));
            }
            before = wanted;
            left_out_before = left_out;
        }
        // A lower limit takes nothing away, a higher one gives what was left out.
        index.limit(lower);
        prop_assert_eq!(index.matches().collect::<BTreeSet<_>>().len(), before.len().max(lower.min(naive(&rules, &workloads).len())));
        index.limit(usize::MAX);
        prop_assert_eq!(index.matches().collect::<BTreeSet<_>>(), naive(&rules, &workloads));
        prop_assert!(!index.has_more());
    }
}

#[test]
fn a_hundred_rules_of_three_thousand_workloads_are_not_as_many_pairs() {
    const MOST: usize = 2_000;
    const WORKLOADS: usize = 3_000;
    const RULES: usize = 100;
    let mut index = TenantIndex::default();
    index.limit(MOST);
    assert_eq!(index.most(), MOST);
    let anything = || vec![vec![ExpressionSpec::new(".metadata.resourceName", Operator::NotIn, &["x"])]];
    index.sync((0..WORKLOADS).map(|i| workload(&format!("w{i}"), None, &[])).collect());
    let touched: usize = (0..RULES)
        .map(|i| index.apply_rule(rule(&format!("r{i}"), DpuSelectionPolicy::Any, anything())).len())
        .sum();
    assert_eq!((touched, index.matches().count()), (MOST, MOST));
    // What gets free is given to what waits, a few workloads after each change: none of them costs much.
    let mut touched = index.remove_rule(&RuleName::new("r0").unwrap());
    assert!(touched.len() <= MOST + RULES * room::LOOKS, "{}", touched.len());
    for _ in 0..WORKLOADS {
        touched.extend(index.fill());
    }
    assert!(!index.has_more());
    assert_eq!((index.matches().count(), touched.len()), (MOST, 2 * MOST));
    // The platform's rules aren't the tenant's to fill up.
    let admin = RuleName::admin("a").unwrap();
    index.apply_rule(named(admin.clone(), DpuSelectionPolicy::Any, anything()));
    assert_eq!(index.matched(&admin), WORKLOADS);
}

#[test]
fn an_edit_among_ten_thousand_rules_touches_its_own_companions_only() {
    const RULES: usize = 10_000;
    const WORKLOADS: usize = 100_000;
    let of = |i: usize, label: &str| {
        let term = vec![ExpressionSpec::new(".state.extra.labels.app", Operator::In, &[label])];
        rule(&format!("r{i}"), DpuSelectionPolicy::Any, vec![term])
    };
    let mut index = TenantIndex::default();
    for i in 0..RULES {
        index.apply_rule(of(i, &format!("app{i}")));
    }
    let all = (0..WORKLOADS)
        .map(|i| workload(&format!("w{i}"), None, &[("app", &format!("app{}", i % RULES))]))
        .collect();
    assert_eq!(index.sync(all).len(), WORKLOADS);
    let keys = |i: usize| -> Vec<CompanionKey> {
        let mut keys: Vec<_> =
            (0..WORKLOADS / RULES).map(|n| key("r7", &format!("w{}", n * RULES + i))).collect();
        keys.sort_unstable();
        keys
    };
    let mut touched = index.apply_rule(of(7, "app7"));
    touched.sort_unstable();
    assert_eq!(touched, keys(7));
    // Another selector: those that it had, and those that it has now.
    let mut touched = index.apply_rule(of(7, "app8"));
    touched.sort_unstable();
    let mut both = [keys(7), keys(8)].concat();
    both.sort_unstable();
    assert_eq!(touched, both);
    assert_eq!(index.apply_rule(of(RULES, "nobody")).len(), 0);
}
