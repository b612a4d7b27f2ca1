//! Conversion of Pods to workloads.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use outrigger_core::ids::{WorkloadId, hex};
use outrigger_core::texts::Texts;
use outrigger_core::workload::{DEVICE_HEALTH, DisruptionGroup, Orchestrator, POD, Workload};
use outrigger_core::{fault, keys};
use outrigger_runtime::pod::{Health, Pod, Status};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

use crate::disruption;

/// Reports whether a Pod is a workload: one that has terminated, in phase Succeeded or Failed, is none.
pub(crate) fn is_workload(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    match phase {
        Some("Failed") => fault("failed-pod-stays-a-workload"),
        phase => phase != Some("Succeeded"),
    }
}

/// Reports whether a Pod has the readiness gate of companions.
pub(crate) fn is_gated(pod: &Pod) -> bool {
    let mut gates = pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
    gates.any(|gate| gate.condition_type == keys::COMPANIONS_GATE)
}

/// The id of the group of the Pods in a namespace that one controller owns. It has the namespace in it, because whoever creates a Pod chooses
/// the uid of its owner: with one of another namespace, the Pod would count among the owner's.
pub fn owner_group(namespace: &str, uid: &str) -> String {
    hex(&Sha256::digest(format!("{namespace}/{uid}")), 32)
}

/// The group of the Pods that one controller owns, such as a ReplicaSet.
fn owner(metadata: &ObjectMeta) -> Option<DisruptionGroup> {
    let owner = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    let group = disruption::group(&owner.uid, None)?;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    Some(DisruptionGroup { id: owner_group(namespace, &group.id).into(), ..group })
}

/// The health of the devices of a Pod's containers, as a map of `state.extra`; `None` where the kubelet says nothing of it.
fn device_health(status: &Status) -> Option<Texts> {
    let mut worst: BTreeMap<&str, Health> = BTreeMap::new();
    for (of, health) in status.containers().flat_map(|container| &container.devices.health) {
        let known = worst.entry(of).or_insert(*health);
        *known = (*health).max(*known);
    }
    let texts: Vec<(&str, &str)> = worst.into_iter().map(|(of, health)| (of, health.as_str())).collect();
    (!texts.is_empty()).then(|| Texts::new(texts))
}

/// Converts a Pod to a workload, with the group of its owner only. Returns `None` for a Pod that has terminated, in phase Succeeded or
/// Failed.
pub fn workload(pod: Pod) -> Option<Workload> {
    if !is_workload(&pod) {
        return None;
    }
    let gated = pod.is_gated();
    let status = pod.status.unwrap_or_default();
    let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    let metadata = pod.metadata;
    let groups = owner(&metadata).into_iter().collect();
    Some(Workload {
        id: WorkloadId::new(metadata.uid.as_deref()?).ok()?,
        orchestrator: Orchestrator::Kubernetes,
        resource_type: POD.into(),
        resource_namespace: metadata.namespace.unwrap_or_default(),
        resource_name: metadata.name.unwrap_or_default(),
        node_name: pod.spec.and_then(|spec| spec.node_name).filter(|name| !name.is_empty()),
        ready,
        gated,
        labels: metadata.labels.as_ref().map(Texts::from).unwrap_or_default(),
        annotations: metadata.annotations.as_ref().map(Texts::from).unwrap_or_default(),
        extra: device_health(&status).map(|health| (DEVICE_HEALTH.to_owned(), health)).into_iter().collect(),
        groups,
        withheld: Vec::new(),
        revision: 0,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(phase: &str, node: &str, ready: &str) -> Pod {
        let yaml = format!(
            r#"{{"metadata": {{"name": "n", "namespace": "ns", "uid": "u", "labels": {{"a": "b"}}}},
                "spec": {{"nodeName": "{node}", "containers": []}},
                "status": {{"phase": "{phase}", "conditions": [{{"type": "Ready", "status": "{ready}"}}]}}}}"#
        );
        serde_json::from_str(&yaml).unwrap()
    }

    #[test]
    fn the_documented_fields_are_converted() {
        let w = workload(pod("Running", "host-a", "True")).unwrap();
        assert_eq!((w.resource_namespace.as_str(), w.resource_name.as_str()), ("ns", "n"));
        assert_eq!((w.node_name.as_deref(), w.ready), (Some("host-a"), true));
        assert_eq!(w.labels.get("a"), Some("b"));
        let unbound = workload(pod("Pending", "", "False")).unwrap();
        assert_eq!((unbound.node_name, unbound.ready, unbound.gated), (None, false, false));
        let queued =
            json!({"metadata": {"name": "n", "uid": "u"}, "spec": {"schedulingGates": [{"name": "g"}]}});
        assert!(workload(serde_json::from_value(queued).unwrap()).unwrap().gated);
    }

    #[test]
    fn the_worst_health_of_its_devices_is_a_fact() {
        let container = |health: &str| {
            let device = json!({"resourceID": "d", "health": health});
            json!({"name": "c", "allocatedResourcesStatus": [{"name": "claim:gpu/one", "resources": [device]}]})
        };
        let pod = |containers: serde_json::Value| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": "n", "uid": "u"},
                "status": {"containerStatuses": containers, "initContainerStatuses": [container("Healthy")]}}))
            .unwrap()
        };
        let of = |containers| workload(pod(containers)).unwrap().extra;
        let extra = of(json!([container("Unhealthy"), container("Unknown")]));
        assert_eq!(extra["deviceHealth"], Texts::from([("claim:gpu/one", "Unhealthy")]));
        assert_eq!(of(json!([]))["deviceHealth"].get("claim:gpu/one"), Some("Healthy"));
        let silent =
            json!({"metadata": {"name": "n", "uid": "u"}, "status": {"containerStatuses": [{"name": "c"}]}});
        assert!(workload(serde_json::from_value(silent).unwrap()).unwrap().extra.is_empty());
    }

    #[test]
    fn the_controller_of_a_pod_is_its_group() {
        let groups_in = |namespace: &str, owners: serde_json::Value| {
            let mut pod = pod("Running", "h", "True");
            pod.metadata.namespace = Some(namespace.to_owned());
            pod.metadata.owner_references = serde_json::from_value(owners).unwrap();
            workload(pod).unwrap().groups
        };
        let owner = |uid: &str, controller: serde_json::Value| json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": uid, "controller": controller});
        let groups = |owners| groups_in("ns", owners);
        let of_b = groups(json!([owner("a", json!(false)), owner("b", json!(true))]));
        assert_eq!((of_b.len(), of_b[0].id.len(), of_b[0].desired_healthy), (1, 32, None));
        assert_eq!(groups(json!([owner("b", json!(true))])), of_b);
        assert_ne!(groups(json!([owner("c", json!(true))])), of_b);
        assert_ne!(
            groups_in("other", json!([owner("b", json!(true))])),
            of_b,
            "another namespace's Pod that names it"
        );
        assert!(groups(json!(null)).is_empty(), "a bare Pod");
        assert!(groups(json!([owner("a", json!(null))])).is_empty(), "an owner that isn't the controller");
        for wrong in [String::new(), "a".repeat(65)] {
            assert!(groups(json!([owner(&wrong, json!(true))])).is_empty());
        }
        assert_eq!(groups(json!([owner(&"a".repeat(64), json!(true))])).len(), 1);
    }

    #[test]
    fn a_terminated_pod_is_not_a_workload() {
        assert!(workload(pod("Succeeded", "h", "False")).is_none());
        assert!(workload(pod("Failed", "h", "False")).is_none());
        assert!(workload(Pod::default()).is_none(), "a workload needs a uid");
    }
}
