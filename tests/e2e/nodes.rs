//! The DPUs of hosts, told at the tenant's own Nodes.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::Api;
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::shipped::kustomize;
use outrigger_tests::tenant::{Tenant, dpu, host, node_of, rule_for};
use outrigger_tests::{always, eventually, holds, until};
use serde_json::json;

const OTHER: &str = "example.com/other";

/// What the agent says at a Node: status and reason of its condition, and the keys of all taints but those of the cluster's own
/// controllers.
fn said(node: &Node) -> (Option<(String, String)>, Vec<String>) {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ours = conditions.into_iter().find(|condition| condition.type_ == keys::DPU_READY);
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let mut taints: Vec<String> = taints
        .filter(|taint| !taint.key.starts_with("node.kubernetes.io/"))
        .map(|taint| format!("{}:{}", taint.key, taint.effect))
        .collect();
    taints.sort();
    (ours.map(|ours| (ours.status.clone(), ours.reason.clone().unwrap_or_default())), taints)
}

async fn says(nodes: &Api<Node>, name: &str, condition: Option<(&str, &str)>, taints: &[&str]) {
    until(&format!("{name} says {condition:?} {taints:?}"), nodes, name, |node| {
        let (found, keys) = said(&node);
        let found = found.as_ref().map(|(status, reason)| (status.as_str(), reason.as_str()));
        holds(found == condition && keys == taints, format!("{found:?} {keys:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_dpu_that_fails_marks_the_node_of_its_host_and_no_other_until_it_recovers() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "nd", &[("a", 1), ("b", 1)]).await;
    let (infra, cluster) = (&o.plane.infra, &o.plane.tenant);
    for part in ["agent-nodes", "agent-node-taints"] {
        cluster.apply(&kustomize(&format!("deploy/base/{part}")).unwrap()).unwrap();
    }
    let (a, b, none, dpu) = (t.node("a"), t.node("b"), t.node("none"), t.node("a-dpu1"));
    cluster.apply(&[host(&none)]).unwrap();
    cluster.kubectl(&["taint", "node", &a, &format!("{OTHER}:NoSchedule")]).unwrap();
    let (kept, ours) = (format!("{OTHER}:NoSchedule"), format!("{}:NoSchedule", keys::DPU_NOT_READY));
    let admin = t.start_agent_with_admin(&["--node-conditions".to_owned(), "--node-taints".to_owned()]);
    let nodes: Api<Node> = Api::all(t.cluster.clone());
    let ready = Some(("True", "Ready"));
    says(&nodes, &a, ready, &[&kept]).await;
    says(&nodes, &b, ready, &[]).await;

    infra.kubectl(&["cordon", &dpu]).unwrap();
    says(&nodes, &a, Some(("False", "DPUNotReady")), &[&kept, &ours]).await;
    says(&nodes, &b, ready, &[]).await;

    // Whatever else changes on a Node causes no write.
    let writes = async || Outrigger::metric(admin, "outrigger_agent_node_writes", "_total").await;
    let before = eventually("the writes are counted", async || {
        let count = writes().await?;
        holds(count >= 4.0, count.to_string())?;
        Ok::<_, String>(count)
    })
    .await;
    let label = json!({"metadata": {"labels": {OTHER: "x"}}});
    cluster.patch(&format!("node/{a}"), &[], &label).unwrap();
    always("nothing is written", Duration::from_secs(3), || async {
        let count = writes().await?;
        holds(count == before, format!("{count}, not {before}"))
    })
    .await;

    infra.kubectl(&["uncordon", &dpu]).unwrap();
    says(&nodes, &a, ready, &[&kept]).await;
    // The DPU is gone for good, and then the host too.
    infra.kubectl(&["delete", "node", &dpu]).unwrap();
    says(&nodes, &a, Some(("False", "NoDPU")), &[&kept, &ours]).await;
    t.set(json!({"hosts": [b]})).await.unwrap();
    says(&nodes, &a, None, &[&kept]).await;
    says(&nodes, &b, ready, &[]).await;
    says(&nodes, &none, None, &[]).await;
    o.plane.command("term agent-nd").unwrap();
}

#[tokio::test]
async fn labels_of_hosts_change_while_companions_run_and_wait() {
    let t = Tenant::new(Outrigger::shared().await, "relabel", &[("a", 1), ("late", 0)]).await;
    let infra = &t.outrigger.plane.infra;
    let (a, late) = (t.node("a"), t.node("late"));
    t.rule("r", rule_for("app", "web")).await;
    t.web("w1").await;
    let runs = t.companion().await;
    assert_eq!(node_of(&runs), t.node("a-dpu1"));
    // As the platform does it: first both labels, then the new one alone.
    let dpu_of_a = format!("node/{}", t.node("a-dpu1"));
    for labels in [json!({keys::DPU_NODE_NAME: a}), json!({keys::DPU_HOST: null})] {
        infra.patch(&dpu_of_a, &[], &json!({"metadata": {"labels": labels}})).unwrap();
    }
    t.start("w2", "late", json!({"app": "web"})).await;
    let waits = eventually("it waits", async || {
        let all = t.companions().await?;
        all.into_iter().find(|c| c.metadata.uid != runs.metadata.uid).ok_or_else(|| "none".to_owned())
    })
    .await;
    t.web("w3").await;
    let mut node = dpu(&t.node("late-dpu1"), &late);
    node["metadata"]["labels"] = json!({keys::DPU_NODE_NAME: late});
    infra.apply(&[node]).unwrap();
    let all = t.ready(3).await;
    let on = |uid: &Option<String>| all.iter().find(|c| c.metadata.uid == *uid).map(node_of);
    assert_eq!(on(&runs.metadata.uid), Some(&*t.node("a-dpu1")), "the same Pod runs on");
    assert_eq!(on(&waits.metadata.uid), Some(&*t.node("late-dpu1")), "the same Pod has found its DPU");
    assert_eq!(all.iter().filter(|c| node_of(c) == t.node("a-dpu1")).count(), 2);
}
