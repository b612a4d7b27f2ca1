//! What the agent keeps of the claim of a Pod that isn't bound before its companions are Ready.

use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, ResourceClaim};
use kube::ResourceExt;
use outrigger_api::conditions::Status;
use outrigger_core::ids::WorkloadId;
use outrigger_core::keys;
use serde_json::{Value, json};

use crate::conditions::Condition;

/// The allocation of a device of the driver with binding conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Allocation {
    /// The claim's uid.
    pub uid: String,
    /// The claim's resourceVersion: what is written is meant for this allocation only.
    pub version: String,
    /// The Pod that the claim was generated for.
    pub pod: WorkloadId,
    /// The pool of the device, which is named after its Node.
    pub node: String,
    pub device: String,
    /// One of its conditions is True already, so the scheduler acts on it.
    pub decided: bool,
}

impl Allocation {
    /// Reduces a claim; `None` for one that has no such allocation, or isn't that of a Pod.
    pub(crate) fn of(claim: &ResourceClaim) -> Option<Self> {
        let status = claim.status.as_ref()?;
        let results = status.allocation.as_ref()?.devices.as_ref()?.results.as_ref()?;
        let waits = |conditions: &Option<Vec<String>>| {
            conditions.iter().flatten().any(|condition| condition == keys::CLAIM_READY)
        };
        let result = results
            .iter()
            .find(|result| result.driver == keys::COMPANIONS_DRIVER && waits(&result.binding_conditions))?;
        let owner = claim
            .owner_references()
            .iter()
            .find(|owner| owner.kind == "Pod" && owner.controller == Some(true))?;
        let ours = |status: &&AllocatedDeviceStatus| {
            status.driver == result.driver && status.pool == result.pool && status.device == result.device
        };
        let said = status.devices.iter().flatten().find(ours).and_then(|status| status.conditions.as_deref());
        let decided = said.unwrap_or_default().iter().any(|condition| {
            [keys::CLAIM_READY, keys::CLAIM_UNAVAILABLE].contains(&condition.type_.as_str())
                && condition.status == "True"
        });
        Some(Self {
            uid: claim.uid()?,
            version: claim.resource_version()?,
            pod: WorkloadId::new(&owner.uid).ok()?,
            node: result.pool.clone(),
            device: result.device.clone(),
            decided,
        })
    }

    /// Whether this is the same allocation as another one, apart from the claim's version.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Self { version: String::new(), decided: false, ..self.clone() }
            == Self { version: String::new(), decided: false, ..other.clone() }
    }

    /// The patch that sets a condition of the device to `True`. The claim was generated from Outrigger's template, so its only device
    /// is this one. It fails if the claim has changed meanwhile.
    pub(super) fn patch(&self, kind: &str, reason: &str, message: &str, now: &str) -> Value {
        let condition = Condition::new(Status::True, reason, message).patch(kind, Some(now));
        json!({"metadata": {"uid": self.uid, "resourceVersion": self.version}, "status": {"devices": [
            {"driver": keys::COMPANIONS_DRIVER, "pool": self.node, "device": self.device,
                "conditions": [condition]}]}})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(change: &Value) -> ResourceClaim {
        let mut claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": "web-x", "namespace": "shop", "uid": "u", "resourceVersion": "7",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "pod", "controller": true}]},
            "spec": {},
            "status": {"allocation": {"devices": {"results": [{"request": "companions", "device": "binding-3",
                "driver": keys::COMPANIONS_DRIVER, "pool": "host-a",
                "bindingConditions": [keys::CLAIM_READY],
                "bindingFailureConditions": [keys::CLAIM_UNAVAILABLE]}]}}}});
        json_patch::merge(&mut claim, change);
        serde_json::from_value(claim).unwrap()
    }

    #[test]
    fn an_allocation_names_the_node_and_the_pod() {
        let found = Allocation::of(&claim(&json!({}))).unwrap();
        assert_eq!((found.node.as_str(), found.device.as_str()), ("host-a", "binding-3"));
        assert_eq!((found.pod.as_str(), found.decided), ("pod", false));
    }

    #[test]
    fn a_claim_without_such_an_allocation_counts_for_nothing() {
        let other = |field: &str, value: Value| {
            let mut result = json!({"request": "companions", "device": "d", "pool": "host-a",
                "driver": keys::COMPANIONS_DRIVER, "bindingConditions": [keys::CLAIM_READY]});
            result[field] = value;
            json!({"status": {"allocation": {"devices": {"results": [result]}}}})
        };
        for change in [
            json!({"status": null}),
            json!({"status": {"allocation": null}}),
            other("driver", json!("other.example")),
            other("bindingConditions", json!(["example.com/Other"])),
            other("bindingConditions", json!(null)),
            json!({"metadata": {"ownerReferences": null}}),
            json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "pod"}]}}),
        ] {
            assert_eq!(Allocation::of(&claim(&change)), None, "{change}");
        }
    }

    #[test]
    fn what_was_written_is_read_as_decided() {
        let found = Allocation::of(&claim(&json!({}))).unwrap();
        for kind in [keys::CLAIM_READY, keys::CLAIM_UNAVAILABLE] {
            let mut patch = found.patch(kind, "Ready", "", "2026-01-01T00:00:00Z");
            patch["metadata"]["resourceVersion"] = json!("8");
            let after = Allocation::of(&claim(&patch)).unwrap();
            assert!(after.decided && after.is_same(&found), "{kind}");
            patch["status"]["devices"][0]["conditions"][0]["status"] = json!("False");
            assert!(!Allocation::of(&claim(&patch)).unwrap().decided);
            // What was said of another device doesn't count.
            patch["status"]["devices"][0]["conditions"][0]["status"] = json!("True");
            patch["status"]["devices"][0]["device"] = json!("binding-4");
            assert!(!Allocation::of(&claim(&patch)).unwrap().decided);
        }
    }
}
