use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::mutate::tests::patch;
use crate::mutate::{self, Report};
use crate::selector::matching::Node;
use crate::selector::{POINTER, tests::pod};

/// What Liqo's own tests say that its webhook does; `tests/cases` tells where each comes from.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Case {
    name: String,
    strategy: String,
    #[serde(default)]
    cluster_selector: Value,
    pod: Value,
    #[serde(default)]
    liqo_runtime_class: Option<String>,
    expect: Expect,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Expect {
    allowed: bool,
    node_affinity_required: Value,
    tolerations: Vec<Value>,
    #[serde(default)]
    affinity_other: Option<Value>,
    spec_unchanged: bool,
}

fn facts<'a>(offloading: &'a Offloading, exempt_runtime_class: &'a str) -> mutate::PodContext<'a> {
    let offloading = Some(OffloadingContext { offloading, exempt_runtime_class });
    mutate::PodContext { offloading, ..mutate::PodContext::default() }
}

fn run(pod: &Value, strategy: &str, selector: &Value) -> Result<(Value, Report), FieldError> {
    let offloading = Offloading::new(strategy, selector).unwrap();
    let mut pod = pod.clone();
    let report = mutate::mutate(&mut pod, &facts(&offloading, "liqo"))?;
    Ok((pod, report))
}

/// A node of a generated world.
#[derive(Debug, Clone)]
struct World {
    name: String,
    labels: BTreeMap<String, String>,
}

impl World {
    fn node(&self) -> Node<'_> {
        Node { name: &self.name, labels: &self.labels }
    }
}

/// Nodes with every combination of the keys and values that stand in these terms, of other values, and of none.
fn worlds(selectors: &[&Value]) -> Vec<World> {
    let mut values: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut names = BTreeSet::from(["other".to_owned()]);
    values.entry(keys::NODE_TYPE.to_owned()).or_default().insert(keys::VIRTUAL_NODE.to_owned());
    let terms = selectors.iter().filter_map(|s| s.as_array()).flatten();
    for (term, list) in terms.flat_map(|t| [(t, "matchExpressions"), (t, "matchFields")]) {
        for e in term.get(list).and_then(Value::as_array).into_iter().flatten() {
            let said =
                e["values"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
            if list == "matchFields" {
                names.extend(said);
            } else {
                values.entry(e["key"].as_str().unwrap_or_default().to_owned()).or_default().extend(said);
            }
        }
    }
    let mut all = vec![BTreeMap::new()];
    for (key, values) in values {
        let with = |labels: &BTreeMap<String, String>, value: &str| {
            let mut labels = labels.clone();
            labels.insert(key.clone(), value.to_owned());
            labels
        };
        let more: Vec<_> = all
            .iter()
            .flat_map(|labels| {
                values.iter().map(|v| with(labels, v)).chain([with(labels, "other")]).collect::<Vec<_>>()
            })
            .collect();
        all.extend(more);
    }
    let named = |name: &String| {
        all.iter().map(|labels| World { name: name.clone(), labels: labels.clone() }).collect::<Vec<_>>()
    };
    names.iter().flat_map(named).collect()
}

/// The list of terms, null where there is none.
fn terms(pod: &Value) -> &Value {
    pod.pointer(POINTER).unwrap_or(&Value::Null)
}

/// Whether a node passes required node affinity: no terms, no demand.
fn fits(terms: &Value, node: &Node<'_>) -> bool {
    match terms.as_array().map(Vec::as_slice) {
        None | Some([]) => true,
        Some(terms) => terms.iter().any(|term| node.matches(term)),
    }
}

/// Whether a node is one that a NamespaceOffloading lets Pods onto.
fn offered(strategy: &str, selector: &Value, node: &Node<'_>) -> bool {
    let selected = selector.as_array().is_none_or(|terms| {
        terms.is_empty() || terms.iter().any(|term| product::is_empty(term) || node.matches(term))
    });
    let any = selector.as_array().is_none_or(|terms| terms.is_empty() || terms.iter().any(product::is_empty));
    let is_virtual = node.labels.get(keys::NODE_TYPE).is_some_and(|t| t == keys::VIRTUAL_NODE);
    match strategy {
        "Local" => true,
        "Remote" => is_virtual && selected,
        // A selector picks nodes of every kind.
        _ => any || selected || !is_virtual,
    }
}

#[test]
fn the_mirror_of_a_static_pod_is_left_alone() {
    let selector = json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]});
    let mut mirror =
        json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}, "spec": {"nodeName": "n"}});
    let (after, report) = run(&mirror, "Remote", &selector).unwrap();
    assert_eq!((&after, report), (&mirror, Report::default()));
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.source": "api"});
    assert_eq!(run(&mirror, "Remote", &selector).unwrap().1.changed, ["offloading"]);
}

#[test]
fn places_where_liqo_places_and_writes_what_liqo_writes() {
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../../../../../tests/cases/liqo.json")).unwrap();
    for case in cases {
        // Liqo's own cases have values that no label can have.
        let offloading = Offloading::read(&case.strategy, &case.cluster_selector);
        assert_eq!(offloading.meaningless(), None, "{}", case.name);
        let class = case.liqo_runtime_class.as_deref().unwrap_or("liqo");
        let mut pod = case.pod.clone();
        let report = mutate::mutate(&mut pod, &facts(&offloading, class));
        assert_eq!(report.is_ok(), case.expect.allowed, "{}", case.name);
        if report.is_err() {
            continue;
        }
        let wanted = case.expect.node_affinity_required.get("nodeSelectorTerms").unwrap_or(&Value::Null);
        let selector = case.cluster_selector.get("nodeSelectorTerms").unwrap_or(&Value::Null);
        for world in worlds(&[wanted, terms(&case.pod), selector]) {
            assert_eq!(
                fits(terms(&pod), &world.node()),
                fits(wanted, &world.node()),
                "{}: {world:?}",
                case.name
            );
        }
        assert_eq!(terms(&pod), wanted, "{}", case.name);
        let tolerations =
            pod["spec"].get("tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
        assert_eq!(tolerations, case.expect.tolerations, "{}", case.name);
        assert_eq!(pod == case.pod, case.expect.spec_unchanged, "{}", case.name);
        if let Some(other) = case.expect.affinity_other {
            let mut affinity = pod["spec"]["affinity"].clone();
            let node = affinity["nodeAffinity"].as_object_mut().unwrap();
            node.remove("requiredDuringSchedulingIgnoredDuringExecution");
            if node.is_empty() {
                affinity.as_object_mut().unwrap().remove("nodeAffinity");
            }
            assert_eq!(affinity, other, "{}", case.name);
        }
    }
}

fn is_in(key: &str, value: &str) -> Value {
    json!({"key": key, "operator": "In", "values": [value]})
}

/// Where Liqo does otherwise, and we mean to differ.
#[test]
fn what_liqo_gets_wrong() {
    let us = || json!({"nodeSelectorTerms": [{"matchExpressions": [is_in("region", "us")]}]});
    let (virtual_node, local) = (
        is_in(keys::NODE_TYPE, "virtual-node"),
        json!({"key": keys::NODE_TYPE, "operator": "NotIn", "values": ["virtual-node"]}),
    );
    let result =
        |p: Value, strategy: &str, selector: &Value| terms(&run(&p, strategy, selector).unwrap().0).clone();
    let pin = json!([is_in("metadata.name", "n")]);
    // A DaemonSet's Pod keeps its pin.
    assert_eq!(
        result(pod(json!([{"matchFields": pin}])), "LocalAndRemote", &us()),
        json!([{"matchFields": pin, "matchExpressions": [is_in("region", "us")]}, {"matchFields": pin, "matchExpressions": [local]}])
    );
    let both = json!({"nodeSelectorTerms": [{"matchFields": [is_in("metadata.name", "v")]}]});
    assert_eq!(
        result(pod(json!([{"matchFields": pin}])), "Remote", &both),
        json!([{"matchFields": [pin[0], is_in("metadata.name", "v")], "matchExpressions": [virtual_node]}])
    );
    // An empty term of the Pod matches nothing, and goes on matching nothing.
    assert_eq!(
        result(pod(json!([{}, {"matchExpressions": [is_in("a", "1")]}])), "Remote", &us()),
        json!([{"matchExpressions": [is_in("a", "1"), is_in("region", "us"), virtual_node]}])
    );
    assert_eq!(result(pod(json!([{}, {}])), "Remote", &us()), json!([{}]));
    // An empty term of the selector means any.
    let any = json!({"nodeSelectorTerms": [{}, {"matchExpressions": [is_in("region", "us")]}]});
    assert_eq!(result(json!({"spec": {}}), "LocalAndRemote", &any), Value::Null);
    assert_eq!(
        result(json!({"spec": {}}), "Remote", &any),
        json!([{"matchExpressions": [virtual_node]}, {"matchExpressions": [is_in("region", "us"), virtual_node]}])
    );
    // Nothing stands there twice.
    assert_eq!(
        result(pod(json!([{"matchExpressions": [virtual_node, is_in("region", "us")]}])), "Remote", &us()),
        json!([{"matchExpressions": [virtual_node, is_in("region", "us")]}])
    );
    let tolerant = json!({"spec": {"tolerations": [
        {"key": keys::NOT_ALLOWED, "operator": "Exists", "effect": "NoExecute", "zz": 1}]}});
    assert_eq!(run(&tolerant, "LocalAndRemote", &json!(null)).unwrap().0, tolerant);
    let twice = json!({"spec": {"tolerations": vec![tolerant["spec"]["tolerations"][0].clone(); 2]}});
    assert_eq!(run(&twice, "LocalAndRemote", &json!(null)).unwrap().0, twice);
    // One that ends after a while is another one.
    let mut brief = tolerant;
    brief["spec"]["tolerations"][0]["tolerationSeconds"] = json!(30);
    let (after, _) = run(&brief, "LocalAndRemote", &json!(null)).unwrap();
    assert_eq!(after["spec"]["tolerations"].as_array().unwrap().len(), 2);
}

#[test]
fn a_contradiction_is_a_warning_that_names_both_sides() {
    let us = json!({"nodeSelectorTerms": [{"matchExpressions": [is_in("region", "us")]}]});
    let warnings = |p: &Value, strategy: &str| run(p, strategy, &us).unwrap().1.warnings;
    let wanted =
        "no node can match this Pod: it asks for region In [eu], its NamespaceOffloading for region In [us]";
    let eu = pod(json!([{"matchExpressions": [is_in("region", "eu")]}]));
    assert_eq!(warnings(&eu, "Remote"), [wanted]);
    let merged = run(&eu, "Remote", &us).unwrap().0;
    assert_eq!(warnings(&merged, "Remote"), [wanted], "again, when it is asked again");
    assert_eq!(warnings(&eu, "LocalAndRemote"), Vec::<String>::new(), "a local node may be in eu");
    assert_eq!(warnings(&json!({"spec": {"nodeSelector": {"region": "eu"}}}), "Remote"), [wanted]);
    let long = pod(json!([{"matchExpressions": [is_in("region", &"e".repeat(300))]}]));
    assert!(warnings(&long, "Remote")[0].chars().count() < 256);
    // Its own fault.
    let own = json!({"spec": {"nodeSelector": {"a": "1"}, "affinity":
        pod(json!([{"matchExpressions": [is_in("a", "2")]}]))["spec"]["affinity"]}});
    assert_eq!(warnings(&own, "Remote"), ["no node can match this Pod: a In [1] and a In [2]"]);
}

#[test]
fn exempt_before_the_strategy_is_looked_at() {
    let selector = json!(null);
    let exempt = json!({"spec": {"runtimeClassName": "liqo", "affinity": 7}});
    for strategy in ["Remote", "LocalAndRemote", "Local", "Perhaps", ""] {
        assert_eq!(run(&exempt, strategy, &selector).unwrap().0, exempt);
    }
    let error = run(&json!({"spec": {}}), "Perhaps", &selector).unwrap_err().to_string();
    assert_eq!(
        error,
        "NamespaceOffloading offloading: spec.podOffloadingStrategy: is \"Perhaps\"; use Local, Remote or LocalAndRemote"
    );
    // Without a class that is exempt, a Pod without class isn't.
    let offloading = Offloading::new("Remote", &selector).unwrap();
    for class in [json!(null), json!("")] {
        let mut plain = json!({"spec": {"runtimeClassName": class}});
        mutate::mutate(&mut plain, &facts(&offloading, "")).unwrap();
        assert!(terms(&plain).is_array());
    }
}

#[test]
fn what_has_another_shape_is_refused_with_its_path() {
    for (bad, path) in [
        (json!([]), ": must be an object, is a list"),
        (json!({"spec": "x"}), "spec: must be an object"),
        (json!({"spec": {"runtimeClassName": 1}}), "spec.runtimeClassName: must be a string"),
        (json!({"spec": {"tolerations": {}}}), "spec.tolerations: must be a list"),
        (json!({"spec": {"tolerations": [{}, 1]}}), "spec.tolerations[1]: must be an object"),
        (json!({"spec": {"affinity": []}}), "spec.affinity: must be an object"),
        (json!({"spec": {"affinity": {"nodeAffinity": 1}}}), "spec.affinity.nodeAffinity: must be an object"),
        (
            pod(json!([{"matchExpressions": [1]}])),
            "nodeSelectorTerms[0].matchExpressions[0]: must be an object",
        ),
    ] {
        let error = run(&bad, "Remote", &json!(null)).unwrap_err().to_string();
        assert!(error.contains(path), "{error}");
        assert_eq!(run(&bad, "Local", &json!(null)).unwrap().0, bad, "Local looks at nothing");
    }
}

/// An expression about few keys and values, so that terms meet.
fn any_expression() -> impl Strategy_<Value = Value> {
    let key = prop_oneof![4 => "[ab]", 1 => Just(keys::NODE_TYPE.to_owned())];
    let value = prop_oneof![4 => "[12]", 1 => Just(keys::VIRTUAL_NODE.to_owned())];
    (key, 0..6usize, proptest::collection::vec(value, 1..3)).prop_map(
        |(key, operator, values)| match operator {
            0 => json!({"key": key, "operator": "Exists"}),
            1 => json!({"key": key, "operator": "DoesNotExist", "values": []}),
            2 => json!({"key": key, "operator": "NotIn", "values": values}),
            3 => json!({"key": key, "operator": "Gt", "values": ["1"]}),
            _ => json!({"key": key, "operator": "In", "values": values}),
        },
    )
}

fn any_term() -> impl Strategy_<Value = Value> {
    let expressions = proptest::collection::vec(any_expression(), 0..3);
    let fields =
        prop_oneof![4 => Just(json!(null)), 1 => "[nm]".prop_map(|n| json!([is_in("metadata.name", &n)]))];
    (expressions, fields).prop_map(|(expressions, fields)| {
        let mut term = json!({"matchExpressions": expressions});
        if fields.is_array() {
            term["matchFields"] = fields;
        }
        term
    })
}

fn any_terms() -> impl Strategy_<Value = Value> {
    prop_oneof![
        1 => Just(Value::Null),
        8 => proptest::collection::vec(any_term(), 0..4).prop_map(Value::from),
    ]
}

/// A Pod of the API's shape, with fields that no type knows everywhere.
fn any_good_pod() -> impl Strategy_<Value = Value> {
    let toleration = prop_oneof![
        Just(json!({"operator": "Exists"})),
        Just(json!({"key": keys::NOT_ALLOWED, "operator": "Exists", "effect": "NoExecute"})),
        Just(json!({"key": keys::NOT_ALLOWED, "operator": "Exists"})),
    ];
    let tolerations = prop_oneof![
        1 => Just(Value::Null), 3 => proptest::collection::vec(toleration, 0..3).prop_map(Value::from)];
    (any_terms(), tolerations, 0..4usize).prop_map(|(terms, tolerations, shape)| {
        let mut pod = json!({"zz": 1, "metadata": {"name": "p", "zz": [2]},
            "spec": {"zz": {"q": null}, "tolerations": tolerations, "containers": [{"zz": 3}], "affinity": {
                "podAffinity": {"zz": 4}, "nodeAffinity": {"zz": 5,
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}],
                    "requiredDuringSchedulingIgnoredDuringExecution": {"zz": 6, "nodeSelectorTerms": terms}}}}});
        match shape {
            0 => drop(pod["spec"].as_object_mut().unwrap().remove("affinity")),
            1 => drop(pod["spec"]["affinity"].as_object_mut().unwrap().remove("nodeAffinity")),
            _ => {}
        }
        pod
    })
}

/// What the step doesn't own.
fn others(pod: &Value) -> Value {
    let mut pod = pod.clone();
    pod["spec"].as_object_mut().unwrap().remove("tolerations");
    let affinity = &mut pod["spec"]["affinity"];
    affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] =
        Value::Null;
    pod
}

use proptest::strategy::Strategy as Strategy_;

const STRATEGIES: [&str; 3] = ["Local", "Remote", "LocalAndRemote"];

proptest! {
    #[test]
    fn a_node_matches_exactly_if_it_did_and_is_offered(
        pod in any_good_pod(), selector in any_terms(), strategy in 0..3usize,
    ) {
        let strategy = STRATEGIES[strategy];
        let (once, report) = run(&pod, strategy, &json!({"nodeSelectorTerms": selector})).unwrap();
        let mut some = false;
        for world in worlds(&[terms(&pod), &selector]) {
            let node = world.node();
            let wanted = fits(terms(&pod), &node) && offered(strategy, &selector, &node);
            prop_assert_eq!(fits(terms(&once), &node), wanted, "{:?} {}", world, once);
            some |= wanted;
        }
        prop_assert!(report.warnings.is_empty() || !some, "it cries wolf: {:?}", report);
    }

    #[test]
    fn a_pod_is_changed_once_and_only_where_it_is_ours(
        pod in any_good_pod(), selector in any_terms(), strategy in 0..3usize,
    ) {
        let offloading = Offloading::new(STRATEGIES[strategy], &json!({"nodeSelectorTerms": selector})).unwrap();
        let facts = facts(&offloading, "liqo");
        let mut once = pod.clone();
        mutate::mutate(&mut once, &facts).unwrap();
        let (small, _) = patch(&pod, &facts).unwrap();
        let mut patched = pod.clone();
        json_patch::patch(&mut patched, &small).unwrap();
        prop_assert_eq!(&patched, &once, "the patch applies");
        let (again, _) = patch(&patched, &facts).unwrap();
        prop_assert!(again.0.is_empty(), "once is enough: {:?}", again);
        if STRATEGIES[strategy] == "Local" {
            prop_assert_eq!(&once, &pod);
        }
        prop_assert_eq!(others(&once), others(&pod), "nothing else changes");
        let listed = |pod: &Value| pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
        prop_assert!(listed(&once).starts_with(&listed(&pod)));
    }

    #[test]
    fn no_shape_makes_it_panic(pod in mutate::tests::any_pod(), strategy in 0..3usize) {
        let selector = json!({"nodeSelectorTerms": [{"matchExpressions": [is_in("a", "1")]}, {}]});
        match run(&pod, STRATEGIES[strategy], &selector) {
            Ok((once, _)) => {
                let mut patched = pod.clone();
                json_patch::patch(&mut patched, &json_patch::diff(&pod, &once)).unwrap();
                prop_assert_eq!(&run(&patched, STRATEGIES[strategy], &selector).unwrap().0, &once);
            }
            Err(error) => prop_assert!(error.path.starts_with("spec") || error.path.is_empty(), "{}", error),
        }
    }
}
