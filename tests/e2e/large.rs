//! Objects near the API server's limit of 3 MiB for a request: a review of a change has such an object twice.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use outrigger_api::Tenant as Object;
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, namespace, rule_for, takes_pods, tenant, tenant_is};
use outrigger_tests::{InWords, create, eventually, holds, is_gone, merge, refusal};
use serde_json::{Map, Value, json};

/// Characters of a long value. etcd takes objects of 1.5 MiB, in which each takes a byte.
const LONG: usize = 1_400_000;

/// A Pod that is never scheduled, is kept by a finalizer, and has a long value of this character.
fn pod(name: &str, character: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"version": "1"}, "finalizers": ["example.com/kept"]},
        "spec": {"schedulingGates": [{"name": "example.com/wait"}],
            "containers": [{"name": "c", "image": "i", "env": [{"name": "LONG", "value": character.repeat(LONG)}]}]}})
}

async fn change(pods: &Api<Pod>, name: &str, patch: Value) -> Result<(), String> {
    let began = Instant::now();
    let result = merge(pods, name, patch).await.map(drop).map_err(|error| format!("{error:.500}"));
    println!("{name}: answered after {:.1?}: {result:?}", began.elapsed());
    result
}

/// They are older than the tenant: nobody can create such Pods in a tenant's namespace.
#[tokio::test]
async fn pods_of_three_mebibytes_are_changed_or_refused_with_the_limit_and_can_always_go() {
    let o = Outrigger::shared().await;
    let client = o.plane.infra.client().await;
    let name = "lg-old";
    o.plane.infra.apply(&[namespace(name)]).unwrap();
    takes_pods(&client, name).await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), name);
    // JSON has two characters for a line feed, and the API server writes six for `<` into a review.
    for (name, character) in [("doubled", "\n"), ("escaped", "<")] {
        create(&pods, &pod(name, character)).await.unwrap();
    }
    o.plane.infra.kubectl(&["label", "namespace", name, &format!("{}=lg", keys::TENANT)]).unwrap();
    o.plane.infra.apply(&[tenant("lg", json!({"namespace": name}))]).unwrap();
    let tenants: Api<Object> = Api::all(client);
    tenant_is(&tenants, "lg", "Ready", Status::True, "Served").await;
    let error = create(&pods, &pod("new", "x")).await.unwrap_err().to_string();
    assert!(error.contains("the Pod has more than 576 KiB"), "{error}");

    // 2.8 MB twice are within the bounds of a review: a Pod that doesn't grow may be changed, one that grows is refused.
    let other = json!({"metadata": {"labels": {"version": "2"}}});
    eventually("it is changed", || change(&pods, "doubled", other.clone())).await;
    let error = refusal(|| change(&pods, "doubled", json!({"metadata": {"labels": {"more": "x"}}}))).await;
    assert!(error.contains("the Pod has more than 576 KiB"), "{error}");
    // 8.4 MB twice are not.
    let error = refusal(|| change(&pods, "escaped", other.clone())).await;
    assert!(
        error.contains("pod-updates.outrigger.dev") && error.contains("bytes of JSON, at most 8388608"),
        "{error}"
    );

    for name in ["doubled", "escaped"] {
        pods.delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
        change(&pods, name, json!({"metadata": {"finalizers": null}})).await.unwrap();
        is_gone(&pods, name).await;
    }
}

#[tokio::test]
async fn a_rule_of_three_mebibytes_is_refused_though_failures_are_ignored() {
    let t = Tenant::with_rule_only(Outrigger::shared().await, "lg-rule").await;
    let before = t.rules().get("r").await.unwrap().spec;
    for bytes in [1_400_000, 2_900_000] {
        let mut spec = rule_for("app", "web");
        spec["template"]["spec"]["containers"][0]["args"] = json!(["x".repeat(bytes)]);
        let error = t.try_rule("r", spec).await.unwrap_err();
        assert!(error.contains("spec.template") && error.contains("at most 524288"), "{error}");
    }
    assert_eq!(t.rules().get("r").await.unwrap().spec, before);
}

#[tokio::test]
async fn a_pod_that_grows_too_large_keeps_its_companion() {
    let (t, companion) = Tenant::with_companion(Outrigger::shared().await, "la-grows").await;
    let kept = BTreeMap::from([("w".to_owned(), companion.uid().unwrap())]);
    // The rule no longer matches, but this isn't sent.
    let mut labels: Map<String, Value> = (0..6000).map(|i| (format!("l{i}"), json!(""))).collect();
    labels.insert("app".to_owned(), json!("other"));
    t.change("w", json!({"metadata": {"labels": labels}})).await;
    eventually("the Pod says that it is too large", || async {
        let status = t.work().get("w").await.in_words()?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let said = conditions.iter().any(|c| c.reason.as_deref() == Some("LimitReached"));
        holds(said, format!("{conditions:?}"))
    })
    .await;
    t.keeps(&kept, Duration::from_secs(2)).await;
    // After a restart the agent has never seen its former state.
    t.outrigger.plane.command(&format!("restart agent-{}", t.id)).unwrap();
    t.web("after").await;
    let served = t.serves(&["after", "w"]).await;
    assert_eq!(served["w"], kept["w"]);
    let gone: Map<String, Value> = (0..6000).map(|i| (format!("l{i}"), Value::Null)).collect();
    t.change("w", json!({"metadata": {"labels": gone}})).await;
    t.serves(&["after"]).await;
}
