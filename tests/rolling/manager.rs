//! The manager is replaced while workloads come and go: no companion is lost for it, and none is made twice.

use std::sync::Arc;
use std::time::Duration;

use outrigger_tests::tenant::{Tenant, rule_for};
use tokio::sync::oneshot;

use crate::watching::Watching;
use crate::workloads::{Churn, settled};
use crate::{ROUNDS, alone};

/// How long workloads come and go before, to compare with.
const QUIET: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn no_companion_is_lost_or_doubled_while_every_manager_is_replaced() {
    let (_one, installed) = alone().await;
    let o = &installed.outrigger;
    let mut tenants = Vec::new();
    for id in ["north", "south"] {
        let t = Arc::new(Tenant::new(o, id, &[("a", 1)]).await);
        t.rule("r", rule_for("app", "web")).await;
        let watching = Watching::begin(&t).await;
        let churn = Churn::begin(t.clone(), watching.seen.clone());
        tenants.push((t, watching, churn));
    }
    let mut replicas = installed.replicas.lock().await;
    tokio::time::sleep(QUIET).await;
    for (t, watching, _) in &tenants {
        println!("{}, before anything is replaced: {}", t.id, watching.lags());
    }
    // An agent restarts meanwhile too. Whoever tells the supervisor waits for his turn, so it is somewhere between.
    let (tell, told) = oneshot::channel();
    let restarting = tokio::task::spawn_blocking(move || {
        told.blocking_recv().unwrap();
        o.plane.command("term agent-north").and_then(|()| o.plane.command("start agent-north"))
    });
    let mut tell = Some(tell);
    for _ in 0..ROUNDS {
        replicas.manager.roll(o, &installed.managers).await;
        if let Some(tell) = tell.take() {
            tell.send(()).unwrap();
        }
    }
    restarting.await.unwrap().unwrap();
    for (t, watching, churn) in tenants {
        let (changes, living) = churn.end().await;
        settled(&t, &living).await;
        let stream = t.object().get(&t.id).await.unwrap().status.unwrap().stream.unwrap();
        let moved = usize::try_from(stream.claim).unwrap() - 1;
        assert!(moved >= ROUNDS, "the agent has moved {moved} times only");
        let (lags, seen) = (watching.lags(), watching.end().await);
        println!(
            "{}: {changes} changes, {} workloads left, {moved} moves, {seen}, {lags}",
            t.id,
            living.len()
        );
    }
    let (connections, late) = installed.managers.connections();
    println!("{connections} connections, {late} of them to replicas that were ending");
}
