use super::*;
use serde_json::json;

fn pod(terms: Value, selector: Value) -> Value {
    let mut pod = super::super::tests::pod(terms);
    pod["spec"]["nodeSelector"] = selector;
    pod
}

fn term(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
}

#[test]
fn contradictions_name_both_sides() {
    let found = |terms: Value, selector: Value| contradiction(&pod(terms, selector));
    let a_in = |v: &[&str]| term("a", "In", v);
    assert_eq!(found(json!([a_in(&["1"])]), json!({"a": "1"})), None);
    assert_eq!(
        found(json!([a_in(&["2", "3"])]), json!({"a": "1"})).as_deref(),
        Some("a In [1] and a In [2, 3]")
    );
    assert_eq!(found(json!([a_in(&["2"]), a_in(&["1"])]), json!({"a": "1"})), None, "one term is left");
    assert!(found(json!([{}]), json!({})).is_some());
    let not = json!([{"matchExpressions": [
        {"key": "a", "operator": "NotIn", "values": ["1", "2"]}, {"key": "a", "operator": "In", "values": ["1"]}]}]);
    assert!(found(not, json!({})).is_some());
    assert_eq!(contradiction(&json!({"spec": {}})), None);
}

#[test]
fn integers_and_fields_contradict_too() {
    let both = |a: Value, b: Value| {
        let lists = |name: &str| -> Vec<Value> {
            [&a, &b].iter().flat_map(|t| t[name].as_array().cloned().unwrap_or_default()).collect()
        };
        let term =
            json!({"matchExpressions": lists("matchExpressions"), "matchFields": lists("matchFields")});
        contradiction(&pod(json!([term]), json!({})))
    };
    let field =
        |name: &str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
    for (a, b, contradicts) in [
        (term("a", "In", &["1", "x"]), term("a", "Gt", &["1"]), true),
        (term("a", "Gt", &["1"]), term("a", "In", &["2"]), false),
        (term("a", "Gt", &["1"]), term("a", "Lt", &["2"]), true),
        (term("a", "Lt", &["3"]), term("a", "Gt", &["1"]), false),
        // The scheduler drops a term with a bound that is no integer.
        (term("a", "Lt", &["x"]), term("a", "Gt", &["1"]), true),
        (term("a", "Gt", &["24.10"]), term("b", "Exists", &[]), true),
        (term("a", "Gt", &["9223372036854775808"]), term("b", "Exists", &[]), true),
        (term("a", "Gt", &["9223372036854775806"]), term("b", "Exists", &[]), false),
        (term("a", "NotIn", &["1"]), term("a", "DoesNotExist", &[]), false),
        // The API server refuses it, so nothing else is said about it.
        (term("a", "In", &[]), term("a", "Exists", &[]), false),
        (field("n"), field("m"), true),
        (field("n"), field("n"), false),
        (field("n"), term("metadata.name", "In", &["m"]), false),
    ] {
        assert_eq!(both(a.clone(), b.clone()).is_some(), contradicts, "{a} {b}");
    }
}

#[test]
fn a_term_that_the_scheduler_drops_matches_nothing_and_leaves_the_others() {
    let found = |terms: Value| contradiction(&pod(terms, json!({})));
    let dropped = term("fw-version", "Gt", &["24.10"]);
    assert_eq!(
        found(json!([dropped])).as_deref(),
        Some("fw-version Gt [24.10], no integer: the scheduler drops the term")
    );
    assert_eq!(found(json!([dropped, term("a", "Exists", &[])])), None);
    assert!(found(json!([dropped, {}])).is_some());
    assert_eq!(opposition(&pod(json!([dropped]), json!({})), &[term("b", "In", &["x"])]), None);
}

#[test]
fn an_opposition_says_whose_words_are_whose() {
    let us = || vec![term("region", "In", &["us"]), term("type", "NotIn", &["virtual"])];
    let virtual_eu = || {
        json!({"matchExpressions": [{"key": "region", "operator": "In", "values": ["eu"]},
            {"key": "type", "operator": "In", "values": ["virtual"]}]})
    };
    assert_eq!(
        opposition(&pod(json!([virtual_eu()]), json!({})), &us()),
        Some(("region In [eu]".to_owned(), "region In [us]".to_owned()))
    );
    assert_eq!(opposition(&pod(json!([virtual_eu(), term("x", "Exists", &[])]), json!({})), &us()), None);
    let (own, theirs) =
        opposition(&pod(json!(null), json!({"region": "eu", "type": "virtual"})), &us()).unwrap();
    assert_eq!((own.as_str(), theirs.as_str()), ("region In [eu]", "region In [us]"));
    // What is imposed says how it opposes a Pod that matches nothing by itself.
    let many = vec![term("a", "In", &["3", "4", "5", "6"])];
    assert_eq!(
        opposition(&pod(json!([term("a", "In", &["1"])]), json!({"a": "2"})), &many),
        Some(("a In [2]".to_owned(), "a In [3, 4, 5, 6]".to_owned()))
    );
    let e = |operator: &str| json!({"key": "a", "operator": operator});
    let values = |of: char| (0..200).map(|i| format!("{of}{i}")).collect::<Vec<_>>();
    let (own, imposed) =
        (json!(values('o')), json!([["2"].map(String::from).to_vec(), values('t')].concat()));
    let a_in = |values| json!({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]});
    let (own, imposed) = (pod(json!([a_in(own)]), json!({"a": "2"})), [a_in(imposed)]);
    assert!(opposition(&own, &imposed).is_some_and(|(own, _)| own.starts_with("a In [o0, ")));
    // Expressions without values take as long to compare as others.
    let many = |count, last| {
        let all = [vec![e("Exists"); count], vec![e(last)]].concat();
        json!({"matchExpressions": all})
    };
    let contradicts_itself = pod(json!([many(200, "DoesNotExist")]), json!({}));
    assert_eq!(opposition(&contradicts_itself, &[many(200, "Exists")]), None);
    let contradicts_itself = pod(json!([many(100, "DoesNotExist")]), json!({}));
    assert!(opposition(&contradicts_itself, &[many(100, "Exists")]).is_some());
    // What contradicts itself is nobody else's fault.
    assert_eq!(opposition(&pod(json!([term("a", "In", &["1"])]), json!({"a": "2"})), &us()), None);
    assert_eq!(opposition(&json!({"spec": {}}), &us()), None);
}

#[test]
fn several_together_can_leave_nothing_too() {
    let all = |expressions: Value| contradiction(&pod(json!([{"matchExpressions": expressions}]), json!({})));
    let e = |operator: &str, values: &[&str]| json!({"key": "a", "operator": operator, "values": values});
    for (together, reason) in [
        (
            json!([e("In", &["1", "2"]), e("In", &["2", "3"]), e("In", &["1", "3"])]),
            "a In [2, 3] and a In [1, 3] with the others on it",
        ),
        (
            json!([e("In", &["1", "9"]), e("Gt", &["3"]), e("Lt", &["7"])]),
            "a Gt [3] and a Lt [7] with the others on it",
        ),
        (
            json!([e("NotIn", &["1"]), e("NotIn", &["2"]), e("In", &["1", "2"])]),
            "a NotIn [2] and a In [1, 2] with the others on it",
        ),
        (json!([e("Gt", &["0"]), e("NotIn", &["x"]), e("In", &["x", "y"])]), "a Gt [0] and a In [x, y]"),
        // The tightest bound is what leaves nothing.
        (json!([e("Gt", &["1"]), e("Gt", &["5"]), e("In", &["3"])]), "a Gt [5] and a In [3]"),
        (json!([e("Gt", &["5"]), e("Gt", &["1"]), e("In", &["3"])]), "a Gt [5] and a In [3]"),
        (json!([e("Lt", &["5"]), e("Lt", &["9"]), e("In", &["7"])]), "a Lt [5] and a In [7]"),
        (json!([e("Lt", &["9"]), e("Lt", &["5"]), e("In", &["7"])]), "a Lt [5] and a In [7]"),
    ] {
        assert_eq!(all(together.clone()).as_deref(), Some(reason), "{together}");
    }
    assert_eq!(all(json!([e("In", &["1", "5", "9"]), e("Gt", &["3"]), e("Lt", &["7"])])), None);
    assert_eq!(all(json!([e("Gt", &["1"]), e("Gt", &["5"]), e("In", &["6"])])), None);
}

#[test]
fn who_says_too_much_gets_no_warning() {
    let many = |count: usize| {
        let mut all = vec![json!({"key": "a", "operator": "Exists"}); count];
        all.push(json!({"key": "a", "operator": "DoesNotExist"}));
        pod(json!([{"matchExpressions": all}]), json!({}))
    };
    assert!(contradiction(&many(MAX_SAID - 2)).is_some());
    assert_eq!(contradiction(&many(MAX_SAID)), None);
    let fields = vec![json!({"key": "metadata.name", "operator": "DoesNotExist"}); MAX_SAID];
    let mut both = term("a", "In", &["1"]);
    both["matchFields"] = json!(fields);
    assert_eq!(contradiction(&pod(json!([both]), json!({"a": "2"}))), None);
    let selector: serde_json::Map<String, Value> = (0..100).map(|i| (format!("k{i}"), json!("v"))).collect();
    let terms = json!(vec![term("k0", "In", &["w"]); 30]);
    assert_eq!(contradiction(&pod(terms, json!(selector))), None, "each term has the nodeSelector too");
    let own = pod(json!(vec![term("a", "In", &["1"]); 100]), json!({}));
    assert!(opposition(&own, &vec![term("a", "In", &["2"]); 10]).is_some());
    assert!(opposition(&own, &vec![term("a", "In", &["2"]); 300]).is_none());
}

#[test]
fn oppositions_are_looked_for_up_to_a_limit_of_each_side_and_of_both() {
    // Besides its values, the term and its expression count.
    let large = |of: char, size: usize| {
        let values: Vec<String> = (2..size).map(|i| format!("{of}{i}")).collect();
        json!({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]})
    };
    let opposes =
        |own: Vec<Value>, imposed: &[Value]| opposition(&pod(json!(own), json!({})), imposed).is_some();
    let (own, imposed) = (|size| large('o', size), |size| large('i', size));
    assert!(opposes(vec![own(MAX_SAID)], &[imposed(3)]));
    assert!(!opposes(vec![own(MAX_SAID + 1)], &[imposed(3)]));
    assert!(opposes(vec![own(3)], &[imposed(MAX_SAID)]));
    assert!(!opposes(vec![own(3)], &[imposed(MAX_SAID + 1)]));
    // Each of 64 terms is compared with all of the other side.
    let (mut many, theirs) = (vec![own(4); 64], vec![imposed(4); 64]);
    assert_eq!(64 * 64 * (4 + 4), 8 * MAX_SAID);
    assert!(opposes(many.clone(), &theirs));
    many[0] = own(5);
    assert!(!opposes(many, &theirs));
}

#[test]
fn its_steps_grow_with_what_is_said_and_no_faster() {
    let of = |expression: &dyn Fn(usize) -> Value, count: usize| -> Value {
        let all: Vec<Value> = (0..count).map(expression).collect();
        json!({"matchExpressions": all})
    };
    let e = |operator: &str, values: &[String]| json!({"key": "a", "operator": operator, "values": values});
    type Expression<'a> = (&'a str, &'a dyn Fn(usize) -> Value);
    let kinds: [Expression<'_>; 4] = [
        ("one said again and again", &|_| e("Exists", &[])),
        ("each excludes another value", &|i| e("NotIn", &[format!("v{i}")])),
        ("ever tighter bounds", &|i| e("Gt", &[i.to_string()])),
        ("bounds against values", &|i| {
            if i % 2 == 0 { e("In", &["1".into(), "90000".into()]) } else { e("Gt", &[i.to_string()]) }
        }),
    ];
    for (what, expression) in kinds {
        // The cap is looked at before; here it is about what lies below it.
        crate::steps::assert_nearly_linear(
            |size| of(expression, size),
            |term| {
                let all: Vec<Says<'_>> = says(term).collect();
                assert!(within(&all).is_none(), "{what}");
            },
        );
    }
    let values = |from: usize, count: usize| -> Vec<String> {
        (from..from + count).map(|i| format!("v{i}")).collect()
    };
    crate::steps::assert_nearly_linear(
        |size| json!({"matchExpressions": [e("In", &values(0, size)), e("In", &values(size - 1, size)), e("In", &values(size, size))]}),
        |term| assert!(within(&says(term).collect::<Vec<_>>()).is_some()),
    );
}

#[test]
fn two_that_exclude_each_other_are_the_whole_reason() {
    type Said<'a> = (&'a str, &'a [&'a str]);
    let pairs: [(Said<'_>, Said<'_>); 9] = [
        (("In", &["1"]), ("In", &["2"])),
        (("In", &["1"]), ("NotIn", &["1", "2"])),
        (("In", &["1"]), ("DoesNotExist", &[])),
        (("Exists", &[]), ("DoesNotExist", &[])),
        (("Gt", &["1"]), ("DoesNotExist", &[])),
        (("Lt", &["1"]), ("DoesNotExist", &[])),
        (("In", &["0", "1"]), ("Gt", &["1"])),
        (("In", &["1", "2"]), ("Lt", &["1"])),
        (("Gt", &["1"]), ("Lt", &["2"])),
    ];
    let words = |(operator, values): Said<'_>| match operator {
        "Exists" | "DoesNotExist" => format!("a {operator}"),
        _ => format!("a {operator} [{}]", values.join(", ")),
    };
    let e = |(operator, values): Said<'_>| json!({"key": "a", "operator": operator, "values": values});
    for (one, other) in pairs.into_iter().flat_map(|(one, other)| [(one, other), (other, one)]) {
        let term = json!({"matchExpressions": [e(one), e(other)]});
        assert_eq!(
            contradiction(&pod(json!([term]), json!({}))),
            Some(format!("{} and {}", words(one), words(other)))
        );
    }
}
