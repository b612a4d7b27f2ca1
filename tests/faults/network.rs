//! The way between agents and managers: partitions, and calls whose answers are lost.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use outrigger_api::conditions::Status;
use outrigger_tests::faults::grpc::{Answer, Calls};
use outrigger_tests::faults::wire::{Network, Wire};
use outrigger_tests::outrigger::ports;
use outrigger_tests::tenant::{Tenant, annotation, rule_for, rule_with};
use outrigger_tests::until;
use serde_json::json;

use crate::faults::stage::Stage;

async fn by_wire(stage: &'static Stage, id: &str) -> (Tenant, Wire) {
    let wire = Wire::start(stage.o.grpc_port).unwrap();
    let t = stage.tenant(id, &["a"]).await;
    stage.agent(&t, &[format!("--manager-address=https://127.0.0.1:{}", wire.port)]);
    t.own_rule("r", rule_for("app", "web")).await.unwrap();
    t.web("w1").await;
    t.companion().await;
    (t, wire)
}

/// One workload begins and another ends, and the rule is edited; all of it arrives.
async fn arrives(t: &Tenant, what: &str, round: usize) {
    let began = Instant::now();
    let (new, old) = (format!("w{}", round + 2), format!("w{}", round + 1));
    t.web(&new).await;
    t.end(&old).await;
    t.own_rule("r", rule_with("/template/metadata/labels/round", json!(round.to_string()))).await.unwrap();
    let round = round.to_string();
    t.has(&format!("{what}: all of it arrives"), 1, 1, |pod| {
        annotation(pod, "workload-name") == Some(&new) && pod.labels().get("round") == Some(&round)
    })
    .await;
    println!("{what}: {:.1} s", began.elapsed().as_secs_f64());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_the_network_forgets_are_opened_again() {
    let stage = Stage::shared().await;
    let (t, wire) = by_wire(stage, "forgotten").await;
    wire.lose();
    arrives(&t, "forgotten", 0).await;
    t.condition("r", "Synced", Status::True, "StreamConnected").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn partitions_in_either_direction_heal() {
    let stage = Stage::shared().await;
    let (t, wire) = by_wire(stage, "partition").await;
    let slow = Network::Slow { bytes: 200, every: Duration::from_millis(20) };
    for (round, (network, seconds)) in [
        (Network::BlackHole, 40),
        (Network::ServerUnheard, 40),
        (Network::ClientUnheard, 40),
        (Network::BlackHole, 3),
        (Network::Cut, 5),
        (Network::Delay(Duration::from_millis(300)), 0),
        (slow, 0),
    ]
    .into_iter()
    .enumerate()
    {
        wire.set(network);
        if seconds > 0 {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            wire.set(Network::Open);
        }
        arrives(&t, &format!("{network:?} for {seconds} s"), round).await;
        wire.set(Network::Open);
    }
}

/// An agent and a manager in plain text, with a proxy of calls between them.
async fn by_calls(stage: &'static Stage, id: &str) -> (Tenant, Calls) {
    let o = &stage.o;
    let t = stage.tenant(id, &["a"]).await;
    let [port, admin] = ports().unwrap();
    let name = format!("manager-{id}");
    // Like the shared one, but for what it listens on.
    let manager = [
        "--insecure".to_owned(),
        format!("--bind-address=tcp://127.0.0.1:{port}"),
        format!("--admin-address=127.0.0.1:{admin}"),
        stage.manager.account(&o.plane.infra, "outrigger-manager").unwrap(),
    ];
    o.run_bare(&name, "manager", &manager).unwrap();
    o.ready_at(&name, admin).await;
    let calls = Calls::start(port).unwrap();
    // At the shipped pace: answers that are lost aren't repaired by the next look.
    let [insecure, address, _] = Tenant::in_plain_text(&format!("http://127.0.0.1:{}", calls.port));
    stage.agent(&t, &[insecure, address]);
    (t, calls)
}

async fn rules_follow(id: &str, answer: Answer) {
    let stage = Stage::shared().await;
    let (t, calls) = by_calls(stage, id).await;
    calls.fault("Create", answer, 1);
    t.own_rule("r", rule_for("app", "web")).await.unwrap();
    until("the rule is synced", &t.own_rules(), "r", |rule| {
        let matched = rule.status.and_then(|status| status.matched);
        matched.map(drop).ok_or_else(|| "it has no counts".to_owned())
    })
    .await;
    calls.fault("Update", answer, 1);
    t.own_rule("r", rule_with("/template/metadata/labels/app", json!("newer"))).await.unwrap();
    t.web("w1").await;
    let newer = |pod: &Pod| pod.labels().get("app").is_some_and(|app| app == "newer");
    t.has("the edit has arrived", 1, 1, newer).await;
    calls.fault("Delete", answer, 1);
    t.own_rules().delete("r", &DeleteParams::default()).await.unwrap();
    t.rule_is_gone("r").await;
    assert!(!calls.pending(), "each answer was lost once");
    for name in ["agent", "manager"] {
        stage.o.plane.command(&format!("stop {name}-{id}")).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_follow_though_answers_of_the_manager_are_dropped() {
    rules_follow("dropped", Answer::Dropped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn rules_follow_though_answers_of_the_manager_never_come() {
    rules_follow("withheld", Answer::Withheld).await;
}
