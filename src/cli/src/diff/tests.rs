use clap::Parser;
use outrigger_core::keys;
use serde_json::{Value, json};

use super::*;
use crate::document::Readable;

#[derive(Debug, Parser)]
struct Wrapper {
    #[command(flatten)]
    args: DiffArgs,
}

fn objects(values: &[Value]) -> Vec<files::Object> {
    let mut all = Vec::new();
    let text: String = values.iter().map(ToString::to_string).collect();
    files::parse("f", &text, outrigger_core::yaml::OF_FILES, &mut all).unwrap();
    all
}

fn diff(state: &[Value], new: &[Value], flags: &[&str]) -> Result<Value, String> {
    let args = Wrapper::try_parse_from([&["diff", "-f", "-"], flags].concat()).unwrap().args;
    let state = State::new(objects(state));
    let report =
        args.of(&state, Source::files("--state"), &objects(new)).map_err(|error| error.to_string())?;
    // What is printed is no part of the assertions here, but it must not fail.
    report.document().text(&mut std::io::sink()).unwrap();
    Ok(serde_json::to_value(&report).unwrap())
}

/// `CHANGE workload` of each companion, in the order of these texts.
fn changes(report: &Value) -> Vec<String> {
    let all = report["companions"].as_array().unwrap().iter();
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let all = all.map(|entry| format!("{} {}", text(entry, "change"), text(entry, "workload")));
    let mut all: Vec<String> = all.collect();
    all.sort();
    all
}

fn rule(name: &str, app: &str) -> Value {
    json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
        "metadata": {"name": name, "namespace": "tenant-blue"},
        "spec": {
            "workloadTerms": [{"matchExpressions": [{"key": ".state.extra.labels.app", "operator": "In", "values": [app]}]}],
            "workloadInfoInject": [{"workloadKey": ".state.nodeName", "asAnnotation": {"name": "node"}}],
            "template": {"apiVersion": "v1", "kind": "Pod",
                "spec": {"containers": [{"name": "c", "image": "i:1"}]}}}})
}

fn with(mut rule: Value, pointer: &str, value: Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    rule.pointer_mut(parent).unwrap()[field] = value;
    rule
}

/// A rule for all workloads.
fn for_all(rule: Value) -> Value {
    let expressions = json!([{"key": ".state.extra.labels.app", "operator": "Exists"}]);
    with(rule, "/spec/workloadTerms/0/matchExpressions", expressions)
}

fn tenant(id: &str, hosts: Value) -> Value {
    json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": id},
        "spec": {"hosts": hosts}})
}

fn pod(namespace: &str, name: &str, app: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": app}},
        "spec": {"nodeName": node, "containers": []}})
}

/// A companion of the rule `r` that exists, for the workload with this label value.
fn companion(name: &str, workload: &str, annotations: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": name, "namespace": "tenant-blue", "uid": "x", "labels": {keys::WORKLOAD: workload},
            "annotations": annotations,
            "ownerReferences": [{"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
                "name": "r", "uid": "", "controller": true}]},
        "spec": {"containers": []}})
}

/// Tenant blue with two hosts, a DPU in each, a workload of each app, one on each host, and another tenant.
fn state(more: &[Value]) -> Vec<Value> {
    let dpu = |host: &str| {
        json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": format!("{host}-dpu"), "labels": {keys::DPU_HOST: host}}})
    };
    let mut all = vec![
        tenant("blue", json!(["a", "b"])),
        tenant("red", json!(["c"])),
        dpu("a"),
        dpu("b"),
        dpu("c"),
        pod("shop", "web", "web", "a"),
        pod("shop", "db", "db", "b"),
    ];
    all.extend_from_slice(more);
    all
}

#[test]
fn it_ends_when_nobody_waits_any_longer() {
    let args = Wrapper::try_parse_from(["diff", "-f", "-"]).unwrap().args;
    let (state, new) = (State::new(objects(&state(&[]))), objects(&[rule("r", "web")]));
    assert!(args.of(&state, Source::files("--state"), &new).is_ok());
    args.stop.cancel();
    let error = args.of(&state, Source::files("--state"), &new).unwrap_err();
    assert_eq!(error.to_string(), "diff: nobody waits for the answer");
}

#[test]
fn each_kind_of_change() {
    let old = || rule("r", "web");
    let image = |rule| with(rule, "/spec/template/spec/containers/0/image", json!("i:2"));
    let amounts =
        |rule| with(rule, "/spec/template/spec/containers/0/resources", json!({"requests": {"cpu": "1"}}));
    let in_place =
        |rule| with(rule, "/spec/updateStrategy", json!({"rollingUpdate": {"mutableFields": "InPlace"}}));
    let on_delete = |rule| with(rule, "/spec/updateStrategy", json!({"type": "OnDelete"}));
    let another = json!([{"asAnnotation": {"name": "all"}}]);
    for (state_rules, new, expected) in [
        (vec![], old(), &["Created shop/web"][..]),
        (vec![old()], old(), &[]),
        (vec![old()], image(old()), &["Replaced shop/web"]),
        (vec![old()], amounts(old()), &["Resized shop/web"]),
        (vec![old()], image(amounts(old())), &["Replaced shop/web"]),
        (vec![old()], in_place(image(old())), &["Updated shop/web"]),
        (vec![old()], in_place(image(amounts(old()))), &["Updated shop/web"]),
        (vec![old()], in_place(amounts(old())), &["Resized shop/web"]),
        (vec![old()], on_delete(image(old())), &["Outdated shop/web"]),
        (vec![old()], on_delete(amounts(old())), &["Outdated shop/web"]),
        (vec![old()], with(old(), "/spec/workloadInfoInject", another), &["Annotated shop/web"]),
        (vec![old()], with(old(), "/spec/dpuSelectionPolicy", json!("Any")), &["Replaced shop/web"]),
        // Of a workload that no longer matches, and of one that does now.
        (vec![old()], rule("r", "db"), &["Created shop/db", "Deleted shop/web"]),
        // Another rule's companions aren't concerned.
        (vec![rule("other", "db")], old(), &["Created shop/web"]),
    ] {
        let report = diff(&state(&state_rules), std::slice::from_ref(&new), &[]).unwrap();
        assert_eq!(changes(&report), expected, "{new}");
    }
}

#[test]
fn new_companions_have_the_nodes_that_they_fit() {
    let nodes = |new: Value| {
        let report = diff(&state(&[]), &[new], &[]).unwrap();
        assert_eq!(report["rules"][0]["warnings"], json!([]));
        (report["companions"][0]["nodes"].clone(), report["companions"][0].get("problem").cloned())
    };
    assert_eq!(nodes(rule("r", "web")), (json!(["a-dpu"]), None));
    let any = with(rule("r", "web"), "/spec/dpuSelectionPolicy", json!("Any"));
    assert_eq!(nodes(any), (json!(["a-dpu", "b-dpu"]), None), "and not another tenant's");
    let nowhere = with(rule("r", "web"), "/spec/template/spec/nodeSelector", json!({"x": "y"}));
    assert_eq!(nodes(nowhere), (json!([]), Some(json!("no DPU of host a will do"))));
}

#[test]
fn each_dpu_of_the_host_has_a_companion_of_its_own() {
    let second = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "a-dpu2", "labels": {keys::DPU_HOST: "a"}}});
    let all = with(rule("r", "web"), "/spec/dpuSelectionPolicy", json!("SameNodeAll"));
    let report = diff(&state(std::slice::from_ref(&second)), std::slice::from_ref(&all), &[]).unwrap();
    assert_eq!(changes(&report), ["Created shop/web", "Created shop/web"]);
    let nodes: Vec<&Value> = report["companions"].as_array().unwrap().iter().map(|of| &of["nodes"]).collect();
    assert_eq!(nodes, [&json!(["a-dpu"]), &json!(["a-dpu2"])]);
    let image = with(all.clone(), "/spec/template/spec/containers/0/image", json!("i:2"));
    let report = diff(&state(&[second, all]), &[image], &[]).unwrap();
    assert_eq!(changes(&report), ["Replaced shop/web", "Replaced shop/web"]);
}

#[test]
fn a_refused_rule_changes_nothing() {
    let escaping = with(rule("r", "web"), "/spec/template/spec/hostPID", json!(true));
    let report = diff(&state(&[rule("r", "web")]), &[escaping], &[]).unwrap();
    assert_eq!(report["rules"][0]["change"], "Refused");
    assert_eq!(report["rules"][0]["errors"][0]["path"], "spec.template.spec.hostPID");
    assert_eq!(report["companions"], json!([]));
}

#[test]
fn pruning_deletes_the_rules_that_are_not_given() {
    let state = state(&[rule("r", "web"), rule("s", "db")]);
    let report = diff(&state, &[rule("r", "web")], &["--prune"]).unwrap();
    assert_eq!(changes(&report), ["Deleted shop/db"]);
    assert_eq!(report["companions"][0]["reason"], "RuleDeleted");
    assert_eq!(changes(&diff(&state, &[rule("r", "web")], &[]).unwrap()), [""; 0]);
}

#[test]
fn companions_of_the_state_are_taken_as_they_are() {
    // The one that exists is of no workload, which isn't the change's doing unless the rule is another.
    let state = state(&[rule("r", "web"), companion("x", "gone", json!({}))]);
    assert_eq!(changes(&diff(&state, &[rule("r", "web")], &[]).unwrap()), [""; 0]);
    let report = diff(&state, &[rule("r", "db")], &[]).unwrap();
    assert_eq!(changes(&report), ["Created shop/db", "Deleted gone"]);
}

#[test]
fn only_annotations_that_are_sent_are_injected() {
    let annotated =
        with(pod("shop", "web", "web", "a"), "/metadata/annotations", json!({"example.com/a": "1"}));
    let whole = json!([{"asAnnotation": {"name": "all"}}]);
    let state = state(&[with(rule("r", "web"), "/spec/workloadInfoInject", whole), annotated]);
    let expressions = json!([{"key": ".state.extra.annotations['example.com/a']", "operator": "Exists"}]);
    let naming = with(rule("s", "-"), "/spec/workloadTerms/0/matchExpressions", expressions);
    let found = |flags: &[&str]| changes(&diff(&state, std::slice::from_ref(&naming), flags).unwrap());
    // From now on the agent sends the annotation, and so it is among the facts of the other rule's companion.
    assert_eq!(found(&[]), ["Annotated shop/web", "Created shop/web"]);
    assert_eq!(found(&["--send-annotation", "example.com/*"]), ["Created shop/web"]);
}

#[test]
fn inputs_that_cannot_be_compared_are_errors() {
    let elsewhere = with(rule("r", "web"), "/metadata/namespace", json!("tenant-red"));
    for (new, flags, expected) in [
        (vec![], &[][..], "--state: has several tenants"),
        (
            vec![elsewhere, rule("r", "web")],
            &["--tenant", "blue"],
            "is in tenant-red, the namespace of another",
        ),
        (
            vec![json!({"apiVersion": "v1", "kind": "Pod"})],
            &["--tenant", "blue"],
            "--filename: has no WorkloadRule",
        ),
    ] {
        let error = diff(&state(&[]), &new, flags).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

mod admin;
mod attributes;
mod linger;
mod quotas;
mod slots;
