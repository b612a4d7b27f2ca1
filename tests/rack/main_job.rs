//! The main job: workloads' containers start on a host, and their companions' on the DPU in that host.

use std::collections::BTreeSet;

use outrigger_tests::tenant::rule;
use outrigger_tests::{InWords, eventually, holds};
use serde_json::json;

use super::shared::{DPU, HOST, turn};
use super::workloads::{deployment, name, pods, ready, runs, spec, workload};

#[tokio::test]
async fn companions_run_on_the_dpu_of_their_workloads_host_and_know_them() {
    let turn = turn().await;
    let (rack, infra, hosts) = (turn.rack, &turn.rack.plane.infra, &turn.rack.plane.tenant);
    infra.apply(&[rule("tenant-blue", "web", spec("web", &runs("echo workload $NAME")))]).unwrap();
    hosts.apply(&[deployment("web", 3)]).unwrap();

    let workloads = ready(rack, "tenant", "web", 3).await;
    let companions = ready(rack, "infra", "web", 3).await;
    assert!(workloads.iter().all(|pod| pod["spec"]["nodeName"] == HOST.name));
    assert!(companions.iter().all(|pod| pod["spec"]["nodeName"] == DPU.name));
    let of: BTreeSet<_> = companions.iter().map(workload).collect();
    assert_eq!(of, workloads.iter().map(name).collect());
    for companion in &companions {
        let log = infra.kubectl(&["logs", name(companion), "-n", "tenant-blue"]).unwrap();
        assert_eq!(log, format!("workload {}\n", workload(companion)));
    }

    // A fact that changes later is in the file, in the same container.
    let companion = &companions[0];
    hosts
        .patch(
            &format!("pod/{}", workload(companion)),
            &[],
            &json!({"metadata": {"labels": {"version": "v2"}}}),
        )
        .unwrap();
    eventually("the kubelet writes the new fact into the file", || async {
        let says = ["exec", name(companion), "-n", "tenant-blue", "--", "cat", "/facts/version"];
        let version = infra.kubectl(&says).in_words()?;
        holds(version == "v2", version)
    })
    .await;
    let left = pods(rack, "infra", "web").unwrap();
    assert!(left.iter().any(|pod| pod["metadata"]["uid"] == companion["metadata"]["uid"]));

    hosts.kubectl(&["delete", "deployment", "web"]).unwrap();
    eventually("companions are deleted with their workloads", || async {
        let left = pods(rack, "infra", "web")?;
        holds(left.is_empty(), format!("{} are left", left.len()))
    })
    .await;
}
