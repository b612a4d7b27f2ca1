use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::annotations::{Reading, Statement};
use crate::ids::{RuleName, WorkloadId};
use crate::index::Desired;
use crate::rule::{DpuSelectionPolicy, ExpressionSpec, Operator, Ordering, RuleSpec};
use crate::texts::Texts;
use crate::workload::tests::nginx;

const KEYS: [&str; 3] = ["x", "y", "z"];
const VALUES: [&str; 2] = ["a", "5"];

fn path(key: &str) -> String {
    format!(".state.extra.annotations.{key}")
}

fn compiled(name: RuleName, ordering: Ordering, terms: Vec<Vec<ExpressionSpec>>) -> Rule {
    let policy = DpuSelectionPolicy::Any;
    let spec = RuleSpec { terms, ordering, policy, template: json!({}).into(), ..RuleSpec::new(name) };
    Rule::compile(spec).unwrap()
}

fn own(ordering: Ordering, operator: Operator) -> Arc<Rule> {
    let values: &[&str] = if operator == Operator::NotIn { &["off"] } else { &[] };
    let term = vec![ExpressionSpec::new(&path("x"), operator, values)];
    Arc::new(compiled(RuleName::new("r").unwrap(), ordering, vec![term]))
}

fn admin(operator: Operator) -> Arc<Rule> {
    Arc::new(Rule::clone(&own(Ordering::Parallel, operator)).into_admin())
}

fn pod(annotations: &[(&str, &str)]) -> Workload {
    Workload { id: WorkloadId::new("w").unwrap(), annotations: Texts::new(annotations.to_vec()), ..nginx() }
}

fn said(sent: &[&str], withheld: &[&str]) -> Statement {
    let withheld = withheld.iter().map(ToString::to_string).collect();
    Statement::new(sent.iter().map(|pattern| pattern.parse().unwrap()), withheld)
}

fn index(rule: &Arc<Rule>, workload: Workload) -> TenantIndex {
    let mut index = TenantIndex::default();
    index.apply_rule(rule.clone());
    index.sync(vec![workload]);
    index
}

fn key(rule: &Rule) -> CompanionKey {
    CompanionKey { rule: rule.name().clone(), workload: "w".into() }
}

fn desired(index: &TenantIndex, rule: &Rule) -> &'static str {
    match index.desired(&key(rule)) {
        Desired::Wanted { .. } => "wanted",
        Desired::Unwanted => "unwanted",
        Desired::Undecided => "undecided",
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_not_sent_neither_matches_nor_fails_to_match() {
    use Operator::{DoesNotExist, Exists, NotIn};
    for operator in [NotIn, DoesNotExist, Exists] {
        for (rule, withheld) in
            [(own(Ordering::Parallel, operator), "undecided"), (admin(operator), "wanted")]
        {
            let mut index = index(&rule, pod(&[]));
            let absent = if operator == Exists { "unwanted" } else { "wanted" };
            assert_eq!(desired(&index, &rule), absent, "all annotations are sent");
            let mut say = |sent: &[&str], not: &[&str]| {
                let known = index.known().said(said(sent, not));
                let (touched, _) = index.set_known(known);
                (desired(&index, &rule), touched == [key(&rule)])
            };
            assert_eq!(say(&["y"], &[]).0, "undecided", "the agent will say");
            assert_eq!(say(&["y"], &["x"]).0, withheld, "{operator:?}");
            assert_eq!(say(&["y"], &["x"]), (withheld, false), "nothing has changed");
            assert_eq!(say(&["*"], &[]).0, absent);
        }
    }
}

#[test]
fn an_opted_out_workload_gets_nothing_as_soon_as_its_annotation_is_there() {
    for rule in [own(Ordering::Parallel, Operator::NotIn), admin(Operator::NotIn)] {
        let mut index = index(&rule, pod(&[("x", "off")]));
        assert_eq!(desired(&index, &rule), "unwanted");
        index.set_known(index.known().said(said(&[], &["x"])));
        assert_eq!(desired(&index, &rule), "unwanted", "what is there is known, whatever is sent");
        let touched = index.update(pod(&[]));
        let after = desired(&index, &rule);
        assert_eq!(after == "wanted", touched == [key(&rule)], "{after}");
    }
}

#[test]
fn an_annotation_that_is_too_large_is_unknown_for_its_workload_alone() {
    let rule = admin(Operator::DoesNotExist);
    let mut index = index(&rule, pod(&[]));
    index.set_known(index.known().said(said(&["x"], &[])));
    let large = Workload { withheld: vec!["x".into()], ..pod(&[]) };
    index.update(large.clone());
    assert_eq!(desired(&index, &rule), "wanted");
    let exists = own(Ordering::Parallel, Operator::Exists);
    index.apply_rule(exists.clone());
    assert_eq!(desired(&index, &exists), "undecided");
    index.update(Workload { withheld: Vec::new(), ..large });
    assert_eq!(desired(&index, &exists), "unwanted");
}

#[test]
fn a_workload_waits_while_it_is_undecided_whether_it_has_a_companion() {
    let rule = own(Ordering::BeforeReady, Operator::NotIn);
    let mut index = index(&rule, pod(&[]));
    index.set_known(index.known().said(said(&[], &["x"])));
    let waits = |index: &TenantIndex| (index.undecided_of("w").len(), index.undecided_after(None).is_some());
    assert_eq!(waits(&index), (1, true));
    assert_eq!(index.undecided_changed().len(), 1);
    index.update(Workload { ready: false, ..pod(&[]) });
    assert!(index.undecided_changed().is_empty(), "it waits as before");
    index.set_known(index.known().said(said(&["x"], &[])));
    assert_eq!((waits(&index), desired(&index, &rule)), ((0, false), "wanted"));
    assert_eq!(index.undecided_changed().len(), 1);
    // Nothing waits for one of a rule without an ordering.
    let parallel = own(Ordering::Parallel, Operator::NotIn);
    index.apply_rule(parallel);
    index.set_known(index.known().said(said(&[], &["x"])));
    assert_eq!(waits(&index), (0, false));
}

#[test]
fn an_agent_is_asked_for_the_keys_that_it_does_not_know() {
    let mut index = TenantIndex::default();
    let copied = Rule::clone(&own(Ordering::Parallel, Operator::Exists)).into_copied();
    index.apply_rule(Arc::new(copied));
    assert_eq!(index.asked().count(), 0);
    let admin = admin(Operator::Exists);
    index.apply_rule(admin.clone());
    assert_eq!(index.asked().collect::<Vec<_>>(), ["x"]);
    index.apply_rule(admin.clone());
    index.remove_rule(admin.name());
    assert_eq!(index.asked().count(), 0);
    // There is a limit of what is asked for.
    let term = |key: usize| vec![ExpressionSpec::new(&path(&format!("k{key:03}")), Operator::Exists, &[])];
    for (name, keys) in [("a", 0..60), ("b", 60..120), ("c", 120..140)] {
        let terms = keys.map(term).collect();
        index.apply_rule(Arc::new(compiled(RuleName::new(name).unwrap(), Ordering::Parallel, terms)));
    }
    assert_eq!((index.asked().count(), index.needed().count()), (MAX_ASKED, 140));
    assert_eq!(index.asked().last(), Some("k127"));
}

#[test]
fn a_key_for_which_nobody_asks_any_longer_is_asked_for_again() {
    let rule = admin(Operator::NotIn);
    let mut index = index(&rule, pod(&[]));
    index.set_known(index.known().said(said(&[], &[])));
    index.set_known(index.known().overdue(["x".to_owned()].into()));
    assert_eq!(desired(&index, &rule), "wanted");
    index.remove_rule(rule.name());
    index.apply_rule(rule.clone());
    assert_eq!(desired(&index, &rule), "undecided");
}

fn any_expression() -> impl Strategy<Value = ExpressionSpec> {
    use Operator::{DoesNotExist, Exists, Gt, In, Lt, NotIn};
    (0..=KEYS.len(), 0usize..6, 0..VALUES.len()).prop_map(|(key, operator, value)| {
        let operator = [In, NotIn, Exists, DoesNotExist, Gt, Lt][operator];
        let values = match operator {
            In | NotIn => vec![VALUES[value]],
            Exists | DoesNotExist => vec![],
            Gt | Lt => vec!["3"],
        };
        let key = KEYS.get(key).map_or(".state.extra.labels.x".to_owned(), |key| path(key));
        ExpressionSpec::new(&key, operator, &values)
    })
}

fn any_terms() -> impl Strategy<Value = Vec<Vec<ExpressionSpec>>> {
    proptest::collection::vec(proptest::collection::vec(any_expression(), 1..4), 1..3)
}

fn any_map() -> impl Strategy<Value = BTreeMap<String, String>> {
    let text = |all: &'static [&'static str]| (0..all.len()).prop_map(|at| all[at].to_owned());
    proptest::collection::btree_map(text(&KEYS), text(&VALUES), 0..3)
}

fn any_workload() -> impl Strategy<Value = Workload> {
    (0..3usize, any_map(), any_map(), 0..8usize).prop_map(|(id, labels, annotations, withheld)| Workload {
        id: WorkloadId::new(&format!("w{id}")).unwrap(),
        labels: (&labels).into(),
        withheld: KEYS
            .get(withheld)
            .filter(|key| !annotations.contains_key(**key))
            .map(|key| (*key).into())
            .into_iter()
            .collect(),
        annotations: (&annotations).into(),
        ..nginx()
    })
}

#[derive(Debug, Clone)]
enum Operation {
    Rule(usize, Vec<Vec<ExpressionSpec>>),
    RemoveRule(usize),
    Update(Workload),
    Delete(usize),
    Say(Option<(Vec<usize>, Vec<usize>)>),
    Overdue(usize),
}

fn any_operation() -> impl Strategy<Value = Operation> {
    let keys = || proptest::collection::vec(0..KEYS.len(), 0..3);
    prop_oneof![
        3 => (0..6usize, any_terms()).prop_map(|(r, terms)| Operation::Rule(r, terms)),
        1 => (0..6usize).prop_map(Operation::RemoveRule),
        3 => any_workload().prop_map(Operation::Update),
        1 => (0..3usize).prop_map(Operation::Delete),
        3 => proptest::option::weighted(0.8, (keys(), keys())).prop_map(Operation::Say),
        1 => (0..KEYS.len()).prop_map(Operation::Overdue),
    ]
}

/// Two rules of the platform, two that the agent has copied, of which workloads wait for one, and two others of the tenant.
fn numbered(number: usize, terms: Vec<Vec<ExpressionSpec>>) -> Arc<Rule> {
    let ordering = if number.is_multiple_of(2) { Ordering::Parallel } else { Ordering::BeforeReady };
    let rule = compiled(RuleName::new(&format!("r{number}")).unwrap(), ordering, terms);
    Arc::new(match number {
        0 | 1 => rule.into_admin(),
        2 | 3 => rule.into_copied(),
        _ => rule,
    })
}

/// What trying a rule on a workload says.
fn naive(known: &Known, rule: &Rule, workload: &Workload) -> &'static str {
    let is_open = |key: &str| {
        workload.withheld.iter().any(|withheld| **withheld == *key)
            || known.answer(rule.is_copied(), key) != Answer::Sent
    };
    let unknown =
        |path: &Path| key_of(path).is_some_and(|key| workload.annotations.get(key).is_none() && is_open(key));
    let pending = || {
        let mut keys = rule.annotation_keys().into_iter();
        keys.any(|key| known.answer(rule.is_copied(), key) == Answer::Pending)
    };
    match rule.verdict(workload, unknown) {
        Verdict::Yes => "wanted",
        Verdict::No => "unwanted",
        Verdict::Unknown if rule.name().is_admin() && !pending() => "wanted",
        Verdict::Unknown => "undecided",
    }
}

proptest! {
    /// Whatever annotations a workload has that aren't known, a verdict that doesn't leave it open is right.
    #[test]
    fn a_verdict_holds_whatever_is_unknown(
        terms in any_terms(), workload in any_workload(), unknown in proptest::collection::vec(0..KEYS.len(), 0..3),
        values in proptest::collection::vec(0..=VALUES.len(), KEYS.len()),
    ) {
        let rule = compiled(RuleName::new("r").unwrap(), Ordering::Parallel, terms);
        let is_unknown = |key: &str| unknown.iter().any(|at| KEYS[*at] == key);
        let verdict = rule.verdict(&workload, |path| key_of(path).is_some_and(is_unknown));
        let mut possible = workload.clone();
        possible.annotations.retain(|key| !is_unknown(key));
        for at in &unknown {
            if let Some(value) = VALUES.get(values[*at]) {
                possible.annotations.set(KEYS[*at], value);
            }
        }
        let matches = rule.matches(&possible);
        prop_assert!(verdict == Verdict::Unknown || (verdict == Verdict::Yes) == matches, "{:?}", verdict);
        prop_assert_eq!(rule.verdict(&workload, |_| false), rule.matches(&workload).into());
    }

    /// Whatever happens, the index says what trying every rule on every workload would say, and tells of every change.
    #[test]
    fn the_index_is_the_naive_evaluation(operations in proptest::collection::vec(any_operation(), 1..24)) {
        let mut index = TenantIndex::default();
        index.complete(|_| true);
        let mut before = BTreeMap::new();
        for operation in operations {
            let of_workload = matches!(operation, Operation::Update(_) | Operation::Delete(_));
            let touched = match operation {
                Operation::Rule(number, terms) => index.apply_rule(numbered(number, terms)),
                Operation::RemoveRule(number) => index.remove_rule(numbered(number, vec![vec![
                    ExpressionSpec::new("@", Operator::Exists, &[])]]).name()),
                Operation::Update(workload) => index.update(workload),
                Operation::Delete(id) => index.delete(&WorkloadId::new(&format!("w{id}")).unwrap()),
                Operation::Say(None) => index.set_known(index.known().begun(Reading::Silent)).0,
                Operation::Say(Some((sent, withheld))) => {
                    let keys = |all: Vec<usize>| all.into_iter().map(|at| KEYS[at]).collect::<Vec<_>>();
                    let statement = said(&keys(sent), &keys(withheld));
                    index.set_known(index.known().begun(Reading::Said(statement)).completed()).0
                }
                Operation::Overdue(key) => {
                    index.set_known(index.known().overdue([KEYS[key].to_owned()].into())).0
                }
            };
            let mut now = BTreeMap::new();
            for rule in index.rules() {
                for label in index.labels() {
                    let key = CompanionKey { rule: rule.name().clone(), workload: label.clone() };
                    let workload = index.workload(label).unwrap();
                    let expected = naive(index.known(), rule, workload);
                    let found = match index.desired(&key) {
                        Desired::Wanted { .. } => "wanted",
                        Desired::Undecided => "undecided",
                        _ => "unwanted",
                    };
                    prop_assert_eq!(found, expected, "{:?}", key);
                    prop_assert_eq!(index.matching(workload).contains(rule.name()), expected == "wanted");
                    let waits = index.undecided_of(label).iter().any(|other| other.name() == rule.name());
                    prop_assert_eq!(waits, expected == "undecided" && rule.ordering().gates() && !rule.is_copied(), "{:?}", key);
                    // A companion may exist that is undecided: that one isn't wanted any longer, its workload's change tells.
                    let differs = |before: &&str| {
                        (*before == "wanted") != (expected == "wanted") || of_workload && (*before, expected) == ("undecided", "unwanted")
                    };
                    if before.get(&key).is_some_and(differs) {
                        prop_assert!(touched.contains(&key), "the change of {:?} is not among what is touched", key);
                    }
                    now.insert(key, expected);
                }
            }
            let gone = before.iter().filter(|(key, state)| {
                of_workload && **state != "unwanted" && !now.contains_key(*key)
            });
            for (key, _) in gone {
                prop_assert!(touched.contains(key), "{:?} is gone and not among what is touched", key);
            }
            before = now;
        }
        for rule in index.rules().map(|rule| rule.name().clone()).collect::<Vec<_>>() {
            index.remove_rule(&rule);
        }
        prop_assert_eq!((index.annotations.named.len(), index.annotations.open.len()), (0, 0));
    }
}
