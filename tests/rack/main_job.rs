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

    // A user of the tenant's namespace reads them too, and nothing of the platform's.
    let user = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "alice", "namespace": "tenant-blue"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}]});
    infra.apply(&[user]).unwrap();
    let as_alice = |args: &[&str]| infra.kubectl(&[args, &["--as=alice"]].concat());
    let companion = &companions[0];
    let log = as_alice(&["logs", name(companion), "-n", "tenant-blue"]).unwrap();
    assert_eq!(log, format!("workload {}\n", workload(companion)));
    let refused = as_alice(&["logs", "deployment/outrigger-webhook", "-n", "outrigger-system"]).unwrap_err();
    assert!(refused.to_string().contains("forbidden"), "{refused}");

    // A fact that changes later is in the file, in the same container.
    hosts
        .patch(
            &format!("pod/{}", workload(companion)),
            &[],
            &json!({"metadata": {"labels": {"version": "v2"}}}),
        )
        .unwrap();
    eventually("the kubelet writes the new fact into the file", || async {
        let says = ["exec", name(companion), "-n", "tenant-blue", "--", "cat", "/facts/version"];
        let version = as_alice(&says).in_words()?;
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
