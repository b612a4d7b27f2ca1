//! The numbers of webhooks and managers change as an autoscaler changes them, and no call fails for it.

use std::sync::Arc;

use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{eventually, holds};

use crate::rolling::alone;
use crate::rolling::watching::Watching;
use crate::rolling::webhook::{ASKERS, begin, more};
use crate::rolling::workloads::{Churn, settled};

/// Reviews that are answered at each number of replicas, about four seconds' worth.
const REVIEWS: u64 = 1_000;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn no_admission_fails_while_webhooks_are_scaled_from_one_to_three_and_back() {
    let (_one, installed) = alone().await;
    let load = begin(installed, &ASKERS, false).await;
    let mut replicas = installed.replicas.lock().await;
    let usual = replicas.webhook.running.len();
    for count in [1, 3, 1, usual] {
        replicas.webhook.scale(&installed.outrigger, &installed.webhooks, count).await;
        assert_eq!(replicas.webhook.running.len(), count);
        more(&load, REVIEWS).await;
    }
    println!("{}", load.end().await);
}

/// The streams that managers serve, by their admin ports.
async fn streams(admin_ports: &[u16]) -> Result<f64, String> {
    let mut sum = 0.0;
    for port in admin_ports {
        sum += Outrigger::metric(*port, "outrigger_workload_streams", "").await?;
    }
    Ok(sum)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn no_companion_is_lost_or_doubled_while_managers_are_scaled_from_one_to_three_and_back() {
    let (_one, installed) = alone().await;
    let (o, front) = (&installed.outrigger, &installed.managers);
    let mut replicas = installed.replicas.lock().await;
    let manager = &mut replicas.manager;
    let usual = manager.running.len();
    // As with the component for autoscaling, and shorter.
    manager.flags.push("--max-connection-age=10s".to_owned());
    manager.one_more(o, front).await;
    manager.scale(o, front, 1).await;
    let mut tenants = Vec::new();
    for id in ["east", "west"] {
        let t = Arc::new(Tenant::new(o, id, &[("a", 1)]).await);
        t.rule("r", rule_for("app", "web")).await;
        let watching = Watching::begin(&t).await;
        let churn = Churn::begin(t.clone(), watching.seen.clone());
        tenants.push((t, watching, churn));
    }
    manager.scale(o, front, 3).await;
    let new: Vec<u16> = manager.running.iter().skip(1).map(|replica| replica.admin).collect();
    eventually("a new manager serves a tenant", || async {
        let served = streams(&new).await?;
        holds(served > 0.0, format!("{served} streams"))
    })
    .await;
    manager.scale(o, front, 1).await;
    let last: Vec<u16> = manager.running.iter().map(|replica| replica.admin).collect();
    eventually("the last manager serves both", || async {
        let served = streams(&last).await?;
        holds(served >= 2.0, format!("{served} streams"))
    })
    .await;
    for (t, watching, churn) in tenants {
        let (changes, living) = churn.end().await;
        settled(&t, &living).await;
        println!("{}: {changes} changes, {} workloads left, {}", t.id, living.len(), watching.end().await);
        o.plane.command(&format!("term agent-{}", t.id)).unwrap();
    }
    // Those that follow are as usual.
    manager.flags.pop();
    manager.scale(o, front, usual + 1).await;
    manager.scale(o, front, usual).await;
}
