//! Why companions have no Node, as the scheduler finds it, in words for the tenant.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, is_ready, rule_for};
use outrigger_tests::{InWords, condition_of, eventually, holds, until};
use serde_json::{Value, json};

/// A rule for the Pods with its name as label.
fn rule(app: &str, spec: &Value, container: &Value) -> Value {
    let mut rule = rule_for("app", app);
    json_patch::merge(&mut rule["template"]["spec"], spec);
    json_patch::merge(&mut rule["template"]["spec"]["containers"][0], container);
    rule
}

/// Reason and message of the condition that the agent writes on a Pod.
fn said(pod: &Pod) -> (String, String) {
    let ours = condition_of(pod, keys::COMPANIONS_CONDITION);
    let text = |field: &str| ours[field].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("message"))
}

/// Types and reasons of the Events about a Pod.
async fn events(t: &Tenant, pod: &str) -> Result<BTreeSet<(String, String)>, String> {
    let all: Api<Event> = Api::namespaced(t.cluster.clone(), &t.source);
    let all = all.list(&ListParams::default()).await.in_words()?.items;
    let about = all.into_iter().filter(|event| event.action.as_deref() == Some("TellCompanions"));
    let about = about.filter(|event| event.regarding.as_ref().and_then(|of| of.name.as_deref()) == Some(pod));
    Ok(about.map(|event| (event.type_.unwrap_or_default(), event.reason.unwrap_or_default())).collect())
}

#[tokio::test]
async fn each_cause_of_the_scheduler_has_its_own_word_and_names_the_part_of_the_template() {
    let t = Tenant::without_agent(Outrigger::shared().await, "unplaced", &[("a", 1), ("b", 1)]).await;
    t.set(json!({"podSecurity": "privileged"})).await.unwrap();
    t.start_agent(&["--report-companions-after=0s".to_owned()]);
    let taint = json!({"spec": {"taints": [
        {"key": keys::TENANT, "value": t.id, "effect": "NoSchedule"}, {"key": "maintenance", "effect": "NoSchedule"}]}});
    let dpu = format!("node/{}-dpu1", t.node("b"));
    t.outrigger.plane.infra.patch(&dpu, &[], &taint).unwrap();
    let apart = json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"nobody": "has"}}}]}}});
    let expression = |key: &str| json!({"key": key, "operator": "In", "values": ["x", "y"]});
    let affinity = |terms: Value| {
        let required = json!({"nodeSelectorTerms": terms});
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
    };
    let port = json!({"ports": [{"containerPort": 80, "hostPort": 8080}]});
    let missing = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "missing"}}]});
    let terms = affinity(json!([{"matchExpressions": [expression("disk"), expression("rack")]}]));
    let greedy = json!({"resources": {"requests": {"cpu": "100000"}}});
    let none = json!({});
    let any = |mut rule: Value| {
        rule["dpuSelectionPolicy"] = json!("Any");
        rule
    };
    t.rule("first", rule("first", &none, &port)).await;
    t.start("first", "a", json!({"app": "first"})).await;
    t.companion().await;
    for (name, spec, host, reason, words) in [
        (
            "model",
            rule("model", &json!({"nodeSelector": {"dpu-model": "bf9"}}), &none),
            "a",
            "NoMatchingDPU",
            "no DPU has nodeSelector dpu-model=bf9",
        ),
        (
            "any",
            any(rule("any", &json!({"nodeSelector": {"dpu-model": "bf9"}}), &none)),
            "a",
            "NoMatchingDPU",
            "no DPU has nodeSelector dpu-model=bf9",
        ),
        ("terms", rule("terms", &terms, &none), "a", "NoMatchingDPU", "node affinity disk In [x, y]"),
        ("greedy", rule("greedy", &none, &greedy), "a", "Unschedulable", "Insufficient cpu"),
        ("port", rule("port", &none, &port), "a", "PortTaken", ""),
        ("missing", rule("missing", &missing, &none), "a", "VolumeUnavailable", ""),
        ("apart", rule("apart", &apart, &none), "a", "PodsApart", ""),
        ("tainted", rule("tainted", &none, &none), "b", "DPUTainted", "the taint is maintenance:NoSchedule"),
    ] {
        t.rule(name, spec).await;
        t.start(name, host, json!({"app": name})).await;
        t.condition_says(name, "Ready", Status::False, reason, &[words]).await;
        until(&format!("the workload says {reason}"), &t.work(), name, |pod| {
            let (found, message) = said(&pod);
            let ours = message.contains(words) && !message.contains("nodes are available");
            holds(found == reason && ours, format!("{found}: {message}"))
        })
        .await;
        eventually(&format!("{reason} is a warning"), || async {
            let events = events(&t, name).await?;
            holds(events.contains(&("Warning".to_owned(), reason.to_owned())), format!("{events:?}"))
        })
        .await;
    }
    // What is asked for appears.
    let label = json!({"metadata": {"labels": {"dpu-model": "bf9"}}});
    t.outrigger.plane.infra.patch(&format!("node/{}-dpu1", t.node("a")), &[], &label).unwrap();
    for rule in ["model", "any"] {
        t.condition(rule, "Ready", Status::True, "AllReady").await;
    }
    let bad = events(&t, "first").await.unwrap().into_iter().filter(|(kind, _)| kind == "Warning");
    assert_eq!(bad.collect::<Vec<_>>(), [], "nothing was wrong with it");
}

#[tokio::test]
async fn progress_is_no_warning() {
    let t = Tenant::without_agent(Outrigger::shared().await, "progress", &[("a", 1)]).await;
    t.start_agent(&["--report-companions-after=0s".to_owned()]);
    let mut rule = rule("web", &json!({}), &json!({}));
    rule["ordering"] = json!("BeforeReady");
    t.rule("r", rule).await;
    t.web("w").await;
    let companion = t.companion().await;
    assert!(is_ready(&companion));
    eventually("the agent says that it is ready", || async {
        let events = events(&t, "w").await?;
        let all_normal = events.iter().all(|(kind, _)| kind == "Normal");
        let ready = events.contains(&("Normal".to_owned(), "Ready".to_owned()));
        // A mistake would stay one.
        assert!(all_normal, "{events:?}");
        holds(ready, format!("{events:?}"))
    })
    .await;
}
