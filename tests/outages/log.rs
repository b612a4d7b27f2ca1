//! Logs that nobody reads.

use std::process::Command;

use outrigger_tests::openmetrics::parse;
use outrigger_tests::outrigger::{Outrigger, get};
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{eventually, holds};
use serde_json::json;

use crate::stage::{pipe, stage};

/// How many lines of its log a process has dropped.
async fn dropped(admin: u16) -> Result<f64, String> {
    let families = parse(&Outrigger::metrics_of(admin).await?)?;
    Ok(families.get("outrigger_log_lines_dropped").ok_or("no such metric")?.sum("_total", &[]))
}

#[tokio::test]
async fn a_log_that_nobody_reads_stops_nothing() {
    let (_turn, o) = stage().await;
    let t = Tenant::new(o, "unread", &[("a", 1)]).await;
    t.rule("r", rule_for("app", "web")).await;
    t.start("w1", "a", json!({"app": "web"})).await;
    t.ready(1).await;
    let parts = ["manager", "webhook", "agent-unread"];
    for part in parts {
        o.plane.command(&format!("term {part}")).unwrap();
    }
    assert!(Command::new("mkfifo").arg(pipe(o)).status().unwrap().success());
    for part in parts {
        o.plane.command(&format!("start {part}")).unwrap();
    }
    // Starting, serving admission and streams, watching: all of it logs at level trace, far more than a pipe holds.
    o.ready().await;
    for n in 2..=6 {
        t.start(&format!("w{n}"), "a", json!({"app": "web"})).await;
        t.ready(n).await;
    }
    for admin in [o.manager_admin, o.webhook_admin] {
        assert_eq!(get(admin, "/livez").await.unwrap().0, 200);
        eventually("the pipe is full and lines are dropped", || async {
            let lines = dropped(admin).await?;
            holds(lines > 0.0, format!("{lines}"))
        })
        .await;
    }
    t.end("w1").await;
    t.ready(5).await;
    // Each of them shuts down on SIGTERM, with the pipe still full.
    for part in parts {
        o.plane.command(&format!("term {part}")).unwrap();
    }
    std::fs::remove_file(pipe(o)).unwrap();
    for part in parts {
        o.plane.command(&format!("start {part}")).unwrap();
    }
    o.ready().await;
    t.ready(5).await;
}
