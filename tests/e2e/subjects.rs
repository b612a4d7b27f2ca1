//! `outrigger explain` of a Tenant, a host, a Machine, a namespace and a claim, as a real cluster has them.

use outrigger_core::keys;
use outrigger_tests::control_plane::Cluster;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::Tenant;
use outrigger_tests::{eventually, holds};
use serde_json::{Value, json};

/// The report about an object.
fn explained(o: &Outrigger, cluster: &Cluster, subject: &[&str]) -> Result<Value, String> {
    let kubeconfig = format!("--kubeconfig={}", cluster.kubeconfig.display());
    let (code, report) = o.report(&[&["explain"], subject, &[kubeconfig.as_str()]].concat())?;
    holds(code == Some(0), report.to_string()).map(|()| report)
}

/// Waits until these causes are named, the first first, and returns the report.
async fn names(o: &Outrigger, subject: &[&str], causes: &[&str]) -> Value {
    eventually(&format!("{subject:?} names {causes:?}"), || async {
        let report = explained(o, &o.plane.infra, subject)?;
        let wrong = report["wrong"].as_array().unwrap();
        let found: Vec<&str> = wrong.iter().map(|wrong| wrong["cause"].as_str().unwrap()).collect();
        holds(found == causes, report.to_string()).map(|()| report.clone())
    })
    .await
}

#[tokio::test]
async fn a_tenant_and_its_hosts_say_what_is_wrong_with_them() {
    let o = Outrigger::shared().await;
    let t = Tenant::new(o, "subjects", &[("a", 1), ("b", 0)]).await;
    let (a, b, dpu) = (t.node("a"), t.node("b"), t.node("a-dpu1"));
    // The Tenant lists a host without a DPU.
    let report = names(o, &["tenant", &t.id], &["NoDPU"]).await;
    let wrong = &report["wrong"][0];
    assert_eq!(wrong["about"], "condition HostsReady", "{report}");
    assert!(wrong["message"].as_str().unwrap().contains(&b) && wrong["since"].is_string(), "{report}");
    names(o, &["host", &b], &["NoDPU"]).await;
    let fine = names(o, &["host", &a], &[]).await;
    assert_eq!(names(o, &["host", &dpu], &[]).await, fine, "the host of a DPU's Node");

    t.set(json!({"hosts": [a]})).await.unwrap();
    names(o, &["tenant", &t.id], &[]).await;
    o.plane.infra.cordon(&dpu, true);
    let report = names(o, &["host", &a], &["DPUNotReady"]).await;
    assert_eq!(report["wrong"][0]["about"], format!("tenant {}", t.id), "{report}");
    o.plane.command("term agent-subjects").unwrap();
    names(o, &["tenant", &t.id], &["StreamLost"]).await;

    let missing = format!("--kubeconfig={}", o.plane.infra.kubeconfig.display());
    let output = o.output(&["explain", "host", "nowhere", &missing]).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no host or DPU nowhere"));
}

#[tokio::test]
async fn machines_namespaces_and_claims_say_what_is_wrong_with_them() {
    let o = Outrigger::shared().await;
    let infra = &o.plane.infra;
    let (name, node) = ("subj-m", "subj-m-n1");
    let size = json!({"cpu": "1", "memory": "64Gi", "pods": "110"});
    let machine = json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": name, "labels": {keys::MACHINE_GROUP: name}},
        "spec": {"nodePool": [{"name": node, "mode": "ready", "taint": false, "machineType": [{"name": "t"}]}],
            "machineTypes": [{"name": "t", "available": 2, "spec": {"cpu": "1", "memory": "1Gi"}}]}});
    infra
        .apply(&[json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node},
            "status": {"capacity": size, "allocatable": size}})])
        .unwrap();
    eventually("the Machine is admitted", || async {
        infra.apply(std::slice::from_ref(&machine)).map_err(|e| e.to_string())
    })
    .await;
    eventually("one slot has a place", || async {
        let report = names(o, &["machine", name], &["NoRoom"]).await;
        let message = &report["wrong"][0]["message"];
        holds(message == "1 of 2 slots find no place on its nodes", report.to_string())
    })
    .await;

    let offloading = |region: &str| {
        json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
            "metadata": {"name": "offloading", "namespace": "subj-off"},
            "spec": {"podOffloadingStrategy": "Remote", "clusterSelector": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "subj-region", "operator": "In", "values": [region]}]}]}}})
    };
    infra
        .apply(&[
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "subj-off"}}),
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "subj-virtual",
                "labels": {keys::NODE_TYPE: keys::VIRTUAL_NODE, "subj-region": "us"}}}),
            offloading("eu"),
        ])
        .unwrap();
    names(o, &["namespace", "subj-off"], &["NoClusterSelected"]).await;
    infra.kubectl(&["delete", "namespaceoffloading", "offloading", "-n", "subj-off"]).unwrap();
    infra.apply(&[offloading("us")]).unwrap();
    let report = names(o, &["namespace", "subj-off"], &[]).await;
    assert!(report["facts"].to_string().contains("subj-virtual"), "{report}");

    infra
        .apply(&[json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": "c", "namespace": "subj-off"},
            "spec": {"devices": {"requests": [{"name": "d", "exactly": {"deviceClassName": "subj-none"}}]}}})])
        .unwrap();
    let report = names(o, &["claim", "c", "-n=subj-off"], &["ClaimNotAllocated"]).await;
    let why = report["wrong"][0]["message"].as_str().unwrap();
    assert!(why.contains("subj-none") || why.contains("no Pod uses it"), "{report}");
}
