//! A tenant whose manager no longer runs, or doesn't come to write that it does.

use outrigger_api::conditions::Status;
use outrigger_tests::outrigger::{Outrigger, leads};
use outrigger_tests::tenant::Tenant;
use outrigger_tests::{eventually, holds};

use crate::restarts::together;

/// The claim on the tenant's stream, whether the status says that its agent is connected, and the holder.
async fn stream_of(t: &Tenant) -> (u64, bool, String) {
    let stream = t.object().get(&t.id).await.unwrap().status.and_then(|status| status.stream);
    stream.map(|stream| (stream.claim, stream.connected, stream.holder)).unwrap_or_default()
}

/// A tenant with a companion that the manager `manager-<id>` serves, while `manager` leads. Returns the claim, too.
async fn served_by_second(o: &'static Outrigger, id: &str) -> (Tenant, u64) {
    leads("the first manager leads", o.manager_admin, true).await;
    let (port, _) = o.another_manager(&format!("manager-{id}"), &[]).await;
    let t = Tenant::with_rule_only(o, id).await;
    t.start_agent(&[format!("--manager-address=https://127.0.0.1:{port}")]);
    t.web("w").await;
    t.ready(1).await;
    let (claim, connected, holder) = stream_of(&t).await;
    assert!(connected && !holder.is_empty());
    (t, claim)
}

/// Waits until the leader has raised this claim for nobody.
async fn is_taken_over(t: &Tenant, claim: u64) {
    eventually("the leader takes the claim over", || async {
        let now = stream_of(t).await;
        holds(now == (claim + 1, false, String::new()), format!("{now:?}"))
    })
    .await;
}

/// Waits until the agent is connected under a claim that is later than the leader's.
async fn is_served_again(t: &Tenant, claim: u64) {
    eventually("the agent is connected", || async {
        let (number, connected, _) = stream_of(t).await;
        holds(connected && number > claim + 1, format!("{number} {connected}"))
    })
    .await;
    t.condition("r", "Synced", Status::True, "StreamConnected").await;
}

#[tokio::test]
async fn a_tenant_whose_manager_is_killed_with_its_agent_is_shown_without_a_stream() {
    let (_all, o) = together().await;
    let (t, claim) = served_by_second(o, "orphan").await;
    let companions = t.uids().await.unwrap();
    o.plane.command("stop manager-orphan agent-orphan").unwrap();
    let (_, connected, _) = stream_of(&t).await;
    assert!(connected, "neither has written anything");
    is_taken_over(&t, claim).await;
    // It acts for the tenant from then on.
    t.condition_says("r", "Synced", Status::Unknown, "StreamLost", &["has not been connected since"]).await;
    assert_eq!(t.uids().await.unwrap(), companions, "companions stay as they are");
    // The agent comes back, to the manager that is left.
    o.plane.command("start manager-orphan agent-orphan").unwrap();
    is_served_again(&t, claim).await;
    assert_eq!(t.uids().await.unwrap(), companions);
    o.plane.command("term agent-orphan").unwrap();
    o.plane.command("term manager-orphan").unwrap();
}

#[tokio::test]
async fn a_manager_that_was_only_suspended_corrects_what_the_leader_wrote_of_it() {
    let (_all, o) = together().await;
    let (t, claim) = served_by_second(o, "suspended").await;
    let companions = t.uids().await.unwrap();
    o.plane.command("pause manager-suspended").unwrap();
    is_taken_over(&t, claim).await;
    o.plane.command("resume manager-suspended").unwrap();
    is_served_again(&t, claim).await;
    assert_eq!(t.uids().await.unwrap(), companions);
    o.plane.command("term agent-suspended").unwrap();
    o.plane.command("term manager-suspended").unwrap();
}
