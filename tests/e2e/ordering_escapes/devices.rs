//! Ways to take the devices by which other Pods wait.

use outrigger_core::keys;
use outrigger_tests::tenant::node_of;
use outrigger_tests::{InWords, eventually, holds};
use serde_json::{Value, json};

use super::stage::{APP, Stage};
use crate::e2e::companions_first::{pod, scheduled};

#[tokio::test]
async fn a_class_for_all_devices_gets_none_by_which_pods_wait() {
    let s = Stage::new().await;
    let [ns, resources] = s.paths();
    let class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": {"name": "escape-any"}, "spec": {}});
    s.admin.ask("POST /apis/resource.k8s.io/v1/deviceclasses", &class).await.unwrap();
    let selector = json!({"cel": {"expression": format!("device.driver == '{}'", keys::COMPANIONS_DRIVER)}});
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "any"}, "spec": {"devices": {"requests": [{"name": "r",
            "exactly": {"deviceClassName": "escape-any", "count": 3, "selectors": [selector]}}]}}});
    s.edit.ask(&format!("POST {resources}/resourceclaims"), &claim).await.unwrap();
    let taker = json!({"resourceClaims": [{"name": "any", "resourceClaimName": "any"}]});
    s.create(&pod("taker", "other", taker)).await;
    eventually("the scheduler is refused", || async {
        let events = s.admin.ask(&format!("GET {ns}/events"), &Value::Null).await?;
        let all = events["items"].as_array().cloned().unwrap_or_default();
        let of = all.iter().filter(|event| event["involvedObject"]["name"] == "taker");
        let messages: Vec<String> = of.map(|event| event["message"].to_string()).collect();
        let words = "status.allocation.devices.results: has a device of the driver companions.outrigger.dev";
        holds(messages.iter().any(|message| message.contains(words)), format!("{messages:?}"))
    })
    .await;
    assert_eq!(node_of(&s.t.work().get("taker").await.unwrap()), "");
    let status = s.claims().get("any").await.unwrap().status.unwrap_or_default();
    assert_eq!(status.allocation, None);
    // The control case.
    s.create(&pod("waits", APP, json!({}))).await;
    assert_eq!(scheduled(&s.t, "waits").await.1.len(), 1);
    s.waits_then_starts("waits").await;
    s.admin.ask("DELETE /apis/resource.k8s.io/v1/deviceclasses/escape-any", &Value::Null).await.unwrap();
    s.edit.ask(&format!("DELETE {resources}/resourceclaims/any"), &Value::Null).await.unwrap();
    s.end(&["taker", "waits"]).await;
}

#[tokio::test]
async fn a_deployment_takes_no_devices_by_their_extended_resource_nor_by_second_entries() {
    let s = Stage::new().await;
    let [ns, _] = s.paths();
    let apps = ns.replace("/api/v1", "/apis/apps/v1");
    let extended = format!("deviceclass.resource.kubernetes.io/{}", keys::COMPANIONS_DRIVER);
    let container = json!({"name": "c", "image": "i", "resources": {"limits": {extended: "30"}}});
    let second = json!([{"name": "second", "resourceClaimTemplateName": keys::COMPANIONS_CLAIM}]);
    let mut ways =
        vec![("second", json!({"resourceClaims": second}), "second asks for what Outrigger claims")];
    if s.t.outrigger.plane.tenant.has("extended", Some("DRAExtendedResource")) {
        ways.push(("extended", json!({"containers": [container]}), "a container has deviceclass.resource"));
    }
    for (name, spec, words) in &ways {
        let template = pod(name, APP, spec.clone());
        let template = json!({"metadata": {"labels": {"app": APP}}, "spec": template["spec"]});
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": APP}}, "template": template}});
        s.edit.ask(&format!("POST {apps}/deployments"), &deployment).await.unwrap();
        eventually(&format!("{name}: no Pod is created"), || async {
            let found = s.admin.ask(&format!("GET {apps}/deployments/{name}"), &Value::Null).await?;
            let all = found["status"]["conditions"].to_string();
            holds(all.contains("ReplicaFailure") && all.contains(words), all)
        })
        .await;
        s.edit.ask(&format!("DELETE {apps}/deployments/{name}"), &Value::Null).await.unwrap();
    }
    // The control case.
    s.create(&pod("waits", APP, json!({}))).await;
    scheduled(&s.t, "waits").await;
    let all = s.t.work().list(&kube::api::ListParams::default()).await.in_words().unwrap();
    let found: Vec<_> = all.items.iter().filter(|pod| node_of(pod).is_empty()).collect();
    assert!(found.is_empty(), "{found:?}");
    s.end(&["waits"]).await;
}
