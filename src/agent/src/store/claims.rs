//! Tests of workloads whose Pods wait to be bound.

use outrigger_core::gate::Hold;
use outrigger_core::keys;
use serde_json::json;

use super::*;

#[test]
fn a_workload_has_the_node_of_its_claim_until_its_pod_is_bound() {
    let store = Arc::new(WorkloadStore::default());
    let mut sink = store.pods(None);
    let ours = keys::COMPANIONS_CLAIM;
    let mut waits = json!({"metadata": {"uid": "a", "name": "a", "namespace": "x"},
        "spec": {"resourceClaims": [{"name": ours, "resourceClaimTemplateName": Hold::Binding.template()}]},
        "status": {"resourceClaimStatuses": [{"name": ours, "resourceClaimName": "c"}]}});
    let claim = |node: &str| {
        let result = json!({"driver": keys::COMPANIONS_DRIVER, "pool": node, "device": "d",
            "request": "r", "bindingConditions": [keys::CLAIM_READY]});
        let claim = json!({"metadata": {"name": "c", "namespace": "x", "uid": "c", "resourceVersion": "1",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "a", "controller": true}]},
            "spec": {}, "status": {"allocation": {"devices": {"results": [result]}}}});
        store.claim(Change::Applied(serde_json::from_value(claim).unwrap()));
    };
    let node = || {
        let state = store.state.lock();
        state.workloads.values().next().and_then(|workload| workload.node_name.clone())
    };
    sink(Event::Applied(serde_json::from_value(waits.clone()).unwrap()));
    assert_eq!(node(), None);
    claim("host-a");
    assert_eq!(node().as_deref(), Some("host-a"));
    claim("host-b");
    assert_eq!(node().as_deref(), Some("host-b"), "the scheduler has chosen again");
    let leaves = json!({"metadata": {"name": "c", "namespace": "x", "uid": "c", "resourceVersion": "2",
        "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}});
    store.claim(Change::Applied(serde_json::from_value(leaves).unwrap()));
    assert_eq!(node().as_deref(), Some("host-b"), "the claim is deleted with the Pod, whose end comes later");
    waits["spec"]["nodeName"] = json!("host-c");
    sink(Event::Applied(serde_json::from_value(waits).unwrap()));
    claim("host-a");
    assert_eq!(node().as_deref(), Some("host-c"), "it is bound");
}
