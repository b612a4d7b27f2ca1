//! What is written on the nodes of a pool, and that nothing of it stays.

use kube::ResourceExt;
use kube::api::DeleteParams;
use outrigger_core::keys;
use outrigger_tests::{InWords, eventually, holds, merge, until};
use serde_json::{Value, json};

use super::stage::*;

impl Stage {
    fn kubectl(&self, args: &[&str]) {
        self.outrigger.plane.infra.kubectl(args).unwrap();
    }

    async fn change(&self, node: &str, patch: Value) {
        merge(&self.nodes(), &self.name(node), patch).await.unwrap();
    }

    async fn clean(&self, node: &str) {
        self.marks(node, Marks::default()).await;
    }
}

#[tokio::test]
async fn health_and_mode_are_reported_on_the_node() {
    let s = Stage::new("mg-health").await;
    for node in ["a", "b", "m"] {
        s.node(node, 2).await;
    }
    let pool = [("a", "ready", false, "t1"), ("b", "ready", true, "t2"), ("m", "maintenance", false, "t3")];
    let types = [("t1", 0), ("t2", 0), ("t3", 0)];
    s.machine(&pool, &types);
    s.marked("a", "ready", false, "t1").await;
    s.marked("b", "ready", true, "t2").await;
    s.marked("m", "maintenance", false, "t3").await;
    for (node, condition) in [("a", "Healthy"), ("b", "Healthy"), ("m", "Maintenance")] {
        s.condition(node, condition).await;
    }
    // A node that takes no Pods, in label and taint; and back.
    s.outrigger.plane.infra.cordon(&s.name("b"), true);
    s.marked("b", "not-ready", true, "t2").await;
    s.condition("b", "Unhealthy").await;
    s.outrigger.plane.infra.cordon(&s.name("b"), false);
    s.marked("b", "ready", true, "t2").await;
    s.condition("b", "Healthy").await;
    // Others' taints stay where they are.
    s.kubectl(&["taint", "node", &s.name("b"), "example.com/drain=now:PreferNoSchedule"]);
    // From false to true, and back, which in Imperator leaves the taints.
    s.machine(&[("a", "ready", true, "t1"), pool[1], pool[2]], &types);
    s.marked("a", "ready", true, "t1").await;
    s.machine(&[("a", "ready", false, "t1"), ("b", "maintenance", false, "t2"), pool[2]], &types);
    s.marked("a", "ready", false, "t1").await;
    s.marked("b", "maintenance", false, "t2").await;
    // Another type: one label, not two as in Imperator.
    s.machine(&[("a", "ready", true, "t2"), ("b", "ready", true, "t2"), pool[2]], &types);
    s.marked("a", "ready", true, "t2").await;
    let b = s.nodes().get(&s.name("b")).await.unwrap();
    assert!(b.spec.unwrap().taints.unwrap().iter().any(|taint| taint.key == "example.com/drain"));
    // What is changed by hand is put right; in Imperator the annotation never is, nor then anything else.
    s.change("a", json!({"metadata": {"annotations": {keys::MACHINE_GROUP: null}}})).await;
    s.marked("a", "ready", true, "t2").await;
    s.change("a", json!({"metadata": {"annotations": {keys::MACHINE_GROUP: null},
        "labels": {keys::NODE_POOL: "maintenance", "imperator.tenzen-y.io/t2": null}}, "spec": {"taints": []}}))
        .await;
    s.marked("a", "ready", true, "t2").await;
    // A node that leaves is cleaned. Imperator never does.
    s.machine(&pool[1..], &types);
    s.clean("a").await;
    s.marked("b", "ready", true, "t2").await;
}

#[tokio::test]
async fn nothing_stays_when_the_machine_goes() {
    let s = Stage::new("mg-gone").await;
    // No reservation is on the one that is going to be gone: what is left there takes Kubernetes a minute.
    for (node, slots) in [("a", 0), ("b", 2), ("m", 2), ("x", 2)] {
        s.node(node, slots).await;
    }
    s.machine(
        &[
            ("a", "ready", false, "t1"),
            ("b", "ready", true, "t2"),
            ("m", "maintenance", true, "t1"),
            ("x", "ready", true, "t1"),
        ],
        &[("t1", 1), ("t2", 1)],
    );
    s.usage("t1", [1, 1, 0, 0, 1]).await;
    s.marked("x", "ready", true, "t1").await;
    // One of them is gone by then, at which Imperator stops to clean; another has lost its annotation.
    s.nodes().delete(&s.name("a"), &DeleteParams::default()).await.unwrap();
    s.ready("False", "Node \"mg-gone-a\" not found").await;
    s.machines().delete("mg-gone", &DeleteParams::default()).await.unwrap();
    for node in ["b", "m", "x"] {
        s.clean(node).await;
    }
    eventually("everything of it is gone", || async {
        let pool = s.pools().get_opt("mg-gone-node-pool").await.in_words()?;
        let set = s.sets().get_opt("mg-gone-t1").await.in_words()?;
        let service = s.services().get_opt("mg-gone-t2").await.in_words()?;
        let left = s.reservations("t1").await.len();
        holds(pool.is_none() && set.is_none() && service.is_none() && left == 0, format!("{pool:?} {left}"))
    })
    .await;
}

#[tokio::test]
async fn a_missing_node_is_reported_and_holds_up_no_other() {
    let s = Stage::new("mg-missing").await;
    s.node("a", 2).await;
    s.node("b", 2).await;
    s.machine(&[("a", "ready", false, "t"), ("b", "ready", false, "t")], &[("t", 0)]);
    s.marked("a", "ready", false, "t").await;
    // Deleted, which Imperator doesn't notice, and made again.
    s.nodes().delete(&s.name("a"), &DeleteParams::default()).await.unwrap();
    s.condition("a", "Unhealthy").await;
    s.ready("False", "Node \"mg-missing-a\" not found").await;
    s.event("Failure", "Node \"mg-missing-a\" not found").await;
    // The other one is served as ever.
    s.outrigger.plane.infra.cordon(&s.name("b"), true);
    s.marked("b", "not-ready", false, "t").await;
    s.condition("b", "Unhealthy").await;
    s.outrigger.plane.infra.cordon(&s.name("b"), false);
    s.marked("b", "ready", false, "t").await;
    s.node("a", 2).await;
    s.marked("a", "ready", false, "t").await;
    s.condition("a", "Healthy").await;
    s.ready("True", "update status conditions").await;
}

#[tokio::test]
async fn a_node_belongs_to_the_pool_that_had_it_first() {
    let s = Stage::new("mg-first").await;
    s.node("a", 2).await;
    s.node("b", 2).await;
    s.machine(&[("a", "ready", true, "t")], &[("t", 0)]);
    s.marked("a", "ready", true, "t").await;
    // A second pool, past admission. Imperator's write each its own, twenty times a second.
    let entry = |node: &str| json!({"name": s.name(node), "mode": "maintenance", "taint": true, "machineType": [{"name": "u"}]});
    let other = json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "MachineNodePool",
        "metadata": {"name": "mg-second-node-pool"}, "spec": {"machineGroupName": "mg-second",
            "nodePool": [entry("a"), entry("b")], "machineTypeStock": [{"name": "u"}]}});
    s.outrigger.plane.infra.apply(&[other]).unwrap();
    let both = |group: &str, pool: &str, type_: &str| {
        let mut labels = vec![format!("node-pool={pool}"), format!("{type_}={group}")];
        labels.sort();
        let taints = labels.iter().map(|label| format!("{label}:NoSchedule")).collect();
        Marks { annotation: Some(group.to_owned()), labels, taints }
    };
    s.marks("b", both("mg-second", "maintenance", "u")).await;
    until("the second pool says so", &s.pools(), "mg-second-node-pool", |pool| {
        let conditions = pool.status.unwrap_or_default().conditions;
        let message = "Node \"mg-first-a\" is in MachineNodePool mg-first-node-pool already";
        holds(
            conditions.iter().any(|c| c.status == "False" && c.message.contains(message)),
            format!("{conditions:?}"),
        )
    })
    .await;
    let version = async || s.nodes().get(&s.name("a")).await.unwrap().resource_version();
    s.marked("a", "ready", true, "t").await;
    let before = version().await;
    s.ready("True", "update status conditions").await;
    assert_eq!(version().await, before, "nobody fights for it");
    // It changes hands when the first lets it go.
    s.machine(&[], &[("t", 0)]);
    s.marks("a", both("mg-second", "maintenance", "u")).await;
    s.pools().delete("mg-second-node-pool", &DeleteParams::default()).await.unwrap();
    s.clean("a").await;
    s.clean("b").await;
}
