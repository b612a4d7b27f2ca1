//! The DPUs of hosts, reported at the tenant's own Nodes.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::api::{Api, DeleteParams};
use kube::{Client, ResourceExt};
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::shipped::kustomize;
use outrigger_tests::stream::update;
use outrigger_tests::tenant::{Tenant, dpu, host, is_ready, node_of, rule_for};
use outrigger_tests::user::{ask, client};
use outrigger_tests::{always, eventually, holds, until};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};

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

/// Waits until no other test has an agent that writes on Nodes: a cluster has one such agent, which takes its marks from each Node
/// that is no host of its tenant's.
async fn marks_nodes_alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

#[tokio::test]
async fn a_dpu_that_fails_marks_the_node_of_its_host_and_no_other_until_it_recovers() {
    let _alone = marks_nodes_alone().await;
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

    infra.cordon(&dpu, true);
    says(&nodes, &a, Some(("False", "DPUNotReady")), &[&kept, &ours]).await;
    says(&nodes, &b, ready, &[]).await;

    // Whatever else changes on a Node causes no write.
    let writes = async || Outrigger::metric(admin, "outrigger_agent_node_writes", "_total").await;
    // A write is counted after its answer, so the Node shows it earlier.
    let before = eventually("the writes are counted", async || {
        let count = writes().await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let later = writes().await?;
        holds(count >= 4.0 && count == later, format!("{count}, and then {later}"))?;
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

    infra.cordon(&dpu, false);
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

/// What of a DPU's Node is Outrigger's, or names its host.
fn owned(node: &Node) -> (Vec<(String, String)>, Vec<Taint>) {
    let labels = node.labels().iter().filter(|(key, _)| keys::is_own(key) || *key == keys::DPU_HOST);
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    (
        labels.map(|(key, value)| (key.clone(), value.clone())).collect(),
        taints.filter(|taint| keys::is_own(&taint.key)).cloned().collect(),
    )
}

/// Waits until the only companion is ready on this DPU.
async fn runs_on(t: &Tenant, dpu: &str) {
    eventually(&format!("the companion runs on {dpu}"), async || {
        let all = t.companions().await?;
        let found: Vec<(&str, bool)> = all.iter().map(|pod| (node_of(pod), is_ready(pod))).collect();
        holds(found == [(dpu, true)], format!("{found:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_host_that_is_a_node_of_another_name_has_that_nodes_companions() {
    let _alone = marks_nodes_alone().await;
    let o = Outrigger::shared().await;
    let (infra, cluster) = (&o.plane.infra, &o.plane.tenant);
    let other = Tenant::without_agent(o, "hnother", &[("a", 1)]).await;
    let t = Tenant::without_agent(o, "hn", &[]).await;
    cluster.apply(&kustomize("deploy/base/agent-nodes").unwrap()).unwrap();
    let (a, b) = (t.node("a"), t.node("b"));
    // The platform has made these names up, and the second is that of a Node in the tenant's cluster.
    let (first, second) = (t.node("serial1"), t.node("serial2"));
    cluster.apply(&[host(&a), host(&b), host(&second)]).unwrap();
    let (first_dpu, second_dpu) = (format!("{first}-dpu"), format!("{second}-dpu"));
    infra.apply(&[dpu(&first_dpu, &first), dpu(&second_dpu, &second)]).unwrap();
    let names = |on_first: &str, on_second: &str| json!([{"node": on_first, "host": first}, {"node": on_second, "host": second}]);
    let others_dpu = owned(&t.nodes().get(&other.node("a-dpu1")).await.unwrap());
    t.set(json!({"hosts": [first, second], "hostNames": names(&a, &b)})).await.unwrap();
    t.is("HostsReady", Status::True, "Served").await;
    t.start_agent(&["--node-conditions".to_owned()]);
    t.rule("r", rule_for("app", "web")).await;

    t.web("w").await;
    runs_on(&t, &first_dpu).await;
    let nodes: Api<Node> = Api::all(t.cluster.clone());
    for node in [&a, &b] {
        says(&nodes, node, Some(("True", "Ready")), &[]).await;
    }
    // The DPU in the host of its name serves another Node.
    says(&nodes, &second, None, &[]).await;
    t.start("stray", "serial2", json!({"app": "web"})).await;
    t.condition_says("r", "Ready", Status::False, "Refused", &[&second, "spec.hostNames"]).await;
    t.work().delete("stray", &DeleteParams::default()).await.unwrap();
    runs_on(&t, &first_dpu).await;

    t.set(json!({"hostNames": names(&b, &a)})).await.unwrap();
    runs_on(&t, &second_dpu).await;
    t.set(json!({"hostNames": []})).await.unwrap();
    let message = t.condition("r", "Ready", Status::False, "NoDPU").await;
    assert!(
        message.contains(&format!("is in host {a}: ")) && message.contains("spec.hostNames"),
        "{message}"
    );
    says(&nodes, &a, None, &[]).await;
    // Neither the Tenant's Nodes nor its names of them are what gives a DPU to a tenant.
    let refused = t.set(json!({"hosts": [first, other.node("a")]})).await.unwrap_err();
    assert!(refused.contains("spec.hosts[1]") && refused.contains("hnother"), "{refused}");
    let refused = t.set(json!({"hostNames": [{"node": a, "host": other.node("a")}]})).await.unwrap_err();
    assert!(refused.contains("spec.hostNames[0].host") && refused.contains("add it there"), "{refused}");
    assert_eq!(owned(&t.nodes().get(&other.node("a-dpu1")).await.unwrap()), others_dpu);
}

#[tokio::test]
async fn two_tenants_have_a_node_of_one_name() {
    let o = Outrigger::shared().await;
    let (blue, red) =
        (Tenant::without_agent(o, "hnblue", &[]).await, Tenant::without_agent(o, "hnred", &[]).await);
    let mut streams = Vec::new();
    for t in [&blue, &red] {
        let serial = t.node("serial");
        o.plane.infra.apply(&[dpu(&format!("{serial}-dpu"), &serial)]).unwrap();
        t.set(json!({"hosts": [serial], "hostNames": [{"node": "hn-worker", "host": serial}]}))
            .await
            .unwrap();
        t.rule("r", rule_for("app", "web")).await;
        streams.push(t.opens_stream([update("w", "hn-worker")]).await);
    }
    for t in [&blue, &red] {
        runs_on(t, &t.node("serial-dpu")).await;
    }
}

#[tokio::test]
async fn a_kubelet_may_not_say_which_host_a_node_is() {
    let t = Tenant::without_agent(Outrigger::shared().await, "hnkubelet", &[("a", 1)]).await;
    let dpu = t.node("a-dpu1");
    let names = json!({"spec": {"hostNames": [{"node": "n", "host": t.node("a")}]}});
    let host = json!({"metadata": {"labels": {keys::DPU_HOST: "another"}}});
    let (tenant, node) =
        (format!("/apis/outrigger.dev/v1alpha1/tenants/{}", t.id), format!("/api/v1/nodes/{dpu}"));
    let by = async |client: &Client, path: &str, body| {
        let path = format!("{path}?dryRun=All");
        ask(client, Method::PATCH, &path, "application/merge-patch+json", body).await
    };
    let kubeconfig = &t.outrigger.plane.infra.kubeconfig;
    let kubelet =
        client(kubeconfig, Some((&format!("system:node:{dpu}"), &["system:nodes", "system:authenticated"])))
            .await;
    for (path, body) in [(&tenant, &names), (&node, &host)] {
        // An API server enforces a new policy only after a while.
        eventually("the kubelet is refused", async || {
            let answer = by(&kubelet, path, body).await.err();
            holds(answer.as_ref().is_some_and(|refused| refused.starts_with("403")), format!("{answer:?}"))
        })
        .await;
    }
    let admin = client(kubeconfig, None).await;
    by(&admin, &tenant, &names).await.unwrap();
}
