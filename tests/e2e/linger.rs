//! Companions that outlive their workloads.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, admin_rule, annotation, is_ready, rule_with};
use outrigger_tests::{InWords, eventually, merge_status};
use serde_json::{Value, json};

fn lingers(seconds: u64) -> Value {
    rule_with("/lingerSeconds", json!(seconds))
}

/// Waits until the one companion has the recorded end of its workload, or has none, and returns it.
async fn marked(t: &Tenant, wanted: bool) -> Pod {
    eventually(&format!("a companion with a record: {wanted}"), || async {
        let mut all = t.companions().await?;
        let is = all.first().is_some_and(|pod| annotation(pod, keys::WORKLOAD_ENDED).is_some());
        if all.len() == 1 && is == wanted {
            return Ok(all.remove(0));
        }
        Err(format!("{:?}", all.iter().map(ResourceExt::annotations).collect::<Vec<_>>()))
    })
    .await
}

#[tokio::test]
async fn a_companion_outlives_its_workload_and_goes_when_its_time_is_over() {
    let t = Tenant::new(Outrigger::shared().await, "lg-due", &[("a", 1)]).await;
    // Time enough for a slow machine to see it linger.
    t.own_rule("r", lingers(20)).await.unwrap();
    t.web("w").await;
    let before = t.companion().await;
    assert_eq!(annotation(&before, keys::WORKLOAD_ENDED), None);
    t.end("w").await;
    let after = marked(&t, true).await;
    assert_eq!(after.uid(), before.uid());
    let ended: Timestamp = annotation(&after, keys::WORKLOAD_ENDED).unwrap().parse().unwrap();
    t.condition_says("r", "Ready", Status::True, "NoMatch", &["1 more companion outlives its workload"])
        .await;
    t.ready(0).await;
    let lived = SystemTime::now().duration_since(ended.into()).unwrap();
    assert!(lived.as_secs() >= 20, "it was deleted after {lived:?}");
    // A workload that has succeeded has ended too.
    let pod = t.web("done").await;
    let before = t.companion().await;
    merge_status(&t.work(), &pod.name_any(), json!({"phase": "Succeeded"})).await.unwrap();
    assert_eq!(marked(&t, true).await.uid(), before.uid());
}

#[tokio::test]
async fn a_workload_that_returns_keeps_its_companion_and_a_rule_that_changes_or_goes_ends_it() {
    let t = Tenant::without_agent(Outrigger::shared().await, "lg-back", &[("a", 1)]).await;
    t.rule("r", lingers(3600)).await;
    let stream = t.opens_stream(t.on_a(&["w"])).await;
    let before = t.companion().await;
    t.sync(&stream, &[]).await;
    assert_eq!(marked(&t, true).await.uid(), before.uid());
    t.sync(&stream, &["w"]).await;
    assert_eq!(marked(&t, false).await.uid(), before.uid());
    // A workload of the same rule that is another one has a companion of its own.
    t.sync(&stream, &["v"]).await;
    t.has("one lingers beside another one", 1, 2, |pod| annotation(pod, keys::WORKLOAD_ENDED).is_some())
        .await;
    // One that has never been ready wouldn't stay.
    t.ready(2).await;
    t.sync(&stream, &[]).await;
    t.has("both linger", 2, 2, |pod| annotation(pod, keys::WORKLOAD_ENDED).is_some()).await;
    t.rule("r", lingers(0)).await;
    t.ready(0).await;

    t.rule("r", lingers(3600)).await;
    t.sync(&stream, &["w"]).await;
    t.companion().await;
    t.sync(&stream, &[]).await;
    marked(&t, true).await;
    t.rules().delete("r", &DeleteParams::default()).await.unwrap();
    t.ready(0).await;
}

#[tokio::test]
async fn a_companion_of_the_platform_outlives_its_workload() {
    let t = Tenant::new(Outrigger::shared().await, "lg-admin", &[("a", 1)]).await;
    let name = "lg-admin-rule";
    let apply = |seconds: u64| {
        let mut spec = lingers(seconds);
        spec["tenantSelector"] = json!({"matchLabels": {keys::TENANT: t.id}});
        t.outrigger.plane.infra.apply(&[admin_rule("universe", name, spec)]).unwrap();
    };
    let pods: Api<Pod> = Api::namespaced(t.infra.clone(), "universe");
    let there = async |what: &str, wanted: usize, marked: bool| {
        eventually(what, || async {
            let labels = format!("{}={name}", keys::RULE);
            let mut all = pods.list(&ListParams::default().labels(&labels)).await.in_words()?.items;
            all.retain(|pod| pod.metadata.deletion_timestamp.is_none());
            // Only what has been ready lingers.
            let is = |pod: &Pod| is_ready(pod) && annotation(pod, keys::WORKLOAD_ENDED).is_some() == marked;
            let are = all.iter().all(is);
            let uids: Vec<_> = all.iter().map(ResourceExt::uid).collect();
            if all.len() == wanted && are { Ok(uids) } else { Err(format!("{uids:?}")) }
        })
        .await
    };
    apply(3600);
    t.web("w").await;
    let before = there("there is a companion", 1, false).await;
    t.end("w").await;
    assert_eq!(there("it lingers", 1, true).await, before);
    apply(1);
    there("its time is over", 0, true).await;
    t.outrigger.plane.infra.kubectl(&["delete", "awr", name, "-n", "universe", "--timeout=90s"]).unwrap();
}
