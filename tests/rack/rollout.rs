//! A rollout of a rule's template, by the processes of its companions' containers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outrigger_tests::rack::Rack;
use outrigger_tests::tenant::rule;
use outrigger_tests::{eventually, holds, is_true};
use serde_json::{Value, json};

use super::shared::{DPU, turn};
use super::workloads::{deployment, name, pods, ready, runs, spec, workload};

const WORKLOADS: usize = 3;

/// A rule whose companions sleep for so many seconds, and of whose companions one at a time may be down.
fn sleeps(seconds: &str) -> Value {
    let mut spec = spec("rolled", &runs(&format!("echo {seconds}; exec sleep {seconds}")));
    spec["updateStrategy"] = json!({"rollingUpdate": {"maxUnavailable": 1}});
    rule("tenant-blue", "rolled", spec)
}

/// Containers that sleep for so many seconds, on the DPU.
fn sleeping(rack: &Rack, seconds: &str) -> usize {
    rack.processes(DPU, seconds).unwrap().len()
}

/// The least workloads that had a companion which was Ready, until it is stopped. A container takes a second to start, so no look at it
/// misses one.
async fn least(rack: &'static Rack, stop: Arc<AtomicBool>) -> usize {
    let mut least = WORKLOADS;
    while !stop.load(Ordering::Relaxed) {
        let ready = pods(rack, "infra", "rolled").unwrap().iter().filter(|pod| is_true(pod, "Ready")).count();
        least = least.min(ready);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    least
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_of_a_former_template_end_one_after_the_other_and_those_of_the_new_one_start() {
    let turn = turn().await;
    let (rack, infra, hosts) = (turn.rack, &turn.rack.plane.infra, &turn.rack.plane.tenant);
    infra.apply(&[sleeps("111111")]).unwrap();
    hosts.apply(&[deployment("rolled", WORKLOADS)]).unwrap();
    let workloads = ready(rack, "tenant", "rolled", WORKLOADS).await;
    let former = ready(rack, "infra", "rolled", WORKLOADS).await;
    assert_eq!(sleeping(rack, "222222"), 0);

    let stop = Arc::new(AtomicBool::new(false));
    let least = tokio::spawn(least(rack, Arc::clone(&stop)));
    infra.apply(&[sleeps("222222")]).unwrap();
    eventually("all containers are those of the new template", || async {
        let now = [sleeping(rack, "111111"), sleeping(rack, "222222")];
        holds(now == [0, WORKLOADS], format!("{now:?}"))
    })
    .await;
    let companions = ready(rack, "infra", "rolled", WORKLOADS).await;
    stop.store(true, Ordering::Relaxed);
    assert_eq!(least.await.unwrap(), WORKLOADS - 1, "one at a time may be down");

    let is_former = |pod: &Value| former.iter().any(|old| old["metadata"]["uid"] == pod["metadata"]["uid"]);
    assert!(!companions.iter().any(is_former));
    for pod in &workloads {
        let its = companions.iter().find(|companion| workload(companion) == name(pod)).unwrap();
        let log = infra.kubectl(&["logs", name(its), "-n", "tenant-blue"]).unwrap();
        assert_eq!(log, "222222\n");
    }
    let now = ready(rack, "tenant", "rolled", WORKLOADS).await;
    let started = |pods: &[Value]| {
        pods.iter().map(|pod| pod["status"]["containerStatuses"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(started(&now), started(&workloads), "the workloads' containers run on");
    hosts.kubectl(&["delete", "deployment", "rolled"]).unwrap();
}
