//! What survives a restart. These tests kill what others rely on, so they have a control plane of their own, and run one
//! after the other.

mod dead;
mod devices;
mod lease;
mod linger;
mod machines;
mod offloading;
mod replicas;
mod slots;

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;
use kube::api::{Api, DeleteParams, ListParams};
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{InWords, always, eventually, holds};
use tokio::sync::{Mutex, MutexGuard};

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// The shared installation. Whoever has it has it alone.
async fn alone() -> (MutexGuard<'static, ()>, &'static Outrigger) {
    (ONE_AT_A_TIME.lock().await, Outrigger::shared().await)
}

/// As [`alone`], for tests that disturb only what each of them has started: all of these have it at the same time.
async fn together() -> (Arc<MutexGuard<'static, ()>>, &'static Outrigger) {
    static TOGETHER: Mutex<Weak<MutexGuard<'static, ()>>> = Mutex::const_new(Weak::new());
    let mut all = TOGETHER.lock().await;
    let guard = match all.upgrade() {
        Some(guard) => guard,
        None => Arc::new(ONE_AT_A_TIME.lock().await),
    };
    *all = Arc::downgrade(&guard);
    (guard, Outrigger::shared().await)
}

async fn start_many(t: &Tenant, count: usize) {
    let start = |i: usize| async move { drop(t.web(&format!("w{i}")).await) };
    futures::stream::iter(0..count).for_each_concurrent(20, start).await;
}

#[tokio::test]
async fn a_manager_killed_amid_two_hundred_creates_makes_none_twice_loses_none_deletes_none() {
    let (_one, o) = alone().await;
    let t = Tenant::new(o, "killed", &[("a", 1)]).await;
    // They exist before the rule, so the rule asks for all of them at once.
    start_many(&t, 200).await;
    t.rule("r", rule_for("app", "web")).await;
    eventually("creation is under way", || async {
        let n = t.companions().await?.len();
        holds(n >= 20, format!("{n}"))
    })
    .await;
    o.plane.command("stop manager").unwrap();
    let before = t.uids().await.unwrap();
    o.plane.command("start manager").unwrap();
    t.ready(200).await;
    let after = t.uids().await.unwrap();
    assert_eq!(after.len(), 200, "one for each");
    for (name, uid) in &before {
        assert_eq!(after.get(name), Some(uid), "{name} was made again");
    }
    println!("killed after {} of 200", before.len());

    // Killed and started with nothing to do, it does nothing; also before the agent has sent all.
    o.plane.command("stop agent-killed").unwrap();
    o.plane.command("restart manager").unwrap();
    o.ready().await;
    t.keeps(&after, Duration::from_secs(2)).await;
    // What ended while nobody watched goes with the first sync.
    t.end("w7").await;
    o.plane.command("start agent-killed").unwrap();
    t.ready(199).await;
}

#[tokio::test]
async fn an_agent_that_restarts_changes_nothing() {
    let (_one, o) = alone().await;
    let t = Tenant::with_rule(o, "agentnew").await;
    start_many(&t, 5).await;
    t.ready(5).await;
    let before = t.uids().await.unwrap();
    // Facts follow the workloads until all of these are ready.
    let writes = eventually("writes have ended", || async {
        let first = companion_writes(&o.manager_metrics().await);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let second = companion_writes(&o.manager_metrics().await);
        if first == second { Ok(second) } else { Err(format!("{second:?}")) }
    })
    .await;
    o.plane.command("term agent-agentnew").unwrap();
    let log = std::fs::read_to_string(o.plane.log("agent-agentnew")).unwrap();
    assert!(log.contains("drained"), "SIGTERM is clean: {log}");
    o.plane.command("start agent-agentnew").unwrap();
    t.condition("r", "Synced", outrigger_api::conditions::Status::True, "StreamConnected").await;
    t.keeps(&before, Duration::from_secs(1)).await;
    assert_eq!(writes, companion_writes(&o.manager_metrics().await), "no write that changes nothing");
}

/// How many writes of companions there were, by operation and outcome.
fn companion_writes(metrics: &str) -> Vec<String> {
    metrics
        .lines()
        .filter(|l| l.starts_with("outrigger_companion_write_seconds_count"))
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
async fn api_servers_that_restart_are_followed_again() {
    let (_one, o) = alone().await;
    let t = Tenant::with_rule(o, "apinew").await;
    start_many(&t, 3).await;
    t.ready(3).await;
    let before = t.uids().await.unwrap();
    o.plane.command("restart infra/kube-apiserver").unwrap();
    t.web("during").await;
    t.ready(4).await;
    o.plane.command("restart tenant/kube-apiserver").unwrap();
    t.web("after").await;
    t.end("w0").await;
    let after = t.serves(&["after", "during", "w1", "w2"]).await;
    t.ready(4).await;
    let same = before.iter().filter(|(name, uid)| after.get(*name) == Some(uid)).count();
    assert_eq!(same, 2, "w1 and w2 have kept theirs");
}

#[tokio::test]
async fn a_webhook_that_is_down_delays_companions_and_lets_none_through() {
    let (_one, o) = alone().await;
    let t = Tenant::with_rule(o, "hookdown").await;
    o.plane.command("stop webhook").unwrap();
    t.web("w").await;
    let pods: Api<k8s_openapi::api::core::v1::Pod> = t.pods();
    always("no companion", Duration::from_secs(2), || async {
        let all = pods.list(&ListParams::default()).await.in_words()?;
        holds(all.items.is_empty(), "a Pod was let through")
    })
    .await;
    o.plane.command("start webhook").unwrap();
    o.ready().await;
    t.ready(1).await;
    t.work().delete("w", &DeleteParams::default()).await.unwrap();
    t.ready(0).await;
}
