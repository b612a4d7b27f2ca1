//! What Outrigger predicts of Kubernetes beside what Kubernetes does: where the scheduler puts Pods, what Pod Security admission forbids,
//! how much quantities are, and what kubectl reads in files. `docs/reliability.md` has the table of all predictions.

use std::collections::BTreeMap;

use futures::StreamExt;
use http::Method;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, ResourceExt};
use outrigger_cases::{Escapes, Layer, changed};
use outrigger_core::bounds::Bounds;
use outrigger_core::node::{self, obstacles};
use outrigger_core::quantity::Quantity;
use outrigger_core::selector::contradiction;
use outrigger_core::validate::pod_security::baseline;
use outrigger_core::yaml;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{namespace, node_of, takes_pods};
use outrigger_tests::user::ask;
use outrigger_tests::{InWords, condition_of, create, eventually, holds, is_true};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

const NAMESPACE: &str = "beliefs";
/// The label of this test's Nodes, whose values are their names.
const NODE: &str = "beliefs.test/node";
/// A taint that keeps Pods of other tests off these Nodes. All Pods of this test tolerate it.
const TAINT: &str = "beliefs.test/only";
const NODES: usize = 12;
/// Random Pods. Each may run on one Node only, so each is one comparison.
const PODS: usize = 160;
const SEED: u64 = 36;
/// Values of labels, of which some are integers.
const VALUES: [&str; 9] =
    ["1", "5", "10", "007", "x", "", "24.10", "9223372036854775807", "9223372036854775808"];
const KEYS: [&str; 3] = ["a", "beliefs.test/b", "c"];

async fn dry_run(client: &Client, path: &str, object: &Value) -> Result<Value, String> {
    ask(client, Method::POST, &format!("{path}?dryRun=All"), "application/json", object).await
}

/// One of these, as often as each other one.
fn one<'a>(random: &mut StdRng, of: &[&'a str]) -> &'a str {
    of.choose(random).unwrap()
}

fn node_named(i: usize) -> String {
    format!("beliefs-{i}")
}

/// A Node with random labels and taints. One is cordoned.
fn node(random: &mut StdRng, i: usize) -> Value {
    let mut labels = BTreeMap::from([(NODE, node_named(i))]);
    for key in KEYS {
        if random.random_bool(0.7) {
            labels.insert(key, one(random, &VALUES).to_owned());
        }
    }
    let mut taints = vec![json!({"key": TAINT, "effect": "NoSchedule"})];
    for key in ["t", "u"] {
        if random.random_bool(0.25) {
            let effect = one(random, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
            taints.push(json!({"key": key, "value": one(random, &["1", "5", "x", ""]), "effect": effect}));
        }
    }
    let size = json!({"cpu": "100", "memory": "64Gi", "pods": "110"});
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node_named(i), "labels": labels},
        "spec": {"taints": taints, "unschedulable": i == 0}, "status": {"capacity": size, "allocatable": size}})
}

fn expression(random: &mut StdRng) -> Value {
    let operator = one(random, &["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]);
    let count = match operator {
        "In" | "NotIn" => random.random_range(1..=3),
        "Gt" | "Lt" => 1,
        _ => 0,
    };
    let values: Vec<&str> = (0..count).map(|_| one(random, &VALUES)).collect();
    json!({"key": one(random, &KEYS), "operator": operator, "values": values})
}

/// A term of a node selector, which may be empty.
fn term(random: &mut StdRng) -> Value {
    let expressions: Vec<Value> = (0..random.random_range(0..=2)).map(|_| expression(random)).collect();
    let mut term = json!({"matchExpressions": expressions});
    if random.random_bool(0.2) {
        let operator = one(random, &["In", "NotIn"]);
        let name = node_named(random.random_range(0..3));
        term["matchFields"] = json!([{"key": "metadata.name", "operator": operator, "values": [name]}]);
    }
    term
}

/// A toleration. `numbers`: of operators that compare numbers too.
fn toleration(random: &mut StdRng, numbers: bool) -> Value {
    let operators = ["Exists", "Equal", "Gt", "Lt"];
    let operator = one(random, if numbers { &operators } else { &operators[..2] });
    let key = one(random, &["t", "u", "node.kubernetes.io/unschedulable"]);
    let mut toleration = json!({"key": key, "operator": operator});
    match operator {
        "Exists" if random.random_bool(0.3) => toleration["key"] = json!(""),
        "Exists" => {}
        "Equal" => toleration["value"] = json!(one(random, &["1", "5", "x", ""])),
        _ => toleration["value"] = json!(one(random, &["1", "3", "-7"])),
    }
    let effect = one(random, &["", "NoSchedule", "PreferNoSchedule", "NoExecute"]);
    toleration["effect"] = json!(effect);
    toleration
}

fn pod(name: &str, node: usize, terms: &Value, tolerations: &Value) -> Value {
    let mut tolerations = tolerations.as_array().cloned().unwrap_or_default();
    tolerations.push(json!({"key": TAINT, "operator": "Exists"}));
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeSelector": {NODE: node_named(node)}, "tolerations": tolerations,
        "containers": [{"name": "c", "image": "i"}]}});
    if terms.as_array().is_some_and(|terms| !terms.is_empty()) {
        pod["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
    }
    pod
}

fn random_pod(random: &mut StdRng, i: usize, numbers: bool) -> Value {
    let node = random.random_range(0..NODES);
    let terms: Vec<Value> = (0..random.random_range(0..=2)).map(|_| term(random)).collect();
    let tolerations: Vec<Value> =
        (0..random.random_range(0..=3)).map(|_| toleration(random, numbers)).collect();
    pod(&format!("random-{i}"), node, &json!(terms), &json!(tolerations))
}

/// Pods for a Node whose labels are `a: "10"` and `c: "x"`, and whether they run there.
fn known(node: usize) -> Vec<(Value, bool)> {
    let e = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
    let both = |one: &Value, other: &Value| json!({"matchExpressions": [one["matchExpressions"][0], other["matchExpressions"][0]]});
    let rows = [
        (json!([e("a", "Gt", &["9"])]), true),
        (json!([e("a", "Gt", &["10"])]), false),
        (json!([e("a", "Lt", &["11"])]), true),
        // A bound that is no integer: the term is dropped, whatever else it says, and the others count.
        (json!([e("a", "Gt", &["9.5"])]), false),
        (json!([e("a", "Lt", &["x"])]), false),
        (json!([e("a", "Gt", &["9223372036854775808"])]), false),
        (json!([both(&e("c", "In", &["x"]), &e("none", "Lt", &["1.5"]))]), false),
        (json!([e("a", "Gt", &["9.5"]), e("c", "In", &["x"])]), true),
        // A label that is no integer, or is absent, passes no bound.
        (json!([e("c", "Gt", &["0"])]), false),
        (json!([e("none", "Lt", &["5"])]), false),
        // What is absent is in nothing.
        (json!([e("none", "NotIn", &["x"])]), true),
        (json!([e("none", "NotIn", &[""])]), true),
        (json!([e("none", "In", &[""])]), false),
        (json!([e("c", "NotIn", &["x"])]), false),
        // A term without expressions matches nothing, and another one may.
        (json!([{}]), false),
        (json!([{}, e("c", "Exists", &[])]), true),
    ];
    let pods = rows.into_iter().enumerate();
    pods.map(|(i, (terms, runs))| (pod(&format!("known-{i}"), node, &terms, &json!([])), runs)).collect()
}

fn seen(node: &Node) -> node::Node {
    node::Node::of(&serde_json::to_value(node).unwrap())
}

/// Creates the Nodes, and returns them as the scheduler sees them.
async fn nodes(client: &Client, random: &mut StdRng) -> BTreeMap<String, node::Node> {
    let api: Api<Node> = Api::all(client.clone());
    let mut all: Vec<Value> = (0..NODES).map(|i| node(random, i)).collect();
    let mut plain = node(random, NODES);
    plain["metadata"]["labels"] = json!({NODE: node_named(NODES), "a": "10", "c": "x"});
    plain["spec"]["taints"] = json!([{"key": TAINT, "effect": "NoSchedule"}]);
    all.push(plain);
    for node in &all {
        create(&api, node).await.unwrap();
    }
    eventually("the Nodes are ready", || async {
        let list = api.list(&ListParams::default().labels(NODE)).await.in_words()?;
        let all_seen: BTreeMap<String, node::Node> =
            list.items.iter().map(|node| (node.name_any(), seen(node))).collect();
        let settled = |node: &node::Node| {
            let own = |key: &str| node.taints.iter().any(|taint| taint.key == key);
            !own("node.kubernetes.io/not-ready")
                && own("node.kubernetes.io/unschedulable") == node.unschedulable
        };
        let ready = list.items.iter().all(|node| is_true(node, "Ready"))
            && all_seen.values().all(settled)
            && all_seen.len() == all.len();
        holds(ready, format!("{all_seen:?}")).map(|()| all_seen)
    })
    .await
}

/// Whether the scheduler has bound a Pod; `None` where it hasn't looked at it.
fn verdict(pod: &Pod) -> Option<bool> {
    if !node_of(pod).is_empty() {
        return Some(true);
    }
    let scheduled = condition_of(pod, "PodScheduled");
    (scheduled["status"] == "False" && scheduled["reason"] == "Unschedulable").then_some(false)
}

#[tokio::test]
async fn pods_run_where_selectors_and_tolerations_are_predicted_to_let_them() {
    let o = Outrigger::shared().await;
    let client = &o.plane.infra.client().await;
    o.plane.infra.apply(&[namespace(NAMESPACE)]).unwrap();
    takes_pods(client, NAMESPACE).await;
    let random = &mut StdRng::seed_from_u64(SEED);
    let nodes = nodes(client, random).await;
    let numbers = !o.plane.infra.lacks("TaintTolerationComparisonOperators");
    let mut all: Vec<Value> = (0..PODS).map(|i| random_pod(random, i, numbers)).collect();
    let known = known(NODES);
    all.extend(known.iter().map(|(pod, _)| pod.clone()));
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let made: Vec<kube::Result<Pod>> =
        futures::stream::iter(&all).map(|pod| create(&pods, pod)).buffer_unordered(8).collect().await;
    made.into_iter().for_each(|made| drop(made.unwrap()));
    let real = eventually("the scheduler has looked at each Pod", || async {
        let list = pods.list(&ListParams::default()).await.in_words()?;
        let seen: BTreeMap<String, bool> =
            list.items.iter().filter_map(|pod| Some((pod.name_any(), verdict(pod)?))).collect();
        holds(seen.len() == all.len(), format!("{} of {}", seen.len(), all.len())).map(|()| seen)
    })
    .await;
    let mut wrong = Vec::new();
    for pod in &all {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let node = &nodes[pod["spec"]["nodeSelector"][NODE].as_str().unwrap()];
        let against = obstacles(pod, node);
        if against.is_empty() != real[name] {
            wrong.push(format!("bound: {}, predicted: {against:?}\n  {pod}\n  {node:?}", real[name]));
        }
        if let Some(both) = contradiction(pod).filter(|_| real[name]) {
            wrong.push(format!("bound, and no node at all should match: {both}\n  {pod}"));
        }
    }
    for (pod, runs) in &known {
        if real[pod["metadata"]["name"].as_str().unwrap()] != *runs {
            wrong.push(format!("should be bound: {runs}\n  {pod}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}, seed {SEED}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
    let bound = real.values().filter(|bound| **bound).count();
    assert!(bound > PODS / 5 && bound < PODS, "{bound} of {} are bound", all.len());
    let _ = pods.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default()).await;
    for name in nodes.keys() {
        Api::<Node>::all(client.clone()).delete(name, &DeleteParams::default()).await.unwrap();
    }
}

#[tokio::test]
async fn a_toleration_that_compares_numbers_is_taken_where_the_cluster_has_the_feature() {
    let o = Outrigger::shared().await;
    let client = &o.plane.infra.client().await;
    let ask = async |operator: &str| {
        let tolerations = json!([{"key": "t", "operator": operator, "value": "5", "effect": "NoSchedule"}]);
        dry_run(client, "/api/v1/namespaces/default/pods", &pod("compares", 0, &json!([]), &tolerations))
            .await
    };
    takes_pods(client, "default").await;
    ask("Equal").await.unwrap();
    let lacks = o.plane.infra.lacks("TaintTolerationComparisonOperators");
    for operator in ["Gt", "Lt"] {
        match ask(operator).await {
            Ok(_) => assert!(!lacks, "{operator}"),
            Err(refusal) => {
                assert!(lacks && refusal.contains("spec.tolerations[0].operator"), "{operator}: {refusal}");
            }
        }
    }
}

#[tokio::test]
async fn the_baseline_level_forbids_what_pod_security_admission_forbids() {
    const LEVEL: &str = "beliefs-baseline";
    let o = Outrigger::shared().await;
    let client = &o.plane.infra.client().await;
    let mut level = namespace(LEVEL);
    level["metadata"]["labels"] = json!({"pod-security.kubernetes.io/enforce": "baseline"});
    o.plane.infra.apply(&[level]).unwrap();
    takes_pods(client, LEVEL).await;
    let names =
        ["$TENANT", "$OTHER", "$OWN", "$THEIR", "$NAMESPACE", "$RULE", "$LABEL"].map(|name| (name, "x"));
    let escapes = Escapes::read(Layer::Unit, &names);
    let plain = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let rows: Vec<Value> = escapes
        .pods
        .iter()
        .flat_map(|row| [&row.refused, &row.allowed])
        .map(|row| changed(&plain, row))
        .collect();
    let answers: Vec<_> = futures::stream::iter(&rows)
        .map(async |pod| (pod, dry_run(client, &format!("/api/v1/namespaces/{LEVEL}/pods"), pod).await))
        .buffer_unordered(8)
        .collect()
        .await;
    let mut counts = [0, 0];
    for (pod, answer) in answers {
        let forbids = match &answer {
            Ok(_) => false,
            Err(refusal) if refusal.contains("violates PodSecurity") => true,
            // Whatever else is wrong with a Pod says nothing about the level.
            Err(_) => continue,
        };
        let mut faults = Vec::new();
        baseline(pod, &mut faults);
        // Two rows of docs/security.md are stricter than the level, which takes a Pod that writes down the default of `hostUsers`,
        // and on releases after 1.34 any `procMount` in a user namespace.
        let in_user_namespace = !forbids && pod["spec"]["hostUsers"] == false;
        faults.retain(|fault| {
            fault.path != "spec.hostUsers" && !(in_user_namespace && fault.path.ends_with(".procMount"))
        });
        assert_eq!(!faults.is_empty(), forbids, "{answer:.300?}, predicted: {faults:?}\n  {pod}");
        counts[usize::from(forbids)] += 1;
    }
    assert!(counts.iter().all(|count| *count > 10), "{counts:?} of {}", rows.len());
}

#[tokio::test]
async fn quantities_are_as_much_as_the_api_server_says() {
    let o = Outrigger::shared().await;
    let client = &o.plane.infra.client().await;
    takes_pods(client, "default").await;
    let random = &mut StdRng::seed_from_u64(SEED);
    let mut texts: Vec<String> = (0..150)
        .map(|_| {
            let whole = random.random_range(0..2_000_000_u64) >> random.random_range(0..21_u32);
            let part = ["", ".", ".5", ".25", ".125", ".0001", ".999"].choose(random).unwrap();
            let suffix =
                ["", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "E2", "e-2", "u"].choose(random).unwrap();
            format!("{whole}{part}{suffix}")
        })
        .collect();
    texts.extend(["1.5", "0.5Ki", "1024", "1048576", "1000m", "100e-3", "0"].map(str::to_owned));
    // Of two containers one requests what we say and is limited to the text, and the other one the other way round.
    let container = |name: String, requests: &str, limits: &str| {
        let resources = json!({"requests": {"memory": requests}, "limits": {"memory": limits}});
        json!({"name": name, "image": "i", "resources": resources})
    };
    let both = |(i, text): (usize, &String)| {
        let thousandths = text.parse::<Quantity>().unwrap().ceil_milli().nanos() / 1_000_000;
        let ours = format!("{thousandths}m");
        [container(format!("a{i}"), &ours, text), container(format!("b{i}"), text, &ours)]
    };
    let mut of_all = pod("quantities", 0, &json!([]), &json!([]));
    of_all["spec"]["containers"] = texts.iter().enumerate().flat_map(both).collect();
    let pods = "/api/v1/namespaces/default/pods";
    dry_run(client, pods, &of_all).await.unwrap();
    of_all["spec"]["containers"] = json!([container("c".to_owned(), "1501m", "1.5")]);
    assert!(dry_run(client, pods, &of_all).await.unwrap_err().contains("less than or equal to memory limit"));
}

#[tokio::test]
async fn files_are_read_as_kubectl_reads_them() {
    let o = Outrigger::shared().await;
    let scalars = [
        "on",
        "y",
        "No",
        "OFF",
        "oN",
        "0644",
        "-0644",
        "0o644",
        "0x1F",
        "0b101",
        "08",
        "1_000",
        "_1",
        "+5",
        "0x",
        "1e3",
        "1.",
        ".5",
        "1.5e-3",
        "1:30",
        "2026-01-01",
        "1.2.3",
        "'on'",
        "\"0644\"",
        "!!str 0644",
        "!!int '7'",
        "24.10",
        "x # y",
        "a:b",
    ];
    let data: String = scalars.iter().enumerate().map(|(i, scalar)| format!("  k{i}: {scalar}\n")).collect();
    let head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: beliefs}\n";
    let files = [
        format!("{head}data:\n{data}"),
        format!("\u{feff}{head}data: {{a: b}}\n"),
        format!("{head}data: {{<<: {{a: b, c: d}}, a: e}}\n"),
        format!("{head}data:\n  a: &x >-\n    folded\n    text\n  b: *x\n"),
        format!("{head}data:\n  a: |\n    kept\n\n  b: ''\n"),
    ];
    for file in files {
        let args = ["create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-"];
        let theirs: Value = serde_json::from_str(&o.plane.infra.kubectl_with(&args, &file).unwrap()).unwrap();
        let bounds = Bounds { bytes: 10_000, values: 1_000, depth: 10 };
        let ours = yaml::documents(&file, bounds).unwrap();
        assert_eq!(ours[0]["data"], theirs["data"], "{file}");
    }
}
