//! Machines: reservations hold slots, guests take their places. Imperator's cases of its controllers, by their meaning;
//! where it does what nobody can have wanted, a comment says so.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use outrigger_core::keys;
use outrigger_tests::tenant::{namespace, node_of};
use outrigger_tests::{InWords, create, eventually, holds, merge, merge_status, root, until};
use serde_json::{Value, json};

mod gpus;
mod injectors;
mod nodes;
mod stage;

use stage::*;

#[tokio::test]
async fn a_machine_gets_a_pool_reservations_and_services() {
    let s = Stage::new("mg-made").await;
    s.node("n1", 4).await;
    s.node("n2", 4).await;
    s.machine(
        &[("n1", "ready", false, "t1"), ("n2", "ready", true, "t2")],
        &[("t1", 2), ("t2", 1), ("unused", 1)],
    );
    s.usage("t1", [2, 2, 0, 0, 2]).await;
    s.usage("t2", [1, 1, 0, 0, 1]).await;
    // A type that no node serves: nothing is reserved, and its Service is there.
    s.usage("unused", [1, 0, 0, 0, 0]).await;
    s.ready("True", "update status conditions").await;
    s.replicas("t1", 2).await;
    s.replicas("t2", 1).await;
    assert!(s.sets().get_opt("mg-made-unused").await.unwrap().is_none());
    let machine = s.machines().get("mg-made").await.unwrap();
    let controlled = |owners: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference]| {
        owners.len() == 1
            && owners[0].controller == Some(true)
            && Some(&owners[0].uid) == machine.uid().as_ref()
    };
    let pool = s.pools().get("mg-made-node-pool").await.unwrap();
    assert!(controlled(pool.owner_references()));
    assert_eq!(pool.spec.machine_group_name, "mg-made");
    assert_eq!(pool.spec.node_pool, machine.spec.node_pool);
    let stock: Vec<&str> = pool.spec.machine_type_stock.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(stock, ["t1", "t2", "unused"]);
    assert_eq!(pool.finalizers(), [keys::POOL_FINALIZER]);
    for name in ["t1", "t2", "unused"] {
        let service = s.services().get(&format!("mg-made-{name}")).await.unwrap();
        assert!(controlled(service.owner_references()));
        let spec = service.spec.unwrap();
        assert_eq!((spec.type_.as_deref(), spec.ports.unwrap()[0].port), (Some("ClusterIP"), 80));
        assert_eq!(spec.selector.unwrap()[keys::MACHINE_TYPE], name);
    }
    s.marked("n1", "ready", false, "t1").await;
    s.marked("n2", "ready", true, "t2").await;
    let reservations = s.reservations("t2").await;
    let spec = reservations[0].spec.clone().unwrap();
    assert_eq!((node_of(&reservations[0]), spec.priority), ("mg-made-n2", Some(-9)));
    assert_eq!(spec.automount_service_account_token, Some(false));
    assert!(reservations[0].metadata.owner_references.as_ref().unwrap()[0].kind == "StatefulSet");
    let table = s.outrigger.plane.infra.kubectl(&["get", "machines", "mg-made"]).unwrap();
    assert!(table.contains("mg-made") && table.contains("True"), "{table}");
}

/// Every number of slots that the status of a Machine has said, in turn.
fn follow_slots(s: &Stage, type_: &'static str) -> Arc<Mutex<Vec<u32>>> {
    let said = Arc::new(Mutex::new(Vec::new()));
    let sink = said.clone();
    let config = watcher::Config::default().fields(&format!("metadata.name={}", s.group));
    let stream = watcher::watcher(s.machines(), config).applied_objects();
    tokio::spawn(async move {
        let mut stream = std::pin::pin!(stream);
        while let Ok(Some(machine)) = stream.try_next().await {
            let all = machine.status.unwrap_or_default().available_machines;
            if let Some(slots) = all.iter().find(|m| m.name == type_).and_then(|m| m.usage.slots) {
                sink.lock().unwrap().push(slots);
            }
        }
    });
    said
}

#[tokio::test]
async fn guests_take_the_places_of_reservations_and_the_slots_stay() {
    let s = Stage::new("mg-burst").await;
    s.node("n1", 4).await;
    s.node("n2", 4).await;
    s.machine(&[("n1", "ready", true, "t"), ("n2", "ready", true, "t")], &[("t", 8)]);
    s.usage("t", [8, 8, 0, 0, 8]).await;
    let said = follow_slots(&s, "t");
    futures::stream::iter(0..8)
        .for_each_concurrent(8, |i| {
            let s = &s;
            async move { drop(s.guest(&format!("g{i}"), "t").await) }
        })
        .await;
    s.usage("t", [8, 0, 8, 0, 8]).await;
    s.replicas("t", 0).await;
    for i in 0..5 {
        s.end(&format!("g{i}")).await;
    }
    s.usage("t", [8, 5, 3, 0, 8]).await;
    for i in 0..4 {
        drop(s.guest(&format!("h{i}"), "t").await);
    }
    s.usage("t", [8, 1, 7, 0, 8]).await;
    let said: BTreeSet<u32> = said.lock().unwrap().iter().copied().collect();
    assert_eq!(said, BTreeSet::from([8]));
}

#[tokio::test]
async fn guests_with_gates_hold_nothing_and_only_one_of_them_gets_the_slot() {
    let s = Stage::new("mg-gate").await;
    s.node("n1", 2).await;
    s.machine(&[("n1", "ready", true, "t")], &[("t", 1)]);
    s.usage("t", [1, 1, 0, 0, 1]).await;
    let let_go = async |name: &str| {
        let patched = merge(&s.guests(), name, json!({"spec": {"schedulingGates": null}})).await;
        patched.map(drop).in_words()
    };
    for name in ["a", "b"] {
        let mut gated = guest(s.group, name, "t");
        gated["spec"]["schedulingGates"] = json!([{"name": "example.com/queue"}]);
        s.admit(gated).await;
    }
    // The reservation stays: nothing else may take the place that neither of them has yet.
    s.usage("t", [1, 1, 0, 2, 1]).await;
    s.replicas("t", 1).await;
    let (a, b) = tokio::join!(let_go("a"), let_go("b"));
    let (first, second) = if a.is_ok() { ("a", "b") } else { ("b", "a") };
    let refusal = a.and(b).unwrap_err();
    assert!(refusal.contains("there is no <t> left"), "{refusal}");
    s.usage("t", [1, 0, 1, 1, 1]).await;
    let machine = s.machines().get(s.group).await.unwrap();
    assert_eq!(machine.status.unwrap().available_machines[0].usage.gated, 1);
    assert!(let_go(second).await.unwrap_err().contains("there is no <t> left"));
    s.end(first).await;
    eventually("the other one is let go", || let_go(second)).await;
    s.usage("t", [1, 0, 1, 0, 1]).await;
}

#[tokio::test]
async fn a_machine_says_that_the_program_of_its_reservations_ends() {
    let s = Stage::new("mg-ends").await;
    s.node("n1", 1).await;
    s.machine(&[("n1", "ready", true, "t")], &[("t", 1)]);
    s.usage("t", [1, 1, 0, 0, 1]).await;
    s.ready("True", "update status conditions").await;
    let pods: Api<Pod> = Api::namespaced(s.client.clone(), keys::CORE_NAMESPACE);
    let say = async |state: Value| {
        let container = json!({"name": "sleeper", "image": "i", "imageID": "", "ready": false, "restartCount": 1, "state": state});
        merge_status(&pods, "mg-ends-t-0", json!({"containerStatuses": [container]})).await.unwrap();
    };
    say(json!({"waiting": {"reason": "CrashLoopBackOff"}})).await;
    s.ready("False", "mg-ends-t: its reservations don't run (CrashLoop)").await;
    say(json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}})).await;
    s.ready("True", "update status conditions").await;
}

#[tokio::test]
async fn what_finds_no_place_is_left_out_until_there_is_one() {
    let s = Stage::new("mg-short").await;
    s.node("n1", 2).await;
    s.machine(&[("n1", "ready", false, "t")], &[("t", 3)]);
    s.usage("t", [3, 2, 0, 0, 2]).await;
    s.replicas("t", 2).await;
    s.event("NoRoom", "1 of 3 slots of machine type t find no place").await;
    // What `check` expects of the node is what the scheduler finds.
    let node = s.name("n1");
    let objects = format!("machines.imperator.tenzen-y.io/{}", s.group);
    let objects = s.outrigger.plane.infra.get(&[&objects, &format!("node/{node}")]).unwrap();
    let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    std::fs::write(file.path(), objects.to_string()).unwrap();
    let checked = s.outrigger.output(&["check", "-f", file.path().to_str().unwrap()]).unwrap();
    let printed = String::from_utf8_lossy(&checked.stdout);
    let expected = "available: is 3; the 1 Node of its group that \"t\" may use holds 2";
    assert!(printed.contains(expected) && printed.contains("machine-capacity"), "{printed}");
    s.ready("True", "").await;
    // A guest takes one of the two. Its leaving makes no more room than there was.
    s.guest("g", "t").await;
    s.usage("t", [3, 1, 1, 0, 2]).await;
    s.end("g").await;
    s.usage("t", [3, 2, 0, 0, 2]).await;
    s.node("n2", 2).await;
    s.machine(&[("n1", "ready", false, "t"), ("n2", "ready", false, "t")], &[("t", 3)]);
    s.usage("t", [3, 3, 0, 0, 3]).await;
    s.replicas("t", 3).await;
}

#[tokio::test]
async fn a_guest_holds_its_slot_whatever_becomes_of_its_containers() {
    let s = Stage::new("mg-states").await;
    s.node("n1", 2).await;
    s.machine(&[("n1", "ready", false, "t")], &[("t", 2)]);
    s.usage("t", [2, 2, 0, 0, 2]).await;
    // One that no node fits: it waits.
    let mut lost = guest("mg-states", "lost", "t");
    lost["spec"]["nodeSelector"] = json!({"nowhere": "x"});
    s.admit(lost).await;
    s.usage("t", [2, 1, 0, 1, 2]).await;
    s.replicas("t", 1).await;
    s.end("lost").await;
    s.usage("t", [2, 2, 0, 0, 2]).await;
    s.guest("g", "t").await;
    s.usage("t", [2, 1, 1, 0, 2]).await;
    // Imperator gives its slot away now: it counts guests whose containers are ready, and starting ones.
    s.say("g", json!({"conditions": [{"type": "ContainersReady", "status": "False"}]})).await;
    s.say("g", json!({"phase": "Unknown"})).await;
    s.usage("t", [2, 1, 1, 0, 2]).await;
    s.replicas("t", 1).await;
    // The slot is free when it has ended.
    s.say("g", json!({"phase": "Succeeded"})).await;
    s.usage("t", [2, 2, 0, 0, 2]).await;
    s.replicas("t", 2).await;
    // A guest in a namespace without the label counts as nothing, nor does what calls itself a reservation; Imperator counts
    // the latter in any namespace.
    let plain = namespace("mg-states-plain");
    s.outrigger.plane.infra.apply(&[plain]).unwrap();
    let pods: Api<Pod> = Api::namespaced(s.client.clone(), "mg-states-plain");
    for (name, role) in [("guest", keys::GUEST), ("forged", keys::RESERVATION)] {
        let mut pod = guest("mg-states-plain", name, "t");
        pod["metadata"]["labels"] =
            json!({keys::MACHINE_GROUP: "mg-states", keys::MACHINE_TYPE: "t", keys::POD_ROLE: role});
        pod["spec"] = json!({"nodeName": s.name("n1"), "containers": [{"name": "c", "image": "i"}]});
        eventually("it is taken", || async { create(&pods, &pod).await }).await;
    }
    eventually("both run", || async {
        let all = pods.list(&Default::default()).await.in_words()?.items;
        let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
        holds(all.iter().all(|pod| phase(pod).as_deref() == Some("Running")), String::new())
    })
    .await;
    // Whatever they had changed would be seen with this.
    s.machine(&[("n1", "ready", false, "t")], &[("t", 2), ("last", 0)]);
    s.usage("last", [0, 0, 0, 0, 0]).await;
    s.usage("t", [2, 2, 0, 0, 2]).await;
}

#[tokio::test]
async fn reservations_follow_the_machine_and_are_put_right() {
    let s = Stage::new("mg-edit").await;
    s.node("n1", 8).await;
    let pool = [("n1", "ready", false, "t1")];
    s.machine(&pool, &[("t1", 2)]);
    s.usage("t1", [2, 2, 0, 0, 2]).await;
    for available in [5, 0, 2] {
        s.machine(&pool, &[("t1", available)]);
        s.replicas("t1", i32::try_from(available).unwrap()).await;
        s.usage("t1", [available, available, 0, 0, available]).await;
    }
    let uid = s.replicas("t1", 2).await.uid();
    let scale = ["scale", "statefulset/mg-edit-t1", "-n", keys::CORE_NAMESPACE, "--replicas=9"];
    s.outrigger.plane.infra.kubectl(&scale).unwrap();
    s.replicas("t1", 2).await;
    s.sets().delete("mg-edit-t1", &DeleteParams::default()).await.unwrap();
    s.services().delete("mg-edit-t1", &DeleteParams::default()).await.unwrap();
    eventually("they are back", || async {
        let set = s.sets().get("mg-edit-t1").await.in_words()?;
        s.services().get("mg-edit-t1").await.in_words()?;
        if set.uid() == uid { Err("the old one".to_owned()) } else { Ok(()) }
    })
    .await;
    s.usage("t1", [2, 2, 0, 0, 2]).await;
    // The size of a slot changes: reservations follow.
    let size = json!([{"op": "replace", "path": "/spec/machineTypes/0/spec", "value": {"cpu": "2", "memory": "1Gi"}}]);
    let params = PatchParams::default();
    let patch: Patch<Value> = Patch::Json(serde_json::from_value(size).unwrap());
    s.machines().patch("mg-edit", &params, &patch).await.unwrap();
    until("reservations are larger", &s.sets(), "mg-edit-t1", |set| {
        let resources = set.spec.unwrap().template.spec.unwrap().containers[0].resources.clone().unwrap();
        let found = serde_json::to_value(resources.limits).unwrap();
        holds(found == json!({"cpu": "2", "memory": "1Gi"}), found.to_string())
    })
    .await;
    // A type that goes takes its objects along. Imperator leaves the StatefulSet.
    s.machine(&[("n1", "ready", false, "t2")], &[("t2", 1)]);
    s.usage("t2", [1, 1, 0, 0, 1]).await;
    eventually("the old ones are gone", || async {
        let set = s.sets().get_opt("mg-edit-t1").await.in_words()?;
        let service = s.services().get_opt("mg-edit-t1").await.in_words()?;
        holds(set.is_none() && service.is_none(), "there")
    })
    .await;
    s.marked("n1", "ready", false, "t2").await;
}

#[tokio::test]
async fn a_statefulset_that_cannot_become_ours_is_replaced() {
    let s = Stage::new("mg-old").await;
    s.node("n1", 2).await;
    // As Imperator makes them, for a Machine that is there already.
    let labels =
        json!({keys::MACHINE_GROUP: "mg-old", keys::MACHINE_TYPE: "t", keys::POD_ROLE: keys::RESERVATION});
    let old = json!({"apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "mg-old-t", "namespace": keys::CORE_NAMESPACE, "labels": labels},
        "spec": {"replicas": 1, "serviceName": "mg-old-t", "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels}, "spec": {"containers": [{"name": "sleeper", "image": "alpine",
                "command": ["sleep"], "args": ["infinity"]}]}}}});
    s.outrigger.plane.infra.apply(&[old]).unwrap();
    s.machine(&[("n1", "ready", false, "t")], &[("t", 2)]);
    s.usage("t", [2, 2, 0, 0, 2]).await;
    let set = s.replicas("t", 2).await.spec.unwrap();
    assert_eq!(set.pod_management_policy.as_deref(), Some("Parallel"));
    assert_eq!(set.template.spec.unwrap().containers[0].command, None);
}

#[tokio::test]
async fn what_is_applied_is_what_is_shipped() {
    let text = std::fs::read_to_string(root().join("deploy/base/machines/rbac.yaml")).unwrap();
    let class = serde_yaml::Deserializer::from_str(&text)
        .map(|document| serde::Deserialize::deserialize(document).unwrap())
        .find(|object: &Value| object["kind"] == "PriorityClass")
        .unwrap();
    assert_eq!(class["metadata"]["name"], keys::RESERVATION_PRIORITY);
    // Below Pods that say nothing, and not expendable to the cluster autoscaler.
    let value = class["value"].as_i64().unwrap();
    assert!((-10..0).contains(&value), "{value}");
}
