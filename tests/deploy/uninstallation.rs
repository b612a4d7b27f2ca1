//! docs/installation.md's way out: by its own commands, on what really runs.

use outrigger_core::keys;
use outrigger_tests::outrigger::{Outrigger, SYSTEM};
use outrigger_tests::tenant::{Tenant, namespace, rule_for, template};
use outrigger_tests::{eventually, holds, root};
use serde_json::{Value, json};

use crate::deploy::cluster::{block, shell};
use crate::deploy::overlay;

/// A Machine with one node, a namespace that is offloaded, and a rule of the platform.
fn more() -> Vec<Value> {
    let slot = json!({"cpu": "1", "memory": "1Gi", "gpu": {"type": "nvidia.com/gpu", "num": "1", "family": "turing"}});
    vec![
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "machine", "labels": {keys::GPU_FAMILY: "turing"}}}),
        json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "leaving", "labels": {keys::MACHINE_GROUP: "leaving"}},
            "spec": {"nodePool": [{"name": "machine", "mode": "ready", "taint": true, "machineType": [{"name": "small"}]}],
                "machineTypes": [{"name": "small", "spec": slot, "available": 1}]}}),
        namespace("offloaded"),
        json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
            "metadata": {"name": "offloading", "namespace": "offloaded"}, "spec": {"podOffloadingStrategy": "Remote"}}),
        json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "AdminWorkloadRule",
            "metadata": {"name": "everywhere", "namespace": keys::ADMIN_NAMESPACE},
            "spec": {"workloadTerms": [{"matchExpressions": [{"key": "@", "operator": "Exists"}]}], "template": template()}}),
    ]
}

/// The finalizers of all objects of these kinds.
fn finalizers(cluster: &outrigger_tests::control_plane::Cluster, kinds: &str) -> String {
    let path = "jsonpath={.items[*].metadata.finalizers[*]}";
    cluster.kubectl(&["get", kinds, "-A", "-o", path]).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_goes_and_nothing_hangs() {
    let o = Outrigger::shared().await;
    let (infra, tenant) = (&o.plane.infra, &o.plane.tenant);
    let t = Tenant::new(o, "leaving", &[("a", 1)]).await;
    eventually("the objects are taken", || async { infra.apply(&more()) }).await;
    t.own_rule("r", rule_for("app", "web")).await.unwrap();
    t.web("w").await;
    t.ready(1).await;
    eventually("all of it would hang without us", || async {
        let found = finalizers(infra, "tenants,namespaceoffloadings,machinenodepools");
        let wanted = [keys::TENANT_FINALIZER, keys::OFFLOADING_FINALIZER, keys::POOL_FINALIZER];
        let all = wanted.iter().all(|wanted| found.contains(wanted));
        let theirs = finalizers(tenant, "workloadrules");
        let marks =
            infra.kubectl(&["get", "node", "machine", "-o", "jsonpath={.spec.taints} {.metadata.labels}"]);
        let all = all && marks.unwrap().contains("imperator.tenzen-y.io/");
        holds(all && theirs.contains(keys::RULE_FINALIZER), format!("{found} {theirs}"))
    })
    .await;

    // A user's own overlay, beside those that are shipped.
    std::fs::create_dir_all(root().join("target")).unwrap();
    let dir = tempfile::tempdir_in(root().join("target")).unwrap();
    let dir = dir.path();
    let own = format!("resources: [../../{}]\n", overlay("infrastructure"));
    std::fs::write(dir.join("kustomization.yaml"), own).unwrap();
    let shipped = format!("-k {}/deploy/", root().display());
    let theirs = block("installation.md", "kubectl delete --ignore-not-found -k deploy")
        .replace("-k deploy/", &shipped);
    shell(dir, &tenant.kubeconfig, &theirs);
    shell(dir, &infra.kubeconfig, &block("installation.md", "kubectl delete tenants"));
    // Nodes are as they were.
    for node in [t.node("a-dpu1").as_str(), "machine"] {
        let node = infra.get(&["node", node]).unwrap();
        let marks = format!("{} {}", node["spec"]["taints"], node["metadata"]["labels"]);
        assert!(!marks.contains("outrigger.dev") && !marks.contains("imperator.tenzen-y.io/"), "{marks}");
    }
    let labels =
        infra.kubectl(&["get", "namespace", "offloaded", "-o", "jsonpath={.metadata.labels}"]).unwrap();
    assert!(!labels.contains(keys::OFFLOADED), "{labels}");
    shell(dir, &infra.kubeconfig, &block("installation.md", "kubectl delete --ignore-not-found -k .\n"));

    for cluster in [infra, tenant] {
        let left = "namespaces,customresourcedefinitions,clusterroles,clusterrolebindings,priorityclasses,\
                    validatingadmissionpolicies,mutatingwebhookconfigurations,validatingwebhookconfigurations";
        let left = cluster.kubectl(&["get", left, "-o", "name"]).unwrap();
        for ours in ["outrigger", "universe", "imperator", "liqo", t.namespace.as_str(), SYSTEM] {
            assert!(!left.contains(ours), "{ours}: {left}");
        }
    }
}
