//! The agent's webhook for readiness gates: what strangers and large Pods do to the agent, and to the tenant's cluster.

use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use outrigger_core::keys;
use outrigger_runtime::tls::ClientTls;
use outrigger_tests::attacks::{flood, hold, occupy};
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, rule_with};
use outrigger_tests::{InWords, dry_run, eventually, gate, holds};
use serde_json::{Value, json};

use crate::abuse::{alone, is_modest};

fn pod(args: usize) -> Value {
    json!({"metadata": {"generateName": "p-", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "i", "args": vec!["a"; args]}]}})
}

/// Whether a Pod would get the gate.
async fn is_gated(pods: &Api<Pod>, pod: &Value) -> Result<bool, String> {
    let spec = dry_run(pods, pod).await.in_words()?.spec.unwrap_or_default();
    Ok(spec.readiness_gates.iter().flatten().any(|gate| gate.condition_type == keys::COMPANIONS_GATE))
}

/// Waits until a new Pod gets the gate.
async fn gets_the_gate(pods: &Api<Pod>) {
    eventually("a Pod gets the gate", || async { holds(is_gated(pods, &pod(1)).await?, "none") }).await;
}

/// A tenant with a rule that waits, whose agent has the gate and ends with it. Returns the gate's port too, and the Pods that it is asked about.
async fn gated(o: &'static Outrigger, id: &str, flags: &[String]) -> (Tenant, u16, Api<Pod>) {
    let t = Tenant::without_agent(o, id, &[("a", 1)]).await;
    let port = gate::start_agent(&t, &[&t.source], flags);
    t.own_rule("fw", rule_with("/ordering", json!("BeforeReady"))).await.unwrap();
    let pods = t.work();
    gets_the_gate(&pods).await;
    (t, port, pods)
}

#[tokio::test]
async fn a_flood_of_the_agents_gate_takes_bounded_memory() {
    let _alone = alone().await;
    let o = Outrigger::shared().await;
    let (_tenant, port, pods) = gated(o, "ab-gate", &[]).await;
    let argument = format!("--gate-address=127.0.0.1:{port}");

    // Bodies that never end. Meanwhile every Pod is created, with the gate or without.
    let stranger = ClientTls { ca: o.authority.file(), identity: None };
    let mut attack = Vec::new();
    for _ in 0..20 {
        attack.push(hold(&stranger, port, "/gate/pods").await.unwrap());
        is_gated(&pods, &pod(1)).await.unwrap();
    }
    is_modest("agent", &argument);
    drop(attack);
    gets_the_gate(&pods).await;

    // More than a review may have: these Pods are refused, because without the gate they would wait for nothing. The next one gets it.
    let large = pod(110_000);
    for answer in futures::future::join_all((0..8).map(|_| is_gated(&pods, &large))).await {
        let refusal = answer.unwrap_err();
        assert!(refusal.contains("at most 100000"), "{refusal}");
    }
    // As much as it may have, many at once.
    let most = pod(90_000);
    for answer in futures::future::join_all((0..16).map(|_| is_gated(&pods, &most))).await {
        answer.unwrap();
    }
    gets_the_gate(&pods).await;
    is_modest("agent", &argument);
}

/// Two Pods hold nearly all of its connections, and three others open new ones all the time. Each new client has its answer:
/// the API server opens a connection whenever it has none.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_keep_nobody_from_the_agents_gate() {
    let _alone = alone().await;
    let o = Outrigger::shared().await;
    let (_tenant, port, pods) = gated(o, "ab-crowd", &[]).await;
    let stranger = ClientTls { ca: o.authority.file(), identity: None };
    let from = |last| Ipv4Addr::new(127, 0, 0, last);
    let mut held = Vec::new();
    for address in [from(11), from(12)] {
        held.push(occupy(address, &stranger, port, 64).await.unwrap());
    }
    let floods: Vec<_> = (13..16).map(|last| tokio::spawn(flood(from(last), port, 550))).collect();
    let mut missed = Vec::new();
    for attempt in 0..30 {
        // Each from an address of its own, as the API servers have.
        if let Err(error) = occupy(from(100 + attempt), &stranger, port, 1).await {
            missed.push(error.to_string());
        }
        assert!(is_gated(&pods, &pod(1)).await.unwrap(), "{attempt}");
    }
    floods.iter().for_each(tokio::task::JoinHandle::abort);
    assert!(missed.is_empty(), "{} of 30 clients had no answer: {missed:?}", missed.len());
}

/// With certificates of clients only the API server has answers, and no stranger takes its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_requires_certificates_answers_the_api_server_only() {
    let _alone = alone().await;
    let o = Outrigger::shared().await;
    let ca = format!("--tls-client-ca-file={}", o.plane.dir.join("tenant/webhooks/ca.crt").display());
    let (_tenant, port, pods) = gated(o, "ab-certain", &[ca]).await;
    let stranger = ClientTls { ca: o.authority.file(), identity: None };
    let floods: Vec<_> =
        (21..25).map(|last| tokio::spawn(flood(Ipv4Addr::new(127, 0, 0, last), port, 550))).collect();
    for attempt in 0..30 {
        assert!(is_gated(&pods, &pod(1)).await.unwrap(), "{attempt}");
        assert!(occupy(Ipv4Addr::LOCALHOST, &stranger, port, 1).await.is_err(), "a stranger has an answer");
    }
    floods.iter().for_each(tokio::task::JoinHandle::abort);
}
