//! The setting of the managers for the taint on tenants' DPUs.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use outrigger_core::keys;
use outrigger_tests::tenant::{Tenant, is_ready};
use outrigger_tests::{create, holds, until};
use serde_json::json;

use super::alone;

/// Waits until the DPU is the tenant's and has the taint, or hasn't.
async fn is_tainted(nodes: &Api<Node>, dpu: &str, tenant: &str, wanted: bool) {
    until(&format!("the DPU is tainted: {wanted}"), nodes, dpu, |node| {
        assert_eq!(
            node.labels().get(keys::NODE_TENANT).map(String::as_str),
            Some(tenant),
            "it is always owned"
        );
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let is_tainted = taints.iter().any(|taint| taint.key == keys::TENANT);
        holds(is_tainted == wanted, format!("{taints:?}"))
    })
    .await;
}

/// Waits until a DaemonSet has Pods on so many Nodes, and may have them on `wanted`.
async fn runs(sets: &Api<DaemonSet>, wanted: i32, current: i32) {
    until(&format!("{current} Pods, {wanted} wanted"), sets, "network", |set| {
        let status = set.status.unwrap_or_default();
        let observed = status.observed_generation.is_some();
        let found = (status.desired_number_scheduled, status.current_number_scheduled);
        holds(observed && found == (wanted, current), format!("{status:?}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_of_the_platform_starts_on_a_tenants_dpu_that_is_not_tainted() {
    let (_one, installed) = alone().await;
    let (o, front) = (&installed.outrigger, &installed.managers);
    let t = Tenant::without_agent(o, "plain", &[("a", 1)]).await;
    let (nodes, dpu) = (Api::<Node>::all(t.infra.clone()), t.node("a-dpu1"));
    let sets: Api<DaemonSet> = Api::namespaced(t.infra.clone(), "default");
    let labels = json!({"app": "network"});
    let spec =
        json!({"nodeSelector": {keys::DPU_HOST: t.node("a")}, "containers": [{"name": "c", "image": "i"}]});
    is_tainted(&nodes, &dpu, "plain", true).await;
    let set = json!({"metadata": {"name": "network"}, "spec": {"selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec}}});
    create(&sets, &set).await.unwrap();
    runs(&sets, 0, 0).await;

    let mut replicas = installed.replicas.lock().await;
    let manager = &mut replicas.manager;
    manager.flags.push("--taint-dpus=false".to_owned());
    manager.roll(o, front).await;
    is_tainted(&nodes, &dpu, "plain", false).await;
    runs(&sets, 1, 1).await;
    manager.flags.pop();
    manager.roll(o, front).await;
    is_tainted(&nodes, &dpu, "plain", true).await;
    let pods: Api<Pod> = Api::namespaced(t.infra.clone(), "default");
    let all = pods.list(&ListParams::default().labels("app=network")).await.unwrap().items;
    assert_eq!(all.iter().filter(|pod| is_ready(pod)).count(), 1, "Kubernetes lets it run on");
    sets.delete("network", &DeleteParams::default()).await.unwrap();
}
