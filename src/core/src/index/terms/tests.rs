use super::super::tests::rule;
use super::*;
use crate::rule::{DpuSelectionPolicy, ExpressionSpec, Operator};
use crate::workload::tests::nginx;

const NAMESPACE: &str = ".metadata.resourceNamespace";
const NAME: &str = ".metadata.resourceName";
const LABEL: &str = ".state.extra.labels.x";

/// A rule with one term: each of these fields has to be this.
fn asking(name: &str, fields: &[&str], value: &str) -> Arc<Rule> {
    let term = fields.iter().map(|field| ExpressionSpec::new(field, Operator::In, &[value])).collect();
    rule(name, DpuSelectionPolicy::Any, vec![term])
}

#[test]
fn a_term_is_filed_where_few_others_are_and_by_what_distinguishes_workloads() {
    let mut index = TermIndex::default();
    let place = |index: &TermIndex, fields: &[&str]| index.place(&asking("r", fields, "a").terms()[0]);
    for (fields, at) in [
        (&[NAMESPACE, LABEL, NAME][..], 2),
        (&[NAMESPACE, LABEL, ".metadata.id"], 2),
        (&[NAMESPACE, LABEL], 1),
        (&[NAMESPACE, ".state.nodeName"], 0),
        (&[NAMESPACE, ".state.extra.labels.y"], 1),
        (&[LABEL, NAMESPACE], 0),
    ] {
        assert_eq!(place(&index, fields), Some(at), "{fields:?}");
    }
    // That an entry is there distinguishes workloads too. What all have, such as a name, doesn't.
    let there = |fields: &[&str]| {
        let term = fields.iter().map(|field| ExpressionSpec::new(field, Operator::Exists, &[])).collect();
        index.place(&rule("r", DpuSelectionPolicy::Any, vec![term]).terms()[0])
    };
    assert_eq!(there(&[NAME, LABEL]), Some(1));
    assert_eq!(there(&[NAME, NAMESPACE]), None);
    // As soon as others ask for the same name, the label is better.
    for i in 0..COMMON {
        index.insert(&asking(&format!("r{i}"), &[NAME], "a"), std::iter::empty);
    }
    assert_eq!(place(&index, &[NAMESPACE, LABEL, NAME]), Some(1));
}

#[test]
fn all_workloads_are_gone_through_once_for_all_rules_that_ask_for_values_of_a_field() {
    let looks = std::cell::Cell::new(0);
    let workloads = || {
        looks.set(looks.get() + 1);
        std::iter::empty()
    };
    let mut index = TermIndex::default();
    let there = vec![ExpressionSpec::new(LABEL, Operator::Exists, &[])];
    index.insert(&rule("there", DpuSelectionPolicy::Any, vec![there]), workloads);
    assert_eq!(looks.get(), 0, "it asks for no value");
    for value in ["a", "b", "c"] {
        index.insert(&asking(value, &[LABEL], value), workloads);
    }
    assert_eq!(looks.get(), 1);
}

#[test]
fn a_rule_that_asks_for_values_could_match_the_workloads_that_have_them() {
    let with =
        |value: &str| Workload { labels: [("x", value)].into(), resource_name: value.into(), ..nginx() };
    let [one, two, three] = ["1", "2", "3"].map(Arc::<str>::from);
    let (a, b, c) = (with("a"), with("b"), with("c"));
    let all = || [(&one, &a), (&two, &b), (&three, &c)].into_iter();
    for field in [LABEL, NAME] {
        let among = |values: &[&str]| vec![ExpressionSpec::new(field, Operator::In, values)];
        let there = vec![ExpressionSpec::new(field, Operator::Exists, &[])];
        let named = |name, terms| rule(name, DpuSelectionPolicy::Any, terms);
        let twice = named("twice", vec![among(&["a", "b"]), among(&["b", "d"])]);
        let any = named("any", vec![among(&["a"]), there]);
        let mut index = TermIndex::default();
        index.insert(&twice, all);
        index.insert(&any, all);
        assert_eq!(
            index.candidates(&twice, &Annotations::default()),
            Some(vec![one.clone(), two.clone()]),
            "each once"
        );
        assert_eq!(index.candidates(&any, &Annotations::default()), None, "whoever has the field");
        index.hold(&three, Some(&c), Some(&with("d")));
        index.hold(&one, Some(&a), None);
        assert_eq!(index.candidates(&twice, &Annotations::default()), Some(vec![two.clone(), three.clone()]));
        index.hold(&one, None, Some(&a));
        index.hold(&two, Some(&b), Some(&with("e")));
        assert_eq!(index.candidates(&twice, &Annotations::default()), Some(vec![one.clone(), three.clone()]));
    }
}

#[test]
fn a_term_is_filed_where_it_meets_the_fewest_workloads() {
    const READY: &str = ".state.ready";
    // One of so many values; or that it is there.
    let among = |field: &str, count: usize| {
        let values: Vec<String> = (0..count).map(|i| i.to_string()).collect();
        ExpressionSpec { key: field.into(), operator: Operator::In, values }
    };
    let there = |field: &str| ExpressionSpec::new(field, Operator::Exists, &[]);
    let asking = |term| rule("r", DpuSelectionPolicy::Any, vec![term]);
    let mut index = TermIndex::default();
    index.insert(&asking(vec![there(LABEL)]), std::iter::empty);
    let other = ".state.extra.labels.other";
    for (why, term) in [
        ("fewer values", [among(LABEL, 3), among(NAMESPACE, 1)]),
        ("many have the label", [there(other), among(NAMESPACE, PRESENCE - 1)]),
        ("and another term is filed there", [there(LABEL), among(NAMESPACE, 2 * PRESENCE - 1)]),
        ("half of all are ready", [among(READY, 1), among(NAMESPACE, COMMON - 1)]),
        ("all are ready or not", [among(READY, 2), among(NAMESPACE, 2 * COMMON - 1)]),
    ] {
        assert_eq!(index.place(&asking(term.to_vec()).terms()[0]), Some(1), "{why}");
    }
}
