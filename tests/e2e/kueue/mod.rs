//! Pods that wait in a queue, alone or in a group, with Kueue's own controller.

mod stage;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use outrigger_core::keys;
use outrigger_tests::held::go;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, annotation, node_of, rule_for};
use outrigger_tests::{InWords, condition_of, create, dry_run, eventually, holds};
use serde_json::{Value, json};

use self::stage::{Kueue, admits, group_ends, is_not_admitted};
use crate::e2e::before_binding::{has_rule, waiting};
use crate::e2e::companions_first::{enforces, pod, scheduled};

/// The gate that Kueue's webhook gives to Pods.
const GATE: &str = "kueue.x-k8s.io/admission";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn pods_of_queues_and_groups_get_companions_when_they_are_let_go_and_bind_after_them() {
    let o = Outrigger::start().await.unwrap().of_one_test();
    let mut kueue = Kueue::install(*o).await;
    let t = Tenant::without_agent(*o, "queues", &[("a", 1), ("b", 1)]).await;
    enforces(&t, &[("a", "40"), ("b", "40")]).await;
    admits(&t, 0).await;
    queue(&t).await;
    admits(&t, 20).await;
    before_binding_in_a_group(&t, &mut kueue).await;
}

/// A Pod for the queue, perhaps of a group of three.
fn queued(name: &str, app: &str, group: Option<&str>) -> Value {
    let mut queued = pod(name, app, json!({}));
    queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = json!("queue");
    if let Some(group) = group {
        queued["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] = json!(group);
        queued["metadata"]["annotations"] = json!({"kueue.x-k8s.io/pod-group-total-count": "3"});
    }
    queued
}

fn is_held_back(pod: &Pod) -> bool {
    let mut gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
    gates.any(|gate| gate.name == GATE)
}

/// A rule that needs no Node: its companions wait for the queue alone.
async fn queue(t: &Tenant) {
    let mut spec = rule_for("app", "queued");
    spec["dpuSelectionPolicy"] = json!("Any");
    t.own_rule("queued", spec).await.unwrap();
    let single = create(&t.work(), &queued("single", "queued", None)).await.unwrap();
    assert!(is_held_back(&single), "{:?}", single.spec);
    says(t, "queued", "0 of 1 companions are ready; not created until the workload is scheduled: 1").await;
    assert_eq!(t.companions().await.unwrap().len(), 0);
    admits(t, 1).await;
    t.serves(&["single"]).await;
    assert!(!is_held_back(&t.work().get("single").await.unwrap()));

    admits(t, 3).await;
    let names = ["q0", "q1", "q2"];
    for (n, name) in names.iter().enumerate() {
        assert_eq!(t.companions().await.unwrap().len(), 1, "{n} of the group are there");
        assert!(is_held_back(&create(&t.work(), &queued(name, "queued", Some("group"))).await.unwrap()));
    }
    is_not_admitted(t, "group", "insufficient unused quota").await;
    says(t, "queued", "1 of 4 companions are ready; not created until the workload is scheduled: 3").await;
    assert_eq!(t.companions().await.unwrap().len(), 1);
    admits(t, 4).await;
    let served = t.serves(&["q0", "q1", "q2", "single"]).await;
    t.ready(4).await;
    assert_eq!(t.uids().await.unwrap(), served, "none is created twice");
    group_ends(t, "group").await;
    t.serves(&["single"]).await;
    t.end("single").await;
    t.ready(0).await;
}

/// Waits until a rule in the tenant's cluster says this of its companions.
async fn says(t: &Tenant, rule: &str, words: &str) {
    eventually(&format!("{rule} says {words:?}"), || async {
        let ready = condition_of(&t.own_rules().get(rule).await.in_words()?, "Ready");
        holds(ready["message"] == words, ready.to_string())
    })
    .await;
}

/// Asserts that a new Pod has what both webhooks add, each once. Returns the hash by which Kueue tells the roles of a group apart.
fn has_all(created: &Pod) -> Option<&str> {
    let spec = created.spec.as_ref().unwrap();
    let claims = spec.resource_claims.iter().flatten();
    let templates: Vec<_> =
        claims.filter_map(|claim| claim.resource_claim_template_name.as_deref()).collect();
    let gates: Vec<_> = spec.readiness_gates.iter().flatten().map(|gate| &*gate.condition_type).collect();
    assert_eq!(
        (&templates[..], &gates[..]),
        (&[keys::COMPANIONS_BINDING_CLAIM][..], &[keys::COMPANIONS_GATE][..])
    );
    assert!(is_held_back(created), "{spec:?}");
    annotation(created, "kueue.x-k8s.io/role-hash")
}

/// Groups of Kueue whose Pods aren't bound before their companions are ready, with Kueue's webhook after the agent's and before it.
async fn before_binding_in_a_group(t: &Tenant, kueue: &mut Kueue) {
    has_rule(t, "ring").await;
    let names = ["r0", "r1", "r2"];
    for name in names {
        has_all(&create(&t.work(), &queued(name, "ring", Some("first"))).await.unwrap());
    }
    // Kueue admits no claim of a DeviceClass that its configuration doesn't name, and says which.
    is_not_admitted(t, "first", "DeviceClass binding.companions.outrigger.dev is not mapped").await;
    assert_eq!(t.companions().await.unwrap().len(), 0);
    kueue.counts_claims().await;
    bound_in_turn(t, &names).await;
    let after = t.work().get("r0").await.unwrap();
    group_ends(t, "first").await;
    t.ready(0).await;

    // Configurations are called in the order of their names, and this is the name of the shipped one.
    let cluster = &t.outrigger.plane.tenant;
    let name = format!("gate-{}", t.id);
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    let mut gate = cluster.read(&format!("{path}/{name}")).unwrap();
    gate["metadata"] = json!({"name": "outrigger-gate"});
    cluster.apply(&[gate]).unwrap();
    cluster.kubectl(&["delete", "mutatingwebhookconfiguration", &name]).unwrap();
    eventually("Kueue's webhook is called first", || async {
        let created = dry_run(&t.work(), &queued("w", "ring", Some("second"))).await.in_words()?;
        let hash = has_all(&created);
        // The hash is of the claims too, and isn't computed again.
        holds(hash.is_some() && hash != annotation(&after, "kueue.x-k8s.io/role-hash"), format!("{hash:?}"))
    })
    .await;
    let names = ["s0", "s1", "s2"];
    for name in names {
        has_all(&create(&t.work(), &queued(name, "ring", Some("second"))).await.unwrap());
    }
    bound_in_turn(t, &names).await;
    group_ends(t, "second").await;
    t.ready(0).await;
}

/// Lets one companion after the other become ready: each lets its Pod be bound, and no other.
async fn bound_in_turn(t: &Tenant, names: &[&str]) {
    let companions = waiting(t, names, &[]).await;
    for (n, name) in names.iter().enumerate() {
        go(t, &companions[*name]);
        let (node, _) = scheduled(t, name).await;
        assert_eq!(annotation(&companions[*name], keys::HOST), Some(&*node), "{name}");
        for other in &names[n + 1..] {
            assert_eq!(node_of(&t.work().get(other).await.unwrap()), "", "{other} has to wait");
        }
    }
    let uids: BTreeMap<_, _> =
        companions.into_iter().map(|(name, pod)| (name, pod.uid().unwrap_or_default())).collect();
    assert_eq!(t.uids().await.unwrap(), uids, "none is created again");
}
