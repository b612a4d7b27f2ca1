//! Rules with a companion on each DPU of a workload's host.

use std::collections::BTreeMap;

use kube::ResourceExt;
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, annotation, dpu, is_ready, node_of, rule_for};
use outrigger_tests::{create, eventually, gate, holds, until};
use serde_json::{Value, json};

/// The uids of the companions by the DPU that each is for. All of them run there.
async fn by_dpu(t: &Tenant, count: usize) -> BTreeMap<String, String> {
    let all = t.ready(count).await;
    let found: BTreeMap<String, String> = all
        .iter()
        .map(|companion| {
            let dpu = annotation(companion, keys::DPU).unwrap().to_owned();
            assert_eq!(node_of(companion), dpu);
            (dpu, companion.uid().unwrap())
        })
        .collect();
    assert_eq!(found.len(), count, "one for each");
    found
}

#[tokio::test]
async fn each_dpu_of_a_host_has_a_companion_and_a_workload_waits_for_all_of_them() {
    let t = Tenant::without_agent(Outrigger::shared().await, "all-dpus", &[("a", 2), ("b", 1)]).await;
    gate::start_agent(&t, &[&t.source], &[]);
    let infra = &t.outrigger.plane.infra;
    let name = |n: usize| format!("{}-dpu{n}", t.node("a"));
    infra.cordon(&name(2), true);
    let mut spec = rule_for("app", "web");
    spec["dpuSelectionPolicy"] = json!("SameNodeAll");
    spec["ordering"] = json!("BeforeReady");
    t.own_rule("r", spec.clone()).await.unwrap();
    let pod = json!({"metadata": {"name": "w", "labels": {"app": "web"}},
        "spec": {"nodeName": t.node("a"), "containers": [{"name": "c", "image": "i"}]}});
    gate::is_added(&t, &pod).await;
    create(&t.work(), &pod).await.unwrap();

    // One of two is not all.
    eventually("a companion on one DPU, and one that waits for the other", || async {
        let all = t.companions().await?;
        let ready: Vec<&str> = all.iter().filter(|pod| is_ready(pod)).map(node_of).collect();
        holds(all.len() == 2 && ready == [name(1)], format!("{} companions, ready on {ready:?}", all.len()))
    })
    .await;
    t.pod_condition("w", keys::COMPANIONS_GATE, Status::False, "DPUNotReady").await;
    assert!(!is_ready(&t.work().get("w").await.unwrap()));
    let said = t.condition("r", "Ready", Status::False, "DPUNotReady").await;
    assert!(said.starts_with("1 of 2 companions are ready"), "{said}");

    infra.cordon(&name(2), false);
    let both = by_dpu(&t, 2).await;
    assert_eq!(both.keys().cloned().collect::<Vec<_>>(), [name(1), name(2)]);
    t.pod_condition("w", keys::COMPANIONS_GATE, Status::True, "Ready").await;
    until("the workload is ready", &t.work(), "w", |pod| holds(is_ready(&pod), "not yet")).await;
    t.condition("r", "Ready", Status::True, "AllReady").await;
    let status = t.rules().get("r").await.unwrap().status.unwrap();
    assert_eq!((status.matched, status.created, status.ready), (Some(1), Some(2), Some(2)));

    // A DPU comes, and goes with its Node; another one is taken out of the host.
    infra.apply(&[dpu(&name(3), &t.node("a"))]).unwrap();
    let three = by_dpu(&t, 3).await;
    assert!(both.iter().all(|(dpu, uid)| three.get(dpu) == Some(uid)), "{both:?} {three:?}");
    infra.kubectl(&["delete", "node", &name(3)]).unwrap();
    assert_eq!(by_dpu(&t, 2).await, both);
    let elsewhere = |host: Value| json!({"metadata": {"labels": {(keys::DPU_HOST): host}}});
    infra.patch(&format!("node/{}", name(2)), &[], &elsewhere(json!(t.node("b")))).unwrap();
    assert_eq!(by_dpu(&t, 1).await.keys().collect::<Vec<_>>(), [&name(1)]);
    t.condition("r", "Ready", Status::True, "AllReady").await;
    infra.patch(&format!("node/{}", name(1)), &[], &elsewhere(Value::Null)).unwrap();
    t.ready(0).await;
    let said = t.condition("r", "Ready", Status::False, "NoDPU").await;
    assert!(said.starts_with("0 of 1 companions are ready"), "{said}");
    infra.patch(&format!("node/{}", name(1)), &[], &elsewhere(json!(t.node("a")))).unwrap();
    by_dpu(&t, 1).await;

    spec["dpuSelectionPolicy"] = json!("SameNode");
    let refused = t.own_rule("r", spec).await.unwrap_err();
    assert!(
        refused.contains("spec.dpuSelectionPolicy") && refused.contains("create another rule"),
        "{refused}"
    );
    t.end("w").await;
    t.ready(0).await;
}
