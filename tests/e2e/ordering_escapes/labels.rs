//! What an ordering doesn't reach: Pods that no rule matches when they are created, or when they start, and traffic that doesn't ask
//! whether a Pod is Ready. docs/ordering.md says so.

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ListParams};
use outrigger_core::keys;
use outrigger_tests::tenant::is_ready;
use outrigger_tests::{InWords, eventually, holds, until};
use serde_json::json;

use super::stage::{APP, Stage};
use crate::e2e::companions_first::{pod, scheduled};

#[tokio::test]
async fn a_pod_that_gets_its_label_later_has_a_companion_and_does_not_wait_for_it() {
    let s = Stage::new().await;
    let [ns, _] = s.paths();
    s.create(&pod("late", "other", json!({"nodeName": s.t.node("a")}))).await;
    until("it is Ready", &s.t.work(), "late", |pod| holds(is_ready(&pod), "not yet")).await;
    let label = json!({"metadata": {"labels": {"app": APP}}});
    s.edit.ask(&format!("PATCH {ns}/pods/late"), &label).await.unwrap();
    s.go("late").await;
    let late = s.t.work().get("late").await.unwrap();
    let spec = late.spec.clone().unwrap();
    assert_eq!((spec.readiness_gates, spec.resource_claims), (None, None));
    // The control case: where the namespace asks for it, a Pod waits for rules that come later.
    let labels = |value: Option<&str>| {
        json!({"metadata": {"labels": {keys::COMPANIONS_GATE_NAMESPACE: value.map(|_| "true"),
            keys::COMPANIONS_FIRST_NAMESPACE: value.map(|_| keys::REQUIRED)}}})
    };
    let ask = format!("PATCH {ns}");
    s.admin.ask(&ask, &labels(Some(""))).await.unwrap();
    eventually("all Pods of the namespace get gate and claim", || async {
        let tried = s.edit.ask(&format!("POST {ns}/pods?dryRun=All"), &pod("w", "other", json!({}))).await?;
        let claims = &tried["spec"]["resourceClaims"];
        holds(claims[0]["name"] == keys::COMPANIONS_CLAIM, claims.to_string())
    })
    .await;
    s.admin.ask(&ask, &labels(None)).await.unwrap();
    eventually("they no longer do", || async {
        let tried = s.edit.ask(&format!("POST {ns}/pods?dryRun=All"), &pod("w", "other", json!({}))).await?;
        holds(tried["spec"]["resourceClaims"].is_null(), tried["spec"].to_string())
    })
    .await;
    s.end(&["late"]).await;
}

#[tokio::test]
async fn a_pod_that_loses_its_label_waits_for_nothing() {
    let s = Stage::new().await;
    let [ns, _] = s.paths();
    s.create(&pod("lost", APP, json!({}))).await;
    scheduled(&s.t, "lost").await;
    s.has_to_wait("lost").await;
    let label = json!({"metadata": {"labels": {"app": "other"}}});
    s.edit.ask(&format!("PATCH {ns}/pods/lost"), &label).await.unwrap();
    eventually("it starts", || s.start("lost")).await;
    // No companion is left that it could have waited for.
    eventually("its companion is gone", || async {
        let all = s.t.companions().await?;
        holds(all.is_empty(), format!("{} of them", all.len()))
    })
    .await;
    s.end(&["lost"]).await;
}

#[tokio::test]
async fn a_service_can_send_traffic_to_pods_that_are_not_ready() {
    let s = Stage::new().await;
    let [ns, _] = s.paths();
    for (name, publishes) in [("published", true), ("plain", false)] {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"selector": {"app": APP}, "ports": [{"port": 80}], "publishNotReadyAddresses": publishes}});
        s.edit.ask(&format!("POST {ns}/services"), &service).await.unwrap();
    }
    s.create(&pod("waits", APP, json!({}))).await;
    scheduled(&s.t, "waits").await;
    let slices: Api<EndpointSlice> = Api::namespaced(s.t.cluster.clone(), &s.t.source);
    for (name, sent) in [("published", true), ("plain", false)] {
        eventually(&format!("{name} sends traffic: {sent}"), || async {
            let of = ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
            let all = slices.list(&of).await.in_words()?.items;
            let mut endpoints = all.into_iter().flat_map(|slice| slice.endpoints);
            let endpoint = endpoints.next().ok_or("no endpoint")?;
            let ready = endpoint.conditions.and_then(|conditions| conditions.ready);
            holds(ready == Some(sent), format!("{ready:?}"))
        })
        .await;
        s.edit.ask(&format!("DELETE {ns}/services/{name}"), &json!(null)).await.unwrap();
    }
    assert!(!is_ready(&s.t.work().get("waits").await.unwrap()));
    s.end(&["waits"]).await;
}
