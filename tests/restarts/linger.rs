//! Companions that outlive their workloads, and managers that don't.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use outrigger_core::keys;
use outrigger_tests::tenant::{Tenant, annotation, rule_with};
use outrigger_tests::{eventually, holds};
use serde_json::json;
use std::time::{Duration, SystemTime};

use crate::restarts::alone;

#[tokio::test]
async fn the_time_of_a_lingering_companion_goes_on_while_managers_are_killed_and_replaced() {
    let (_one, o) = alone().await;
    let t = Tenant::new(o, "linger", &[("a", 1)]).await;
    t.rule("r", rule_with("/lingerSeconds", json!(45))).await;
    t.web("w").await;
    t.web("stays").await;
    t.ready(2).await;
    t.end("w").await;
    let record = || async {
        let all = t.companions().await?;
        let of_w = all.iter().find(|pod| annotation(pod, "workload-name") == Some("w"));
        let of_w = of_w.ok_or_else(|| "it is gone".to_owned())?;
        let ended = annotation(of_w, keys::WORKLOAD_ENDED).ok_or_else(|| "no record".to_owned())?;
        Ok::<_, String>((of_w.uid(), ended.to_owned()))
    };
    let before = eventually("the end is recorded", record).await;
    o.plane.command("stop manager").unwrap();
    assert_eq!(record().await.unwrap(), before);
    o.plane.command("start manager").unwrap();
    o.ready().await;
    // Another manager takes the tenant over.
    let (port, _) = o.another_manager("manager-linger", &[]).await;
    o.plane.command("stop agent-linger").unwrap();
    let stream = t.opens_stream_at(port, t.on_a(&["stays"])).await;
    assert_eq!(record().await.unwrap(), before, "the record stays as it was written");
    let ended: Timestamp = before.1.parse().unwrap();
    eventually("it is deleted", || async {
        let left = t.companions().await?.into_iter().any(|pod| pod.uid() == before.0);
        holds(!left, "it is there")
    })
    .await;
    let lived = SystemTime::now().duration_since(ended.into()).unwrap();
    assert!(lived >= Duration::from_secs(45), "it was deleted after {lived:?}");
    drop(stream);
    o.plane.command("term manager-linger").unwrap();
}
