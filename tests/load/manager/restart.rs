//! A restart of the manager over many companions, and the edit of a rule beside them: how long it takes, and what is written.

use std::time::{Duration, Instant};

use kube::api::ListParams;
use outrigger_core::keys;
use outrigger_tests::crowd::{Crowd, listed, synced};
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::report::Row;
use outrigger_tests::tenant::{annotation, rule_for};
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

pub(super) async fn measure(o: &'static Outrigger) -> Vec<Row> {
    let began = Instant::now();
    let Crowd { tenant: t, stream, workloads } = Crowd::of(o, "crowded", COMPANIONS, OWN).await;
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
