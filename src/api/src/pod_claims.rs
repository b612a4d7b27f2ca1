//! ResourceClaims that Kubernetes makes for one Pod, and other Pods that use them.

use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use outrigger_core::{keys, validate};

/// The Pod that a claim was created for.
pub fn owner(claim: &ResourceClaim) -> Option<&OwnerReference> {
    let mut owners = claim.owner_references().iter();
    owners.find(|owner| owner.kind == "Pod" && owner.controller == Some(true))
}

/// Names of the Pods that use a claim which was created for another Pod, as far as the tenant's level of enforcement governs that. They have
/// been scheduled, and would be refused at the level Enforce if they were created now.
pub fn other_users(claim: &ResourceClaim) -> Vec<&str> {
    let Some(owner) = owner(claim) else { return Vec::new() };
    if claim.labels().contains_key(keys::WORKLOAD) || !validate::is_of_pod(&claim.name_any(), &owner.name) {
        return Vec::new();
    }
    let users = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    let others = users.filter(|user| user.resource == "pods" && user.uid != owner.uid);
    others.map(|user| user.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn users(change: &Value) -> Vec<String> {
        let mut claim = json!({"metadata": {"name": "web-d-x7k2m", "namespace": "n", "labels": null, "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u1", "controller": true}]},
            "spec": {}, "status": {"reservedFor": [
                {"resource": "pods", "name": "web", "uid": "u1"}, {"resource": "pods", "name": "thief", "uid": "u2"},
                {"apiGroup": "example.com", "resource": "jobs", "name": "j", "uid": "u3"}]}});
        for (pointer, value) in change.as_object().into_iter().flatten() {
            *claim.pointer_mut(pointer).unwrap() = value.clone();
        }
        let claim: ResourceClaim = serde_json::from_value(claim).unwrap();
        other_users(&claim).into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn others_than_the_pod_that_a_claim_was_made_for_are_named() {
        assert_eq!(users(&json!({})), ["thief"]);
        let none: [String; 0] = [];
        for (other, change) in [
            ("nobody has it", json!({"/status/reservedFor": null})),
            ("it was made for no Pod", json!({"/metadata/ownerReferences": null})),
            ("it is a workload's", json!({"/metadata/labels": {keys::WORKLOAD: "w"}})),
            ("it is a companion's", json!({"/metadata/name": "r-573e560607f4a185-d-x7k2m"})),
        ] {
            assert_eq!(users(&change), none, "{other}: such a Pod is refused at every level");
        }
    }
}
