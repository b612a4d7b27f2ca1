//! Devices of Nodes: the claim controller that gives Pods claims, and the scheduler that gives claims devices.

use std::collections::BTreeSet;

use outrigger_core::keys;
use serde_json::{Value, json};

use super::{SCHEDULER, World, at, text};

/// The DeviceClass of all devices.
pub const DEVICE_CLASS: &str = "engine";

/// The user that the controller of claims is.
const CLAIMS: &str = "system:serviceaccount:kube-system:resource-claim-controller";

impl World {
    /// The controller of claims: Pods that name a template get a claim each, which they own.
    pub(super) fn make_claims(&self) {
        for pod in self.infra.list("pods") {
            let entries = pod["spec"]["resourceClaims"].as_array();
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                continue;
            }
            for entry in entries.into_iter().flatten() {
                let (name, template) = (text(entry, "/name"), text(entry, "/resourceClaimTemplateName"));
                if claim_of(&pod, name).is_none() && !template.is_empty() {
                    self.make_claim(&pod, name, template);
                }
            }
        }
    }

    fn make_claim(&self, pod: &Value, name: &str, template: &str) {
        let (namespace, of) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
        let Some(template) = self.infra.get("resourceclaimtemplates", Some(namespace), template) else {
            return;
        };
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": of, "uid": pod["metadata"]["uid"],
            "controller": true, "blockOwnerDeletion": true});
        let claim = json!({"metadata": {"generateName": format!("{of}-{name}-"), "namespace": namespace,
            "annotations": {keys::POD_CLAIM_NAME: name}, "ownerReferences": [owner]},
            "spec": template["spec"]["spec"]});
        let Ok(claim) = self.infra.create(CLAIMS, "resourceclaims", claim) else { return };
        let made = json!({"name": name, "resourceClaimName": claim["metadata"]["name"]});
        let mut statuses = pod["status"]["resourceClaimStatuses"].as_array().cloned().unwrap_or_default();
        statuses.push(made);
        let status = json!({"status": {"resourceClaimStatuses": statuses}});
        let _ = self.infra.merge(CLAIMS, "pods", (Some(namespace), of, Some("status")), status);
    }

    /// Gives the claims of a Pod devices of a Node. Returns whether all of them have some.
    pub(super) fn allocate(&self, pod: &Value, node: &str) -> bool {
        let namespace = text(pod, "/metadata/namespace");
        let entries = pod["spec"]["resourceClaims"].as_array();
        entries.into_iter().flatten().all(|entry| {
            let name = claim_of(pod, text(entry, "/name"));
            let claim = name.and_then(|name| self.infra.get("resourceclaims", Some(namespace), name));
            let Some(claim) = claim else { return false };
            if !claim["status"]["allocation"].is_null() {
                return true;
            }
            let used: BTreeSet<u64> = self
                .infra
                .list("resourceclaims")
                .iter()
                .flat_map(|claim| devices(claim))
                .filter(|(pool, _)| pool == node)
                .map(|(_, device)| device)
                .collect();
            let request = &claim["spec"]["devices"]["requests"][0];
            let count = request["exactly"]["count"].as_u64().unwrap_or(1);
            let free = (0..).filter(|device| !used.contains(device));
            let results: Vec<Value> = free
                .take(usize::try_from(count).unwrap_or(1))
                .map(|device| {
                    json!({"request": request["name"], "driver": "engine.example.com", "pool": node,
                        "device": format!("{DEVICE_CLASS}-{device}")})
                })
                .collect();
            let metadata = &pod["metadata"];
            let user = json!({"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]});
            let status =
                json!({"status": {"allocation": {"devices": {"results": results}}, "reservedFor": [user]}});
            let at = (Some(namespace), text(&claim, "/metadata/name"), Some("status"));
            self.infra.merge(SCHEDULER, "resourceclaims", at, status).is_ok()
        })
    }
}

/// The name of the claim that a Pod has for an entry of its spec.
pub fn claim_of<'a>(pod: &'a Value, entry: &str) -> Option<&'a str> {
    let statuses = pod["status"]["resourceClaimStatuses"].as_array()?;
    statuses.iter().find(|status| status["name"] == entry)?["resourceClaimName"].as_str()
}

/// The devices that a claim has: pool and number of each.
pub fn devices(claim: &Value) -> Vec<(String, u64)> {
    let results = at(claim, "/status/allocation/devices/results").and_then(Value::as_array);
    let device = |result: &Value| {
        let number = text(result, "/device").rsplit('-').next()?.parse().ok()?;
        Some((text(result, "/pool").to_owned(), number))
    };
    results.into_iter().flatten().filter_map(device).collect()
}
