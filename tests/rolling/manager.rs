//! The manager is replaced while workloads come and go: no companion is lost for it, and none is made twice.

use std::sync::Arc;
use std::time::Duration;

use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{InWords, eventually};

use crate::rolling::watching::Watching;
use crate::rolling::workloads::{Churn, settled};
use crate::rolling::{ROUNDS, alone};

/// How long workloads come and go before, to compare with.
const QUIET: Duration = Duration::from_secs(4);

/// When an agent restarts after the replacement has begun: between two replicas.
const AMID: Duration = Duration::from_secs(5);

/// How often a tenant's stream was claimed again.
async fn moves(t: &Tenant) -> Result<usize, String> {
    let tenant = t.object().get(&t.id).await.in_words()?;
    let stream = tenant.status.unwrap_or_default().stream.unwrap_or_default();
    Ok(usize::try_from(stream.claim).unwrap().saturating_sub(1))
}

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
    // An agent restarts between two replicas: whoever tells the supervisor waits until the one that ends has ended.
    let restarts = std::thread::spawn(move || {
        std::thread::sleep(AMID);
        o.plane.command("term agent-south").and_then(|()| o.plane.command("start agent-south"))
    });
    replicas.manager.roll(o, &installed.managers).await;
    restarts.join().unwrap().unwrap();
    for _ in 1..ROUNDS {
        // An agent that ends before it has found the next manager moves once less.
        eventually("the agent of north has moved", || async {
            let moved = moves(&tenants[0].0).await?;
            if moved == 0 { Err("not yet".to_owned()) } else { Ok(()) }
        })
        .await;
        // Nobody tells the new ones anything of this tenant, and they know all of its companions.
        o.plane.command("term agent-north").unwrap();
        replicas.manager.roll(o, &installed.managers).await;
        o.plane.command("start agent-north").unwrap();
    }
    for (t, watching, churn) in tenants {
        let (changes, living) = churn.end().await;
        // The companions may be right before the agent has found the last manager.
        let moved = eventually(&format!("the agent of {} has moved {ROUNDS} times", t.id), || async {
            let moved = moves(&t).await?;
            if moved < ROUNDS { Err(format!("{moved} times only")) } else { Ok(moved) }
        })
        .await;
        settled(&t, &living).await;
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
