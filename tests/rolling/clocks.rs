//! Replicas whose wall clock is wrong serve under load as all others do.

use std::sync::Arc;
use std::time::Duration;

use outrigger_tests::outrigger::{Outrigger, leads};
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::wrapped::at_time;
use outrigger_tests::{eventually, holds};

use crate::rolling::alone;
use crate::rolling::watching::Watching;
use crate::rolling::webhook::{ASKERS, begin, more};
use crate::rolling::workloads::{Churn, settled};

/// What the wrong clocks say, beside the right time.
const OFFSETS: [&str; 2] = ["+120s", "-120s"];

/// How long workloads come and go while only the manager with the wrong clock is left.
const CHURN: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn no_admission_fails_at_webhooks_with_another_time() {
    let (_one, installed) = alone().await;
    let o = &installed.outrigger;
    let load = begin(installed, &ASKERS, false).await;
    let mut replicas = installed.replicas.lock().await;
    let webhooks = &mut replicas.webhook;
    for offset in OFFSETS {
        // First one among others, then alone.
        let started = at_time(o, offset, || webhooks.start(o));
        let admin = started.admin;
        webhooks.join(o, &installed.webhooks, started).await;
        eventually("it answers", || async {
            let answered = Outrigger::metric(admin, "outrigger_admission_seconds", "_count").await?;
            holds(answered > 100.0, format!("{answered}"))
        })
        .await;
        while webhooks.running.len() > 1 {
            webhooks.end_oldest(o).await;
        }
        more(&load, 1_000).await;
        for _ in 0..webhooks.replicas {
            webhooks.one_more(o, &installed.webhooks).await;
        }
        // The one with the wrong clock.
        webhooks.end_oldest(o).await;
    }
    println!("{}", load.end().await);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn no_companion_is_lost_or_doubled_by_managers_with_another_time() {
    let (_one, installed) = alone().await;
    let o = &installed.outrigger;
    let t = Arc::new(Tenant::new(o, "clocks", &[("a", 1)]).await);
    t.rule("r", rule_for("app", "web")).await;
    let watching = Watching::begin(&t).await;
    let churn = Churn::begin(t.clone(), watching.seen.clone());
    let mut replicas = installed.replicas.lock().await;
    let managers = &mut replicas.manager;
    for offset in OFFSETS {
        let started = at_time(o, offset, || managers.start(o));
        let admin = started.admin;
        managers.join(o, &installed.managers, started).await;
        while managers.running.len() > 1 {
            managers.end_oldest(o).await;
        }
        leads("the manager with another time leads", admin, true).await;
        tokio::time::sleep(CHURN).await;
        println!("{offset}: {}", watching.lags());
        for _ in 0..managers.replicas {
            managers.one_more(o, &installed.managers).await;
        }
        managers.end_oldest(o).await;
        eventually("another one leads", || async {
            let mut leaders = 0;
            for replica in &managers.running {
                leaders += usize::from(Outrigger::leads(replica.admin).await?);
            }
            holds(leaders == 1, format!("{leaders} lead"))
        })
        .await;
    }
    let (changes, living) = churn.end().await;
    settled(&t, &living).await;
    println!("{changes} changes, {}", watching.end().await);
}
