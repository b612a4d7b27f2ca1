//! Rollouts, renewals and drains while admissions and companions go on: none is lost.

use outrigger_tests::outrigger::SYSTEM;
use outrigger_tests::rack::{Machine, Rack, ready};
use outrigger_tests::{InWords, eventually, holds};

use super::shared::{CONTROL, DPU, turn};
use super::traffic::Traffic;
use super::workloads::{name, parts, pods};

const SERVERS: [&str; 2] = ["deployment/outrigger-webhook", "deployment/outrigger-manager"];
/// Another Node on which webhook and manager may run.
const SPARE: Machine = Machine::infra("control-2", 12, None);

/// When the certificate expires with which each webhook serves, by what they say themselves.
fn expiries(rack: &Rack) -> Result<Vec<String>, String> {
    let of = |pod: &serde_json::Value| {
        let path = format!("/api/v1/namespaces/{SYSTEM}/pods/{}:8080/proxy/metrics", name(pod));
        let metrics = rack.plane.infra.kubectl(&["get", "--raw", &path]).in_words()?;
        let wanted = r#"outrigger_tls_certificate_not_after_seconds{use="serving"} "#;
        metrics.lines().find_map(|line| line.strip_prefix(wanted).map(str::to_owned)).ok_or(metrics)
    };
    parts(rack, "webhook")?.iter().map(of).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn nothing_is_lost_while_webhook_and_manager_are_rolled_out_and_the_certificate_is_renewed() {
    let turn = turn().await;
    let (rack, infra) = (turn.rack, &turn.rack.plane.infra);
    let traffic = Traffic::start(rack, "rolls").await;
    infra.kubectl(&[&["rollout", "restart", "-n", SYSTEM], &SERVERS[..]].concat()).unwrap();
    ready(infra, &SERVERS).await;

    // cert-manager issues another certificate, which the kubelet writes into the webhooks' volumes.
    let former = eventually("webhooks say when their certificates expire", || async { expiries(rack) }).await;
    infra.kubectl(&["delete", "secret", "outrigger-webhook-tls", "-n", SYSTEM]).unwrap();
    eventually("both webhooks serve with another certificate", || async {
        let now = expiries(rack)?;
        holds(
            now.len() == 2 && now.iter().all(|one| !former.contains(one)),
            format!("{now:?} after {former:?}"),
        )
    })
    .await;

    let (admitted, refusals, workloads) = traffic.end(rack).await;
    assert!(refusals.is_empty(), "{admitted} were admitted, but: {refusals:?}");
    assert!(admitted > 20 && workloads.len() > 10, "{admitted} admissions, {} workloads", workloads.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn nothing_is_lost_while_the_node_of_webhook_and_manager_is_drained() {
    let turn = turn().await;
    let (rack, infra) = (turn.rack, &turn.rack.plane.infra);
    rack.add(&[SPARE]).await;
    let traffic = Traffic::start(rack, "drains").await;
    let drain = ["drain", CONTROL.name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=200s"];
    infra.kubectl(&drain).unwrap();
    ready(infra, &SERVERS).await;
    for part in ["webhook", "manager"] {
        let pods = parts(rack, part).unwrap();
        assert!(pods.iter().all(|pod| pod["spec"]["nodeName"] == SPARE.name), "{pods:?}");
    }
    let (admitted, refusals, workloads) = traffic.end(rack).await;

    infra.cordon(CONTROL.name, false);
    assert!(refusals.is_empty(), "{admitted} were admitted, but: {refusals:?}");
    assert!(admitted > 20 && workloads.len() > 5, "{admitted} admissions, {} workloads", workloads.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn companions_of_a_drained_dpu_run_there_again_when_it_is_back() {
    let turn = turn().await;
    let (rack, infra) = (turn.rack, &turn.rack.plane.infra);
    let traffic = Traffic::start(rack, "leaves").await;
    let before = pods(rack, "infra", "leaves").unwrap();
    infra.kubectl(&["drain", DPU.name, "--ignore-daemonsets", "--force", "--timeout=200s"]).unwrap();
    eventually("companions wait for the DPU", || async {
        let now = pods(rack, "infra", "leaves")?;
        let waiting = now.iter().filter(|pod| pod["spec"]["nodeName"].is_null()).count();
        holds(waiting >= before.len(), format!("{waiting} of {}", now.len()))
    })
    .await;
    infra.cordon(DPU.name, false);
    let (_, refusals, _) = traffic.end(rack).await;
    assert!(refusals.is_empty(), "{refusals:?}");
}
