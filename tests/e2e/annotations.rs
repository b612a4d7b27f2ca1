//! Annotations of workloads that no rule of the tenant's cluster names: rules of the platform, and rules that are created in the
//! infrastructure cluster, decide by them as far as the tenant has its agent send them, and otherwise take them for unknown.

use std::collections::BTreeSet;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use outrigger_api::AdminWorkloadRule;
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_proto::v1::AnnotationKeys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::stream::update;
use outrigger_tests::tenant::{Tenant, admin_rule, annotation, event, template};
use outrigger_tests::{InWords, condition_of, create, eventually, holds, until};
use serde_json::{Value, json};

/// Where admin rules and their companions are.
const UNIVERSE: &str = "universe";
const OPT_OUT: &str = "example.com/opt-out";

/// A rule for workloads labeled with its name that haven't opted out.
fn spec(name: &str, operator: &str) -> Value {
    let values = if operator == "NotIn" { json!(["true"]) } else { json!([]) };
    let key = format!(".state.extra.annotations['{OPT_OUT}']");
    json!({"dpuSelectionPolicy": "Any",
        "workloadTerms": [{"matchExpressions": [
            {"key": ".state.extra.labels.rule", "operator": "In", "values": [name]},
            {"key": key, "operator": operator, "values": values}]}],
        "workloadInfoInject": [{"workloadKey": ".metadata.resourceName", "asAnnotation": {"name": "workload-name"}}],
        "template": template()})
}

/// Creates a rule of the platform for the workloads of one tenant.
async fn platform(t: &Tenant, name: &str, operator: &str) {
    platform_rule(t, name, spec(name, operator)).await;
}

async fn platform_rule(t: &Tenant, name: &str, mut spec: Value) {
    spec["tenantSelector"] = json!({"matchLabels": {keys::TENANT: t.id}});
    let rules: Api<AdminWorkloadRule> = Api::namespaced(t.infra.clone(), UNIVERSE);
    let rule = serde_json::from_value(admin_rule(UNIVERSE, name, spec)).unwrap();
    rules.create(&PostParams::default(), &rule).await.unwrap();
}

async fn delete(t: &Tenant, name: &str) {
    let rules: Api<AdminWorkloadRule> = Api::namespaced(t.infra.clone(), UNIVERSE);
    rules.delete(name, &DeleteParams::default()).await.unwrap();
}

/// Starts two Pods for a rule, of which one has opted out.
async fn pods(t: &Tenant, rule: &str) {
    for (name, annotations) in [("in", json!({})), ("out", json!({OPT_OUT: "true"}))] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("{rule}-{name}"), "labels": {"rule": rule}, "annotations": annotations},
            "spec": {"nodeName": t.node("a"), "containers": [{"name": "c", "image": "app"}]}});
        create(&t.work(), &pod).await.unwrap();
    }
}

/// Waits until just these workloads have a companion of a rule.
async fn serves(pods: &Api<Pod>, rule: &str, names: &[&str]) {
    let labels = ListParams::default().labels(&format!("{}={rule}", keys::RULE));
    eventually(&format!("companions of {rule} for {names:?}"), || async {
        let all = pods.list(&labels).await.in_words()?.items;
        let there = all.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let found: BTreeSet<&str> = there.filter_map(|pod| annotation(pod, "workload-name")).collect();
        holds(found.iter().eq(names), format!("{found:?}"))
    })
    .await;
}

/// The version of all Pods of a namespace.
async fn version(pods: &Api<Pod>) -> String {
    let list = pods.list(&ListParams::default().limit(1)).await.unwrap();
    list.metadata.resource_version.unwrap()
}

/// The workloads for which companions of a rule have been created since this version.
async fn created(pods: &Api<Pod>, rule: &str, since: &str) -> BTreeSet<String> {
    let watch = WatchParams::default().labels(&format!("{}={rule}", keys::RULE)).timeout(1);
    let events = pods.watch(&watch, since).await.unwrap().collect::<Vec<_>>().await;
    let added = events.into_iter().filter_map(|event| match event.unwrap() {
        WatchEvent::Added(pod) => annotation(&pod, "workload-name").map(str::to_owned),
        _ => None,
    });
    added.collect()
}

fn universe(t: &Tenant) -> Api<Pod> {
    Api::namespaced(t.infra.clone(), UNIVERSE)
}

async fn matched(t: &Tenant, rule: &str, reason: &str) -> String {
    let rules: Api<AdminWorkloadRule> = Api::namespaced(t.infra.clone(), UNIVERSE);
    until(&format!("{rule}: Matched is {reason}"), &rules, rule, |rule| {
        let found = condition_of(&rule, "Matched");
        let message = found["message"].as_str().unwrap_or_default().to_owned();
        holds(found["reason"] == reason, found.to_string()).map(|()| message)
    })
    .await
}

#[tokio::test]
async fn a_pod_that_has_opted_out_by_an_annotation_gets_no_companion_of_the_platform() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "an-allows", &[("a", 1)]).await;
    t.start_agent(&["--allow-annotation=example.com/*".to_owned()]);
    for (rule, operator) in [("an-not-in", "NotIn"), ("an-absent", "DoesNotExist")] {
        // The Pods are known before anybody asks for the annotation.
        pods(&t, rule).await;
        let (not, absent) = (format!("{rule}-out"), format!("{rule}-in"));
        let before = version(&universe(&t)).await;
        platform(&t, rule, operator).await;
        serves(&universe(&t), rule, &[&absent]).await;
        assert_eq!(
            matched(&t, rule, "Matches").await,
            "1 workloads match, of 1 of the 1 tenants that it is about"
        );
        // Not even until the agent had said that it sends the annotation.
        assert_eq!(created(&universe(&t), rule, &before).await, BTreeSet::from([absent.clone()]));
        // It changes its mind, and the other one too.
        t.change(&not, json!({"metadata": {"annotations": {OPT_OUT: null}}})).await;
        t.change(&absent, json!({"metadata": {"annotations": {OPT_OUT: "true"}}})).await;
        serves(&universe(&t), rule, &[&not]).await;
        delete(&t, rule).await;
    }
}

#[tokio::test]
async fn an_annotation_that_the_agent_does_not_send_keeps_no_companion_of_the_platform_away() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "an-withholds", &[("a", 1)]).await;
    t.start_agent(&["--allow-annotation=example.com/other".to_owned()]);
    for (rule, operator) in [("an-hidden", "NotIn"), ("an-hidden-too", "DoesNotExist")] {
        pods(&t, rule).await;
        platform(&t, rule, operator).await;
        let both = ["in", "out"].map(|name| format!("{rule}-{name}"));
        serves(&universe(&t), rule, &[&both[0], &both[1]]).await;
        let message = matched(&t, rule, "AnnotationsNotSent").await;
        for words in ["of tenant an-withholds", OPT_OUT, "--allow-annotation", "workloads have a companion"] {
            assert!(message.contains(words), "{message}");
        }
    }
    // A rule of the tenant's cluster names the annotation: it is sent for that, and decides for all rules.
    t.own_rule("own", spec("an-own", "Exists")).await.unwrap();
    serves(&universe(&t), "an-hidden", &["an-hidden-in"]).await;
    matched(&t, "an-hidden", "Matches").await;
    for rule in ["an-hidden", "an-hidden-too"] {
        delete(&t, rule).await;
    }
}

#[tokio::test]
async fn where_an_unknown_annotation_decides_a_rule_of_the_tenant_makes_and_deletes_nothing() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "an-undecided", &[("a", 1)]).await;
    // Said in an agent's place, of a client that says what it sends.
    let workload = |name: &str, labels: &str, keys: Option<AnnotationKeys>| {
        let mut update = update(name, &t.node("a"));
        let state = update.workload_state.as_mut().unwrap();
        state.extra.get_mut("labels").unwrap().data.insert("rule".into(), labels.into());
        update.annotation_keys = keys;
        update
    };
    let says = |sent: &[&str], withheld: &[&str]| {
        let texts = |keys: &[&str]| keys.iter().map(ToString::to_string).collect();
        Some(AnnotationKeys { sent: texts(sent), withheld: texts(withheld) })
    };
    t.rule("an-rule", spec("an-rule", "NotIn")).await;
    let (stream, _stream) = t.opens_stream([workload("first", "an-rule", says(&["*"], &[]))]).await;
    serves(&t.pods(), "an-rule", &["first"]).await;
    let message = outrigger_proto::v1::workload_stream_request::Message::WorkloadUpdate;
    // From now on it isn't sent: the companion stays, and the next workload gets none.
    stream.send(message(workload("second", "an-rule", says(&[], &[OPT_OUT])))).await.unwrap();
    let words =
        ["doesn't send annotations", OPT_OUT, "nothing is made and nothing deleted", "--allow-annotation"];
    t.condition_says("an-rule", "Synced", Status::Unknown, "AnnotationsNotSent", &words).await;
    assert!(event(&t.infra, &t.namespace, "AnnotationsNotSent").await.contains(OPT_OUT));
    // A rule that doesn't need the annotation is served meanwhile, as the last of all.
    let mut other = spec("an-rule", "NotIn");
    other["workloadTerms"][0]["matchExpressions"].as_array_mut().unwrap().pop();
    t.rule("an-other", other).await;
    serves(&t.pods(), "an-other", &["first", "second"]).await;
    serves(&t.pods(), "an-rule", &["first"]).await;
    // It is sent again.
    stream.send(message(workload("second", "an-rule", says(&["example.com/*"], &[])))).await.unwrap();
    serves(&t.pods(), "an-rule", &["first", "second"]).await;
    t.condition("an-rule", "Synced", Status::True, "StreamConnected").await;
}

/// Waits until the gate of a Pod is shut for this reason, or open.
async fn gate_is(t: &Tenant, pod: &str, shut: Option<&str>) {
    until(&format!("the gate of {pod}: {shut:?}"), &t.work(), pod, |pod| {
        let gate = condition_of(&pod, keys::COMPANIONS_GATE);
        let as_expected = match shut {
            Some(reason) => gate["status"] == "False" && gate["reason"] == reason,
            None => gate["status"] == "True",
        };
        holds(as_expected, gate.to_string())
    })
    .await;
}

#[tokio::test]
async fn a_gate_stays_shut_until_the_companion_exists_of_which_an_unknown_annotation_decides() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "an-gate", &[("a", 1)]).await;
    t.start_agent(&[]);
    let mut before_ready = spec("an-gate", "NotIn");
    before_ready["ordering"] = json!("BeforeReady");
    let dpu = t.node("a-dpu1");
    o.plane.infra.cordon(&dpu, true);
    // For a rule of the platform there is to be a companion, and the Pod waits for it.
    platform_rule(&t, "an-gate", before_ready.clone()).await;
    let pod = json!({"metadata": {"name": "gated", "labels": {"rule": "an-gate"}}, "spec": {"nodeName": t.node("a"),
        "readinessGates": [{"conditionType": keys::COMPANIONS_GATE}], "containers": [{"name": "c", "image": "app"}]}});
    create(&t.work(), &pod).await.unwrap();
    serves(&universe(&t), "an-gate", &["gated"]).await;
    matched(&t, "an-gate", "AnnotationsNotSent").await;
    gate_is(&t, "gated", Some("Unschedulable")).await;
    o.plane.infra.cordon(&dpu, false);
    gate_is(&t, "gated", None).await;
    // For a rule of the tenant that is created in the infrastructure cluster it isn't decided whether there is to be one.
    t.rule("an-own", before_ready).await;
    gate_is(&t, "gated", Some("AnnotationsNotSent")).await;
    serves(&t.pods(), "an-own", &[]).await;
    t.own_rule("names-it", spec("another", "Exists")).await.unwrap();
    serves(&t.pods(), "an-own", &["gated"]).await;
    gate_is(&t, "gated", None).await;
    delete(&t, "an-gate").await;
}
