//! Whose ResourceClaims are whose, and what of DeviceClasses can be asked for by a resource's name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim};
use kube::ResourceExt;
use outrigger_api::Change;
use outrigger_core::keys;

use super::Caches;

/// The claims of a namespace that aren't for everybody.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Made for one workload: name to the workload's label value.
    workloads: Arc<BTreeMap<String, String>>,
    /// Made by Kubernetes for one Pod: name to the Pod's.
    pods: Arc<BTreeMap<String, String>>,
}

/// The DeviceClasses.
#[derive(Debug, Default)]
pub(super) struct Classes {
    /// Name to the extended resource that it stands behind, where it does.
    classes: BTreeMap<String, Option<String>>,
    /// Extended resource to the names of the classes.
    resources: Arc<BTreeMap<String, BTreeSet<String>>>,
}

impl Claims {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.workloads.len() + self.pods.len()
    }
}

impl Classes {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.classes.len()
    }
}

impl Caches {
    /// The ResourceClaims of a namespace that were made for one workload: name to the workload's label value.
    pub fn claims(&self, namespace: &str) -> Arc<BTreeMap<String, String>> {
        self.claims.read().get(namespace).map(|claims| claims.workloads.clone()).unwrap_or_default()
    }

    /// The ResourceClaims of a namespace that Kubernetes made for one Pod: name to the Pod's.
    pub fn pod_claims(&self, namespace: &str) -> Arc<BTreeMap<String, String>> {
        self.claims.read().get(namespace).map(|claims| claims.pods.clone()).unwrap_or_default()
    }

    /// Whether there is such a DeviceClass.
    pub fn is_device_class(&self, name: &str) -> bool {
        self.device_classes.read().classes.contains_key(name)
    }

    /// The extended resources that DeviceClasses stand behind, with the names of the classes.
    pub fn device_resources(&self) -> Arc<BTreeMap<String, BTreeSet<String>>> {
        self.device_classes.read().resources.clone()
    }

    /// A ResourceClaim: whose it is, and where its devices are.
    pub fn claim(&self, change: Change<ResourceClaim>) {
        self.allocated.claim(&change);
        let (namespace, name, claim) = change.into_parts();
        let workload = claim.as_ref().and_then(|claim| claim.labels().get(keys::WORKLOAD).cloned());
        let pod = claim.as_ref().and_then(pod_of);
        let mut claims = self.claims.write();
        if workload.is_none() && pod.is_none() && !claims.contains_key(&namespace) {
            return;
        }
        let own = claims.entry(namespace).or_default();
        set(&mut own.workloads, &name, workload);
        set(&mut own.pods, &name, pod);
    }

    /// A DeviceClass.
    pub fn device_class(&self, change: Change<DeviceClass>) {
        {
            let mut known = self.device_classes.write();
            let (_, name, class) = change.into_parts();
            match class {
                Some(class) => known.classes.insert(name, class.spec.extended_resource_name),
                None => known.classes.remove(&name),
            };
            let mut resources: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for (class, resource) in &known.classes {
                if let Some(resource) = resource {
                    resources.entry(resource.clone()).or_default().insert(class.clone());
                }
            }
            known.resources = Arc::new(resources);
        }
        self.changed();
    }
}

/// The Pod that a claim was made for.
fn pod_of(claim: &ResourceClaim) -> Option<String> {
    let is_pod = |owner: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference| {
        owner.kind == "Pod" && owner.controller == Some(true)
    };
    claim.owner_references().iter().find(is_pod).map(|owner| owner.name.clone())
}

/// Sets or removes an entry; what changes nothing copies nothing.
fn set(map: &mut Arc<BTreeMap<String, String>>, name: &str, value: Option<String>) {
    if map.get(name) == value.as_ref() {
        return;
    }
    let map = Arc::make_mut(map);
    match value {
        Some(value) => map.insert(name.to_owned(), value),
        None => map.remove(name),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(metadata: &Value) -> Change<ResourceClaim> {
        Change::Applied(serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap())
    }

    #[test]
    fn whose_claims_are_whose() {
        let caches = Caches::default();
        let named = |name: &str, more: Value| {
            let mut metadata = json!({"name": name, "namespace": "ns"});
            json_patch::merge(&mut metadata, &more);
            claim(&metadata)
        };
        let pod = |controller: bool| {
            json!({"ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u", "controller": controller}]})
        };
        caches.claim(named("plain", json!({})));
        assert!(caches.claims.read().is_empty(), "what is for everybody isn't kept");
        caches.claim(named("a", json!({"labels": {keys::WORKLOAD: "w"}})));
        caches.claim(named("b", pod(true)));
        caches.claim(named("c", pod(false)));
        assert_eq!(*caches.claims("ns"), BTreeMap::from([("a".to_owned(), "w".to_owned())]));
        assert_eq!(*caches.pod_claims("ns"), BTreeMap::from([("b".to_owned(), "web".to_owned())]));
        caches.claim(Change::Gone { namespace: "ns".into(), name: "a".into(), uid: String::new() });
        caches.claim(Change::Gone { namespace: "ns".into(), name: "b".into(), uid: String::new() });
        assert!(caches.claims("ns").is_empty() && caches.pod_claims("ns").is_empty());
    }

    #[test]
    fn resources_that_classes_stand_behind() {
        let caches = Caches::default();
        for (name, resource) in [("a", "x.org/gpu"), ("b", "x.org/gpu"), ("c", "")] {
            let spec =
                if resource.is_empty() { json!({}) } else { json!({"extendedResourceName": resource}) };
            let class = json!({"metadata": {"name": name}, "spec": spec});
            caches.device_class(Change::Applied(serde_json::from_value(class).unwrap()));
        }
        assert!(caches.is_device_class("c"));
        let gpu: BTreeSet<String> = ["a", "b"].map(str::to_owned).into();
        assert_eq!(*caches.device_resources(), BTreeMap::from([("x.org/gpu".to_owned(), gpu)]));
        caches.device_class(Change::Gone { namespace: String::new(), name: "a".into(), uid: String::new() });
        assert_eq!(caches.device_resources()["x.org/gpu"].len(), 1);
    }
}
