//! Rules that ask for other amounts of cpu and memory, or for other fields that the API server changes of a running companion. No kubelet acts
//! on it here, so the tests write what one would write; `tests/rack` has a real one.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, annotation, rule_with};
use outrigger_tests::{InWords, eventually, holds};
use serde_json::{Value, json};

/// A rule whose companions ask for so much.
fn asks(resources: Value) -> Value {
    rule_with("/template/spec/containers/0/resources", resources)
}

fn cpu(amount: &str) -> Value {
    asks(json!({"requests": {"cpu": amount}}))
}

/// What a Pod asks for.
fn requested(pod: &Pod) -> Value {
    let resources = pod.spec.as_ref().and_then(|spec| spec.containers[0].resources.as_ref());
    json!(resources.and_then(|resources| resources.requests.as_ref()))
}

/// A kubelet writes this of a companion's only container, and this condition.
async fn kubelet_reports(t: &Tenant, pod: &Pod, resources: &Value, condition: Option<Value>) {
    let mut status = serde_json::to_value(pod.status.as_ref().unwrap()).unwrap();
    status["containerStatuses"][0]["resources"] = resources.clone();
    let condition = condition.map_or(json!([]), |condition| json!([condition]));
    let patch =
        json!({"status": {"containerStatuses": status["containerStatuses"], "conditions": condition}});
    t.pods().patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
}

/// The only companion, once it asks for this and counts as made from the rule's template.
async fn resized(t: &Tenant, wanted: Value) -> Pod {
    let asks = |pod: &Pod, rule: &str| {
        requested(pod) == wanted && annotation(pod, keys::RULE_GENERATION) == Some(rule)
    };
    eventually("the companion has what the rule asks for", || async {
        let rule = t.rules().get("r").await.in_words()?;
        let generation = rule.metadata.generation.unwrap_or_default().to_string();
        let all = t.companions().await?;
        holds(all.len() == 1 && all.iter().all(|pod| asks(pod, &generation)), format!("{all:?}"))
    })
    .await;
    t.companion().await
}

#[tokio::test]
async fn other_amounts_are_given_in_place_and_what_cannot_be_given_is_replaced() {
    let t = Tenant::new(Outrigger::shared().await, "resize", &[("a", 1)]).await;
    t.rule("r", cpu("100m")).await;
    t.web("w").await;
    let before = t.companion().await;
    kubelet_reports(&t, &before, &json!({"requests": {"cpu": "100m"}}), None).await;

    t.rule("r", cpu("200m")).await;
    let after = resized(&t, json!({"cpu": "200m"})).await;
    assert_eq!(after.uid(), before.uid(), "it was not replaced");
    t.condition("r", "Ready", Status::True, "AllReady").await;

    // What a kubelet says of it.
    let has = json!({"requests": {"cpu": "100m"}});
    let pending = |reason: &str| json!({"type": "PodResizePending", "status": "True", "reason": reason, "message": "no room on the node"});
    kubelet_reports(&t, &after, &has, Some(pending("Deferred"))).await;
    let words = format!("{}: ResizeDeferred: no room on the node", after.name_any());
    t.condition_says("r", "Ready", Status::False, "ResizeDeferred", &[&words]).await;
    assert_eq!(t.companion().await.uid(), before.uid(), "it waits");
    kubelet_reports(&t, &after, &has, Some(pending("Infeasible"))).await;
    let second = t.replaced(&before).await;
    assert_eq!(requested(&second), json!({"cpu": "200m"}));

    // A request can't be removed.
    kubelet_reports(&t, &second, &json!({"requests": {"cpu": "200m"}}), None).await;
    t.rule("r", asks(json!({"requests": {"memory": "10Mi"}}))).await;
    let third = t.replaced(&second).await;
    // Another class of quality of service is the API server's to refuse.
    kubelet_reports(&t, &third, &json!({"requests": {"memory": "10Mi"}}), None).await;
    let both = |cpu: &str| {
        let amounts = json!({"cpu": cpu, "memory": "10Mi"});
        json!({"requests": amounts, "limits": amounts})
    };
    t.rule("r", asks(both("100m"))).await;
    let fourth = t.replaced(&third).await;
    // The rule wants it so.
    kubelet_reports(&t, &fourth, &both("100m"), None).await;
    let mut replaces = asks(both("200m"));
    replaces["updateStrategy"] = json!({"rollingUpdate": {"resize": "Replace"}});
    t.rule("r", replaces).await;
    t.replaced(&fourth).await;
}

/// A kubelet says that it runs this as a companion's only container.
async fn runs(t: &Tenant, pod: &Pod, id: &str) {
    let mut containers = serde_json::to_value(&pod.status.as_ref().unwrap().container_statuses).unwrap();
    containers[0]["containerID"] = id.into();
    let patch = json!({"status": {"containerStatuses": containers}});
    t.pods().patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
}

#[tokio::test]
async fn other_fields_change_in_place_where_the_rule_wants_it() {
    let t = Tenant::new(Outrigger::shared().await, "update", &[("a", 1)]).await;
    let asks = |image: &str, tolerations: &[&str], deadline: i64| {
        let tolerations: Vec<_> =
            tolerations.iter().map(|key| json!({"key": key, "operator": "Exists"})).collect();
        let mut spec = rule_with("/template/spec/containers/0/image", json!(image));
        spec["template"]["spec"]["tolerations"] = json!(tolerations);
        spec["template"]["spec"]["activeDeadlineSeconds"] = json!(deadline);
        spec["updateStrategy"] = json!({"rollingUpdate": {"mutableFields": "InPlace"}});
        spec
    };
    let has = |pod: &Pod| {
        let spec = pod.spec.as_ref().unwrap();
        let tolerations = spec.tolerations.iter().flatten().filter_map(|t| t.key.clone());
        let tolerations: Vec<_> = tolerations.filter(|key| key.len() == 1).collect();
        let image = spec.containers[0].image.clone().unwrap_or_default();
        (image, tolerations, spec.active_deadline_seconds.unwrap_or_default())
    };
    let changed = async |image: &str, keys: &[&str], deadline: i64| {
        let rule = t.rule("r", asks(image, keys, deadline)).await;
        let generation = rule.metadata.generation.unwrap_or_default().to_string();
        eventually("the companion has what the rule asks for", || async {
            let now = t.companion().await;
            let is_new = annotation(&now, keys::RULE_GENERATION) == Some(&*generation);
            holds(is_new, format!("{now:?}")).map(|()| now)
        })
        .await
    };
    let expected = |image: &str, keys: &[&str], deadline| {
        (image.to_owned(), keys.iter().map(ToString::to_string).collect::<Vec<_>>(), deadline)
    };
    t.web("w").await;
    let before = changed("i:1", &["p"], 9000).await;
    runs(&t, &before, "x://1").await;

    // Its only container has to be started again, so it counts as down until another one runs.
    let after = changed("i:2", &["p"], 9000).await;
    assert_eq!((after.uid(), has(&after)), (before.uid(), expected("i:2", &["p"], 9000)));
    let words = format!("{}: Updating: container", after.name_any());
    t.condition_says("r", "Ready", Status::False, "Updating", &[&words]).await;
    runs(&t, &after, "x://2").await;
    t.condition("r", "Ready", Status::True, "AllReady").await;
    let after = changed("i:2", &["p", "q"], 8000).await;
    assert_eq!((after.uid(), has(&after)), (before.uid(), expected("i:2", &["p", "q"], 8000)));

    // A deadline doesn't become more, and no toleration is removed.
    let second = changed("i:2", &["p", "q"], 8001).await;
    assert_ne!(second.uid(), before.uid());
    let third = changed("i:2", &["p"], 8001).await;
    assert_ne!(third.uid(), second.uid());
    assert_eq!(has(&third), expected("i:2", &["p"], 8001));
}
