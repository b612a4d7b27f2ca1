//! Containers that the kernel or a kubelet ends, because there is no memory for them.

use outrigger_tests::rack::ready as parts_are_ready;
use outrigger_tests::tenant::rule;
use outrigger_tests::{InWords, eventually, holds};
use serde_json::{Value, json};

use super::shared::{CONTROL, DPU, turn};
use super::traffic::Traffic;
use super::workloads::{deployment, is, name, parts, pods, ready, runs, spec};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn webhook_and_manager_come_back_after_their_memory_was_used_up_and_nothing_is_lost() {
    let turn = turn().await;
    let (rack, infra) = (turn.rack, &turn.rack.plane.infra);
    let traffic = Traffic::start(rack, "memory").await;
    for part in ["webhook", "manager"] {
        rack.exhaust_memory(CONTROL, part).unwrap();
        eventually(&format!("a {part} was killed for its memory, and is started again"), || async {
            let pods = parts(rack, part)?;
            let statuses: Vec<_> = pods.iter().map(|pod| &pod["status"]).collect();
            let killed = statuses.iter().any(|status| {
                let container = &status["containerStatuses"][0];
                let last = &container["lastState"]["terminated"];
                last["reason"] == "OOMKilled" && container["ready"] == true
            });
            holds(killed, json!(statuses).to_string())
        })
        .await;
        parts_are_ready(infra, &[&format!("deployment/outrigger-{part}")]).await;
    }
    let (admitted, refusals, workloads) = traffic.end(rack).await;
    // Requests that are open at a process that is killed are lost, and no others are.
    assert!(admitted > 20 && refusals.len() < admitted, "{admitted} admissions, {refusals:?}");
    assert!(workloads.len() > 2, "{workloads:?}");
}

/// Memory that a Node has left, by its kubelet.
fn available(infra: &outrigger_tests::control_plane::Cluster) -> Result<u64, String> {
    let path = format!("/api/v1/nodes/{}/proxy/stats/summary", DPU.name);
    let summary: Value =
        serde_json::from_str(&infra.kubectl(&["get", "--raw", &path]).in_words()?).in_words()?;
    summary["node"]["memory"]["availableBytes"].as_u64().ok_or_else(|| summary["node"].to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn a_companion_that_its_kubelet_evicts_is_replaced_when_the_dpu_has_room() {
    let turn = turn().await;
    let (rack, infra, hosts) = (turn.rack, &turn.rack.plane.infra, &turn.rack.plane.tenant);
    let mut spec = spec("evicted", &runs("echo here"));
    let template = &mut spec["template"]["spec"];
    let memory = json!({"name": "memory", "emptyDir": {"medium": "Memory"}});
    template["volumes"].as_array_mut().unwrap().push(memory);
    let mount = json!({"name": "memory", "mountPath": "/memory"});
    template["containers"][0]["volumeMounts"].as_array_mut().unwrap().push(mount);
    infra.apply(&[rule("tenant-blue", "evicted", spec)]).unwrap();
    hosts.apply(&[deployment("evicted", 1)]).unwrap();
    let workloads = ready(rack, "tenant", "evicted", 1).await;
    let former = ready(rack, "infra", "evicted", 1).await.remove(0);

    // The DPU has 300 MiB from now on, and its companion takes 400.
    let left = eventually("the kubelet says what it has left", || async { available(infra) }).await;
    let threshold = format!("{}Mi", (left >> 20) - 300);
    let settings =
        json!({"evictionHard": {"memory.available": threshold}, "evictionPressureTransitionPeriod": "5s"});
    rack.configure_kubelet(DPU, Some(&settings)).unwrap();
    let fills =
        ["exec", name(&former), "-n", "tenant-blue", "--", "sh", "-c", "head -c 400m /dev/zero >/memory/x"];
    eventually("it takes memory", || async { infra.kubectl(&fills).in_words() }).await;
    eventually("its kubelet says why", || async {
        let events =
            infra.get(&["events", "-n", "tenant-blue", "--field-selector=reason=Evicted"]).in_words()?;
        holds(events["items"].as_array().is_some_and(|all| !all.is_empty()), events.to_string())
    })
    .await;
    eventually("another companion runs in its place", || async {
        let now = pods(rack, "infra", "evicted")?;
        let other = |pod: &Value| pod["metadata"]["uid"] != former["metadata"]["uid"] && is(pod, "Ready");
        holds(now.len() == 1 && other(&now[0]), json!(now).to_string())
    })
    .await;
    let now = ready(rack, "tenant", "evicted", 1).await;
    assert_eq!(now[0]["metadata"]["uid"], workloads[0]["metadata"]["uid"]);
    rack.configure_kubelet(DPU, None).unwrap();
    hosts.kubectl(&["delete", "deployment", "evicted"]).unwrap();
}
