//! Which replica leads after the leader has shut down.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Client;
use kube::api::{Api, WatchParams};
use outrigger_core::keys;
use outrigger_tests::history::modified;
use outrigger_tests::outrigger::{Outrigger, SYSTEM, get, leads, ports};
use outrigger_tests::{eventually, holds};
use parking_lot::Mutex;

use super::alone;

/// How often the Lease changes hands: each of two replicas gives it back once.
const TIMES: usize = 2;

/// Everything that is written on the Lease from now on, and what is there now.
async fn record(client: Client) -> (LeaseSpec, Arc<Mutex<Vec<Lease>>>) {
    let leases: Api<Lease> = Api::namespaced(client, SYSTEM);
    let now = leases.get(keys::MANAGER).await.unwrap();
    let only = WatchParams::default().fields(&format!("metadata.name={}", keys::MANAGER));
    let written = modified(leases, only, now.metadata.resource_version.unwrap());
    (now.spec.unwrap(), written)
}

/// What the Lease itself says of a hand-over: it was given back, and not waited for until it ended.
fn handed_over(before: &LeaseSpec, written: &[LeaseSpec]) -> Result<(), String> {
    let history = format!("{before:?} {written:#?}");
    let held = |spec: &&LeaseSpec| spec.holder_identity.is_some();
    let old = |spec: &&LeaseSpec| spec.holder_identity == before.holder_identity;
    let free = written.iter().position(|spec| !held(&spec)).ok_or(format!("not given back: {history}"))?;
    let new = written[free..].iter().rfind(held).ok_or(format!("nobody has it: {history}"))?;
    if old(&new) || new.lease_transitions <= before.lease_transitions {
        return Err(format!("nobody else has it: {history}"));
    }
    // Renewals until then, and none after it.
    let last = written[..free].iter().rfind(old).unwrap_or(before);
    assert!(!written[free..].iter().any(|spec| old(&spec)), "renewed after it was given back: {history}");
    let renewed = last.renew_time.clone().unwrap().0;
    let taken = new.acquire_time.clone().unwrap().0;
    let lasts = Duration::from_secs(u64::try_from(last.lease_duration_seconds.unwrap()).unwrap());
    assert!(taken < renewed + lasts, "it had ended: {history}");
    Ok(())
}

#[tokio::test]
async fn a_leader_that_shuts_down_hands_over_before_it_has_gone() {
    let (_one, o) = alone().await;
    // It goes on serving for a long time after the signal, and may not lead meanwhile.
    let slow = ["--shutdown-delay=15s".to_owned()];
    let [grpc_a, admin_a, grpc_b, admin_b] = ports().unwrap();
    let replicas = [("manager-a", grpc_a, admin_a), ("manager-b", grpc_b, admin_b)];
    o.plane.command("term manager").unwrap();
    for (name, grpc, admin) in replicas {
        o.start_replica(name, grpc, admin, &slow).unwrap();
        o.ready_at(name, admin).await;
    }
    eventually("one of them leads", || async {
        holds(Outrigger::leads(admin_a).await? || Outrigger::leads(admin_b).await?, "none")
    })
    .await;
    let mut took: Vec<Duration> = Vec::new();
    for _ in 0..TIMES {
        let (old, new) = if Outrigger::leads(admin_a).await.unwrap() { (0, 1) } else { (1, 0) };
        assert!(!Outrigger::leads(replicas[new].2).await.unwrap(), "both lead");
        let (before, written) = record(o.plane.infra.client().await).await;
        let began = Instant::now();
        let signal = format!("term {}", replicas[old].0);
        let ends = tokio::task::spawn_blocking(move || o.plane.command(&signal));
        leads(replicas[new].0, replicas[new].2, true).await;
        took.push(began.elapsed());
        // The old one is still there, and knows that it goes and doesn't lead.
        let (status, body) = get(replicas[old].2, "/readyz").await.unwrap();
        assert_eq!((status, body.as_str()), (503, "not ready: shutting down\n"));
        assert!(!Outrigger::leads(replicas[old].2).await.unwrap(), "both lead");
        eventually("the Lease says so", || async {
            {
                let written =
                    written.lock().iter().filter_map(|lease| lease.spec.clone()).collect::<Vec<_>>();
                handed_over(&before, &written)
            }
        })
        .await;
        ends.await.unwrap().unwrap();
        o.plane.command(&format!("start {}", replicas[old].0)).unwrap();
        o.ready_at(replicas[old].0, replicas[old].2).await;
    }
    println!("from the signal to the next leader: {took:?}");
    for (name, ..) in replicas {
        o.plane.command(&format!("term {name}")).unwrap();
    }
    o.plane.command("start manager").unwrap();
    o.ready().await;
}
