//! Which container starts first, by the times that kubelets write, and which condition workloads have while their DPU is off.

use std::collections::BTreeMap;

use outrigger_core::keys;
use outrigger_tests::rack::Rack;
use outrigger_tests::tenant::rule;
use outrigger_tests::{condition_of, eventually, holds, is_true};
use serde_json::{Value, json};

use super::shared::{DPU, turn};
use super::workloads::{deployment, name, pods, ready, ready_late, ready_since, spec, started, workload};

/// Each companion by its workload; an error if a workload has two.
fn by_workload(companions: &[Value]) -> Result<BTreeMap<&str, &Value>, String> {
    let map: BTreeMap<_, _> = companions.iter().map(|companion| (workload(companion), companion)).collect();
    holds(map.len() == companions.len(), format!("{:?}", map.keys())).map(|()| map)
}

/// Waits until new Pods of an app get the claim by which they wait for companions.
pub(super) async fn makes_wait(rack: &Rack, app: &str) {
    eventually("the agent makes Pods wait", || async {
        let pod = &deployment(app, 1)["spec"]["template"];
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asks", "labels": pod["metadata"]["labels"]}, "spec": pod["spec"]});
        let created = rack.plane.tenant.kubectl_with(&["create", "--dry-run=server", "-o", "json", "-f", "-"], &pod.to_string()).map_err(|e| e.to_string())?;
        holds(created.contains(keys::COMPANIONS_CLAIM), created)
    })
    .await;
}

#[tokio::test]
async fn containers_wait_for_companions_which_return_with_a_dpu_that_was_off() {
    let turn = turn().await;
    let (rack, hosts) = (turn.rack, &turn.rack.plane.tenant);
    // Its companions take a while until they are Ready.
    let mut spec = spec("first", &ready_late("echo here"));
    spec["ordering"] = json!("BeforeStart");
    hosts.apply(&[rule("universe", "first", spec)]).unwrap();
    makes_wait(rack, "first").await;
    hosts.apply(&[deployment("first", 2)]).unwrap();

    let workloads = ready(rack, "tenant", "first", 2).await;
    let companions = ready(rack, "infra", "first", 2).await;
    let of = by_workload(&companions).unwrap();
    for pod in &workloads {
        let companion = of[name(pod)];
        assert!(started(pod) >= ready_since(companion), "{pod} {companion}");
        // Without the claim, it would have started before its companion was there at all.
        assert!(started(companion) < ready_since(companion), "{companion}");
    }

    rack.off(DPU).unwrap();
    for pod in &workloads {
        eventually("the workload says that its DPU has failed", || async {
            let now = pods(rack, "tenant", "first")?;
            let now = now.iter().find(|found| name(found) == name(pod)).ok_or("it has gone")?;
            let says = condition_of(now, keys::COMPANIONS_CONDITION);
            holds(says["status"] == "False" && says["reason"] == "DPUNotReady", says.to_string())
        })
        .await;
    }
    rack.on(DPU).unwrap();
    eventually("each workload has the one companion that it had, which runs again", || async {
        let found = pods(rack, "infra", "first")?;
        by_workload(&found)?;
        let again = found.iter().all(|pod| {
            pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0) > 0
                && is_true(pod, "Ready")
        });
        holds(
            found.len() == 2 && again,
            json!(found.iter().map(|pod| &pod["status"]).collect::<Vec<_>>()).to_string(),
        )
    })
    .await;
    let again = ready(rack, "tenant", "first", 2).await;
    let uids = |pods: &[Value]| pods.iter().map(|pod| pod["metadata"]["uid"].clone()).collect::<Vec<_>>();
    assert_eq!(uids(&again), uids(&workloads), "the host's Pods have run on");
}
