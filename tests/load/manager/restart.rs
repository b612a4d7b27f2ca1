//! A restart of the manager over many companions, and the edit of a rule beside them: how long it takes, and what is written.

use std::time::{Duration, Instant};

use kube::api::ListParams;
use outrigger_core::keys;
use outrigger_proto::v1::WorkloadUpdate;
use outrigger_tests::outrigger::{Outrigger, tenant_identity};
use outrigger_tests::report::Row;
use outrigger_tests::stream::{OpenedChunked, chunked_stream, chunked_sync, set_label, update};
use outrigger_tests::tenant::{Tenant, annotation, rule_for};
use outrigger_tests::writes::{since, writes};
use outrigger_tests::{eventually, holds};
use serde_json::json;

/// The rows of this module.
pub(super) const ROWS: [&str; 3] = [
    "restart over 100,000 companions, until it serves",
    "restart over 100,000 companions, writes of Pods",
    "edit of a rule with 100 of 100,000 companions, writes of Pods",
];

const COMPANIONS: usize = 100_000;
/// Companions of the rule that is edited.
const OWN: usize = 100;
const ROUNDS: usize = 3;
/// Objects of a page of a list, as many as the manager asks for.
const PAGE: u32 = 500;

pub(super) async fn measure(o: &'static Outrigger) -> Vec<Row> {
    let t = Tenant::without_agent(o, "crowded", &[("a", 2)]).await;
    t.set(json!({"limits": {"companions": 2 * COMPANIONS}})).await.unwrap();
    eventually("the quota has grown", || async {
        let quota = o.plane.infra.get(&["quota", "-n", &t.namespace]).map_err(|e| e.to_string())?;
        holds(quota.to_string().contains(&format!("\"{}k\"", 2 * COMPANIONS / 1000)), quota.to_string())
    })
    .await;
    t.rule("r", rule_for("app", "web")).await;
    t.rule("own", rule_for("app", "own")).await;
    // A restart reads scheduled companions as it reads others. Without the scheduler their creation takes a fraction of the time.
    o.plane.command("stop infra/kube-scheduler").unwrap();
    let node = t.node("a");
    let workloads: Vec<_> = (0..COMPANIONS).map(|i| workload(i, &node)).collect();
    let began = Instant::now();
    let stream = synced(&t, &workloads).await;
    settled(&t, COMPANIONS).await;
    println!("{COMPANIONS} companions made and at rest after {:.0} s", began.elapsed().as_secs_f64());

    let (mut times, mut counts) = (Vec::new(), Vec::new());
    let mut streams = vec![stream];
    for _ in 0..ROUNDS {
        streams.clear();
        let floor = listed(&t, COMPANIONS).await;
        let before = writes(&t.infra, "pods").await;
        o.plane.command("stop manager").unwrap();
        let began = Instant::now();
        o.plane.command("start manager").unwrap();
        o.ready().await;
        times.push((began.elapsed().as_secs_f64(), floor));
        streams.push(synced(&t, &workloads).await);
        tokio::time::sleep(Duration::from_secs(15)).await;
        let written = since(&writes(&t.infra, "pods").await, &before);
        println!("writes after a restart: {written:?}");
        counts.push((written.values().sum::<u64>() as f64, COMPANIONS as f64));
    }

    let before = writes(&t.infra, "pods").await;
    let mut spec = rule_for("app", "own");
    spec["workloadInfoInject"][0]["asAnnotation"]["name"] = json!("renamed");
    t.rule("own", spec).await;
    eventually("the edit has reached all", || async {
        let own = ListParams::default().labels(&format!("{}=own", keys::RULE));
        let pods = t.pods().list(&own).await.map_err(|e| e.to_string())?;
        let found = pods.items.iter().filter(|pod| annotation(pod, "renamed").is_some()).count();
        holds(found == OWN, format!("{found} of {OWN}"))
    })
    .await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let written = since(&writes(&t.infra, "pods").await, &before);
    println!("writes after an edit: {written:?}");
    let edits = [(written.values().sum::<u64>() as f64, OWN as f64)];
    o.plane.command("start infra/kube-scheduler").unwrap();
    vec![
        Row::new(ROWS[0], "s", "list of the same Pods", &times),
        Row::new(ROWS[1], "writes", "one for each companion", &counts),
        Row::new(ROWS[2], "writes", "one for each of its companions", &edits),
    ]
}

/// A stream on which all workloads have been sent, in chunks.
async fn synced(t: &Tenant, workloads: &[WorkloadUpdate]) -> OpenedChunked {
    let tls = t.outrigger.client_tls(&t.id, &[&tenant_identity(&t.id)]);
    let opened = chunked_stream(t.outrigger.grpc_port, &tls, &t.id).await.unwrap();
    for message in chunked_sync(workloads) {
        opened.0.send(message).await.unwrap();
    }
    opened
}

fn workload(i: usize, node: &str) -> WorkloadUpdate {
    let mut update = update(&format!("w{i}"), node);
    set_label(&mut update, "app", if i < OWN { "own" } else { "web" });
    update
}

/// Waits until there are so many Pods and nothing more is written to any.
async fn settled(t: &Tenant, count: usize) {
    let mut last = writes(&t.infra, "pods").await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1800) {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let now = writes(&t.infra, "pods").await;
        if now == last {
            listed(t, count).await;
            return;
        }
        last = now;
    }
    panic!("{count} companions are not at rest after half an hour");
}

/// Seconds that a bare client takes to list so many companions, in pages as the manager does.
async fn listed(t: &Tenant, count: usize) -> f64 {
    let began = Instant::now();
    let mut page = ListParams::default().labels(keys::RULE).limit(PAGE);
    let mut found = 0;
    loop {
        let list = t.pods().list(&page).await.unwrap();
        found += list.items.len();
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    assert_eq!(found, count);
    began.elapsed().as_secs_f64()
}
