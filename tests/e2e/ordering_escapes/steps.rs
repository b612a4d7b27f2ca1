//! Ways that take several steps.

use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use outrigger_core::keys;
use outrigger_tests::tenant::node_of;
use outrigger_tests::{InWords, always, eventually, held, holds, is_gone, until};
use serde_json::{Value, json};

use super::stage::{APP, Stage, created, gated, ungate};
use crate::e2e::companions_first::{BINDING, pod, scheduled};

/// A claim without devices that says it is that of a Pod's entry.
fn empty(name: &str, entry: &str, owner: &Value) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {}, "metadata": {"name": name,
        "annotations": {keys::POD_CLAIM_NAME: entry}, "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "controller": true}]}})
}

#[tokio::test]
async fn a_claim_without_devices_never_takes_the_place_of_the_pods() {
    let s = Stage::new().await;
    let [ns, resources] = s.paths();
    let claims = format!("{resources}/resourceclaims");
    // The control case: Kubernetes takes such a claim for that of another entry, whatever template the entry names.
    let mut other = gated("other");
    other["metadata"]["labels"]["app"] = json!("other");
    other["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimTemplateName": "absent"}]);
    let other = s.create(&other).await;
    s.edit.ask(&format!("POST {claims}"), &empty("theirs", "gpu", &other)).await.unwrap();
    assert_eq!(s.claim_of("other", "").await, "theirs");

    let waits = s.create(&gated("waits")).await;
    let claim = s.claim_of("waits", "").await;
    s.edit.ask(&format!("DELETE {claims}/{claim}"), &Value::Null).await.unwrap();
    // By the name that the Pod's status has, and by the annotation.
    let mut same = empty(&claim, keys::COMPANIONS_CLAIM, &waits);
    for words in ["metadata.annotations[resource.kubernetes.io/pod-claim-name]", "metadata.name: is "] {
        let refusal = s.edit.ask(&format!("POST {claims}"), &same).await.unwrap_err();
        assert!(refusal.starts_with("403") && refusal.contains(words), "{refusal}");
        same["metadata"]["annotations"] = Value::Null;
    }
    let late = empty("mine", "gpu", &waits);
    s.edit.ask(&format!("POST {claims}"), &late).await.unwrap();
    let ours = json!({"metadata": {"annotations": {keys::POD_CLAIM_NAME: keys::COMPANIONS_CLAIM}}});
    let refusal = s.edit.ask(&format!("PATCH {claims}/mine"), &ours).await.unwrap_err();
    assert!(refusal.contains("is outrigger-companions, for which only Kubernetes"), "{refusal}");
    ungate(&s, "waits").await;
    // Kubernetes' controller may remember a claim that it has made for an hour after somebody has deleted it. Then there is no other
    // one, and the Pod stays where it is.
    always("it isn't bound without a device", Duration::from_secs(2), || async {
        let pod = s.t.work().get("waits").await.in_words()?;
        let bound = !node_of(&pod).is_empty();
        holds(!bound || scheduled(&s.t, "waits").await.1.len() == 1, "it is")
    })
    .await;
    s.edit.ask(&format!("DELETE {ns}/pods/other"), &Value::Null).await.unwrap();
    s.end(&["waits"]).await;
}

#[tokio::test]
async fn a_pod_whose_claim_is_taken_away_by_force_has_no_device() {
    let s = Stage::new().await;
    let [_, resources] = s.paths();
    s.create(&pod("stripped", APP, json!({}))).await;
    scheduled(&s.t, "stripped").await;
    let claim = s.claim_of("stripped", "").await;
    // What Kubernetes keeps it by while a Pod uses it.
    let path = format!("{resources}/resourceclaims/{claim}");
    let none = json!({"metadata": {"finalizers": null, "labels": null}});
    s.edit.ask(&format!("PATCH {path}"), &none).await.unwrap();
    s.edit.ask(&format!("DELETE {path}"), &Value::Null).await.unwrap();
    is_gone(&s.claims(), &claim).await;
    // Whatever Kubernetes makes in its place: a kubelet starts no Pod whose claim isn't allocated.
    let all = s.claims().list(&ListParams::default()).await.unwrap().items;
    let of = |claim: &&ResourceClaim| claim.owner_references().iter().any(|owner| owner.name == "stripped");
    let allocated = |claim: &ResourceClaim| claim.status.as_ref().is_some_and(|of| of.allocation.is_some());
    assert!(!all.iter().filter(of).any(allocated));
    s.end(&["stripped"]).await;
}

#[tokio::test]
async fn a_status_at_creation_a_generated_name_and_a_dry_run_before_change_nothing() {
    let s = Stage::new().await;
    let [ns, _] = s.paths();
    let mut generated = pod("", APP, json!({}));
    generated["metadata"] = json!({"generateName": "generated-", "labels": {"app": APP}});
    let conditions = [keys::COMPANIONS_GATE, "Ready"].map(|kind| json!({"type": kind, "status": "True"}));
    generated["status"] = json!({"phase": "Running", "conditions": conditions});
    s.robot.ask(&format!("POST {ns}/pods?dryRun=All"), &generated).await.unwrap();
    let created = s.robot.ask(&format!("POST {ns}/pods"), &generated).await.unwrap();
    let name = created["metadata"]["name"].as_str().unwrap();
    scheduled(&s.t, name).await;
    s.waits_then_starts(name).await;
    s.end(&[name]).await;
}

#[tokio::test]
async fn a_pod_of_another_scheduler_has_no_device_and_is_not_bound() {
    let s = Stage::new().await;
    s.create(&pod("aside", APP, json!({"schedulerName": "mine"}))).await;
    let claim = s.claim_of("aside", "").await;
    // The control case, which came later.
    s.create(&pod("waits", APP, json!({}))).await;
    scheduled(&s.t, "waits").await;
    let status = s.claims().get(&claim).await.unwrap().status.unwrap_or_default();
    assert_eq!((status.allocation, status.reserved_for), (None, None));
    assert_eq!(node_of(&s.t.work().get("aside").await.unwrap()), "");
    s.waits_then_starts("waits").await;
    s.end(&["aside", "waits"]).await;
}

#[tokio::test]
async fn a_scheduler_of_ones_own_that_binds_a_pod_gives_it_no_device() {
    let s = Stage::new().await;
    created(&s, &pod("bound", APP, json!({"schedulerName": "mine"}))).await;
    let claim = s.claim_of("bound", "").await;
    // By an account that may bind Pods, which the role edit doesn't permit.
    let [ns, _] = s.paths();
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "bound"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": s.t.node("a")}});
    s.admin.ask(&format!("POST {ns}/pods/bound/binding"), &binding).await.unwrap();
    until("it is bound", &s.t.work(), "bound", |pod| holds(!node_of(&pod).is_empty(), "not yet")).await;
    s.has_to_wait("bound").await;
    let status = s.claims().get(&claim).await.unwrap().status.unwrap_or_default();
    assert_eq!(status.allocation, None, "a kubelet starts no Pod whose claim isn't allocated");
    s.end(&["bound"]).await;
}

#[tokio::test]
async fn a_gate_that_the_pods_own_host_opens_is_closed_again() {
    let s = Stage::new().await;
    s.create(&pod("opened", APP, json!({}))).await;
    let (node, _) = scheduled(&s.t, "opened").await;
    s.is_closed("opened").await;
    let host = if node == s.t.node("a") { "a" } else { "b" };
    let [ns, _] = s.paths();
    let open = json!({"status": {"conditions": [
        {"type": keys::COMPANIONS_GATE, "status": "True", "reason": "Mine"}]}});
    let ask = format!("PATCH {ns}/pods/opened/status");
    s.kubelet(host).await.ask(&ask, &open).await.unwrap();
    s.waits_then_starts("opened").await;
    s.end(&["opened"]).await;
}

#[tokio::test]
async fn a_pod_that_waits_to_be_bound_takes_no_weaker_claim() {
    let s = Stage::new().await;
    if s.t.outrigger.plane.tenant.skips(BINDING) {
        return s.end(&[]).await;
    }
    let app = "escape-bind";
    let mut rule = held::rule(app, "BeforeStart");
    rule["ordering"] = json!("BeforeBinding");
    s.t.own_rule(app, rule).await.unwrap();
    let [ns, _] = s.paths();
    let weaker =
        json!([{"name": keys::COMPANIONS_CLAIM, "resourceClaimTemplateName": keys::COMPANIONS_CLAIM}]);
    let weaker = pod("weaker", app, json!({"resourceClaims": weaker}));
    eventually("the weaker claim is refused", || async {
        let answer = s.edit.ask(&format!("POST {ns}/pods?dryRun=All"), &weaker).await;
        let refusal = answer.err().unwrap_or_default();
        holds(refusal.contains("spec.resourceClaims[0].resourceClaimTemplateName: "), refusal)
    })
    .await;
    s.create(&pod("chosen", app, json!({}))).await;
    let claim = s.claim_of("chosen", "").await;
    until("the claim is allocated", &s.claims(), &claim, |claim| {
        holds(claim.status.is_some_and(|status| status.allocation.is_some()), "not yet")
    })
    .await;
    s.is_closed("chosen").await;
    assert_eq!(node_of(&s.t.work().get("chosen").await.unwrap()), "");
    s.go("chosen").await;
    scheduled(&s.t, "chosen").await;
    s.t.own_rules().delete(app, &DeleteParams::default()).await.unwrap();
    s.t.rule_is_gone(app).await;
    s.end(&["chosen"]).await;
}
