//! What a tenant's own user may do with companions.

use outrigger_tests::outrigger::SYSTEM;
use outrigger_tests::tenant::rule;
use outrigger_tests::{InWords, eventually, holds};
use serde_json::json;

use super::shared::turn;
use super::workloads::{deployment, name, ready, runs, spec, workload};

#[tokio::test]
async fn a_user_of_the_tenants_namespace_reads_logs_and_runs_commands_in_its_companions_alone() {
    let turn = turn().await;
    let (rack, infra, hosts) = (turn.rack, &turn.rack.plane.infra, &turn.rack.plane.tenant);
    let metadata = json!({"name": "alice", "namespace": "tenant-blue"});
    infra
        .apply(&[
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": [
                {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]}]}),
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "alice"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}]}),
            rule("tenant-blue", "read", spec("read", &runs("echo workload $NAME"))),
        ])
        .unwrap();
    hosts.apply(&[deployment("read", 1)]).unwrap();
    let companion = ready(rack, "infra", "read", 1).await.remove(0);
    // First: behind `--` it would be the command's.
    let as_alice = |args: &[&str]| infra.kubectl(&[&["--as=alice"], args].concat());

    // The API server learns of a new binding a moment later.
    let log = eventually("alice reads a log", || async {
        as_alice(&["logs", name(&companion), "-n", "tenant-blue"]).in_words()
    })
    .await;
    assert_eq!(log, format!("workload {}\n", workload(&companion)));
    let says = as_alice(&["exec", name(&companion), "-n", "tenant-blue", "--", "sh", "-c", "echo $NAME"]);
    assert_eq!(says.unwrap(), format!("{}\n", workload(&companion)));

    let pods = infra.get(&["pods", "-n", SYSTEM]).unwrap();
    let others = name(&pods["items"][0]);
    for what in [&["logs", others, "-n", SYSTEM][..], &["exec", others, "-n", SYSTEM, "--", "/outrigger"]] {
        let refused = as_alice(what).unwrap_err().to_string();
        assert!(refused.contains("forbidden"), "{refused}");
    }
    hosts.kubectl(&["delete", "deployment", "read"]).unwrap();
    infra.kubectl(&["delete", "workloadrule", "read", "-n", "tenant-blue"]).unwrap();
    eventually("nothing is left of it", || async {
        let left = super::workloads::pods(rack, "infra", "read")?;
        holds(left.is_empty(), format!("{} companions", left.len()))
    })
    .await;
}
