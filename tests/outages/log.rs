//! Logs that nobody reads.

use std::process::Command;

use outrigger_tests::outrigger::{Outrigger, get};
use outrigger_tests::tenant::Tenant;
use outrigger_tests::wrapped::pipe;
use outrigger_tests::{eventually, holds};

use crate::outages::stage::stage;

#[tokio::test]
async fn a_log_that_nobody_reads_stops_nothing() {
    let (_turn, o) = stage().await;
    let t = Tenant::with_rule(o, "unread").await;
    t.web("w1").await;
    t.ready(1).await;
    let parts = ["manager", "webhook", "agent-unread"];
    o.plane.command_all("term", parts);
    assert!(Command::new("mkfifo").arg(pipe(o)).status().unwrap().success());
    o.plane.command_all("start", parts);
    // Starting, serving admission and streams, watching: all of it logs at level trace, far more than a pipe holds.
    o.ready().await;
    for n in 2..=6 {
        t.web(&format!("w{n}")).await;
        t.ready(n).await;
    }
    for admin in [o.manager_admin, o.webhook_admin] {
        assert_eq!(get(admin, "/livez").await.unwrap().0, 200);
        eventually("the pipe is full and lines are dropped", || async {
            let lines = Outrigger::metric(admin, "outrigger_log_lines_dropped", "_total").await?;
            holds(lines > 0.0, format!("{lines}"))
        })
        .await;
    }
    t.end("w1").await;
    t.ready(5).await;
    // Each of them shuts down on SIGTERM, with the pipe still full.
    o.plane.command_all("term", parts);
    std::fs::remove_file(pipe(o)).unwrap();
    o.plane.command_all("start", parts);
    o.ready().await;
    t.ready(5).await;
}
