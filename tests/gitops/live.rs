//! Real objects of a real installation, as the tools judge them.

use kube::api::DeleteParams;
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, machine, namespace, rule_for, rule_with};
use outrigger_tests::{InWords, eventually, holds};
use serde_json::{Value, json};

use crate::gitops::judge::judge;

/// Waits until kstatus, Flux and Argo CD say this of an object.
async fn has_verdict(what: &str, get: impl Fn() -> Result<Value, String>, expected: [&str; 3]) {
    eventually(&format!("{what} is {expected:?}"), || async {
        let object = get()?;
        let verdicts = judge(std::slice::from_ref(&object));
        holds(verdicts[0].words() == expected, format!("{verdicts:?}: {}", object["status"]))
    })
    .await;
}

const HEALTHY: [&str; 3] = ["Current", "Current", "Healthy"];
const REFUSED: [&str; 3] = ["InProgress", "Failed", "Degraded"];

#[tokio::test(flavor = "multi_thread")]
async fn rules_and_tenants_are_validated_in_both_clusters() {
    let o = Outrigger::shared().await;
    let t = Tenant::new(o, "gitops", &[("a", 1)]).await;
    let tenant = || o.plane.infra.get(&["tenant", "gitops"]).in_words();
    has_verdict("the Tenant", tenant, HEALTHY).await;

    t.own_rule("gitops", rule_for("app", "web")).await.unwrap();
    let theirs = || o.plane.tenant.get(&["workloadrule", "gitops", "-n", &t.source]).in_words();
    let ours = || o.plane.infra.get(&["workloadrule", "gitops", "-n", &t.namespace]).in_words();
    has_verdict("the rule without workloads", theirs, HEALTHY).await;
    t.web("web").await;
    t.ready(1).await;
    has_verdict("the rule with its companion", theirs, HEALTHY).await;
    has_verdict("the same in the infrastructure cluster", ours, HEALTHY).await;

    // The API server refuses its template, and that is written with the generation that it is about.
    let broken = rule_with("/template/spec/containers/0/image", json!(""));
    t.own_rule("gitops-refused", broken).await.unwrap();
    let refused = || o.plane.tenant.get(&["workloadrule", "gitops-refused", "-n", &t.source]).in_words();
    has_verdict("the rule whose template is refused", refused, REFUSED).await;

    // A host without a DPU.
    t.set(json!({"hosts": ["gitops-a", "gitops-nowhere"]})).await.unwrap();
    t.is("HostsReady", Status::False, "NoDPU").await;
    has_verdict("the Tenant without a DPU", tenant, REFUSED).await;
    for name in ["gitops", "gitops-refused"] {
        t.own_rules().delete(name, &DeleteParams::default()).await.unwrap();
        t.rule_is_gone(name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_and_offloaded_namespaces_are_validated() {
    let o = Outrigger::shared().await;
    let infra = &o.plane.infra;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gitops-n"},
        "status": {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}});
    infra.apply(&[node]).unwrap();
    let group = machine("gitops-group", &[("gitops-n", "t")], &[("t", 0)]);
    eventually("admission knows the Node", || async { infra.apply(std::slice::from_ref(&group)) }).await;
    let machine = || infra.get(&["machine", "gitops-group"]).in_words();
    let pool = || infra.get(&["machinenodepool", "gitops-group-node-pool"]).in_words();
    has_verdict("the Machine", machine, HEALTHY).await;
    has_verdict("its pool", pool, HEALTHY).await;
    let observed = |object: Value| object["status"]["observedGeneration"] == object["metadata"]["generation"];
    assert!(observed(machine().unwrap()) && observed(pool().unwrap()));
    infra.kubectl(&["delete", "node", "gitops-n"]).unwrap();
    has_verdict("the pool without its Node", pool, REFUSED).await;
    has_verdict("its Machine", machine, REFUSED).await;
    infra.kubectl(&["delete", "machine", "gitops-group"]).unwrap();

    let virtual_node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gitops-virtual",
        "labels": {keys::NODE_TYPE: keys::VIRTUAL_NODE, "gitops": "yes"}}});
    infra.apply(&[namespace("gitops-offloaded"), virtual_node]).unwrap();
    let offloading = |value: &str| {
        let term = json!({"matchExpressions": [{"key": "gitops", "operator": "In", "values": [value]}]});
        let object = json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
            "metadata": {"name": "offloading", "namespace": "gitops-offloaded"},
            "spec": {"clusterSelector": {"nodeSelectorTerms": [term]}}});
        infra.apply(&[object]).unwrap();
    };
    let get = || infra.get(&["namespaceoffloading", "offloading", "-n", "gitops-offloaded"]).in_words();
    offloading("yes");
    has_verdict("the NamespaceOffloading", get, HEALTHY).await;
    offloading("no");
    // It has no condition that kstatus knows.
    has_verdict("the NamespaceOffloading that selects nothing", get, ["Current", "Failed", "Degraded"]).await;
}
