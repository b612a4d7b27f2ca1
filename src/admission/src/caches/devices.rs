//! Owners of ResourceClaims, and the extended resources of DeviceClasses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim};
use kube::ResourceExt;
use outrigger_api::{Change, pod_claims};
use outrigger_core::keys;

use super::Caches;

/// The claims of a namespace that not every Pod may use.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Claims of one workload: name to the workload's label value.
    workloads: Arc<BTreeMap<String, String>>,
    /// Claims that Kubernetes created for one Pod: name to the Pod's name.
    pods: Arc<BTreeMap<String, String>>,
    /// Claims of one Pod that others use: name to the names of these.
    others: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Default)]
pub(super) struct Classes {
    /// Name to its extended resource, if it has one.
    classes: BTreeMap<String, Option<String>>,
    /// Extended resource to the names of the classes.
    resources: Arc<BTreeMap<String, BTreeSet<String>>>,
}

impl Claims {
    pub(super) fn count(&self) -> usize {
        self.workloads.len() + self.pods.len()
    }
}

impl Classes {
    pub(super) fn count(&self) -> usize {
        self.classes.len()
    }
}

impl Caches {
    /// The ResourceClaims of a namespace that belong to one workload: name to the workload's label value.
    pub fn claims(&self, namespace: &str) -> Arc<BTreeMap<String, String>> {
        self.claims.read().get(namespace).map(|claims| claims.workloads.clone()).unwrap_or_default()
    }

    /// The ResourceClaims of a namespace that Kubernetes created for one Pod: name to the Pod's name.
    pub fn pod_claims(&self, namespace: &str) -> Arc<BTreeMap<String, String>> {
        self.claims.read().get(namespace).map(|claims| claims.pods.clone()).unwrap_or_default()
    }

    /// The running Pods of a namespace that would be refused if they were created at the level Enforce.
    pub fn would_be_refused(&self, namespace: &str) -> BTreeSet<String> {
        let claims = self.claims.read();
        claims
            .get(namespace)
            .into_iter()
            .flat_map(|claims| claims.others.values().flatten().cloned())
            .collect()
    }

    /// Whether there is such a DeviceClass.
    pub fn is_device_class(&self, name: &str) -> bool {
        self.device_classes.read().classes.contains_key(name)
    }

    /// The extended resources of DeviceClasses, with the names of the classes.
    pub fn device_resources(&self) -> Arc<BTreeMap<String, BTreeSet<String>>> {
        self.device_classes.read().resources.clone()
    }

    /// Takes in a ResourceClaim: its owner, and the Nodes of its devices.
    pub fn claim(&self, change: Change<ResourceClaim>) {
        let (namespace, name, claim) = change.into_parts();
        self.allocated.claim(&namespace, &name, claim.as_ref());
        let workload = claim.as_ref().and_then(|claim| claim.labels().get(keys::WORKLOAD).cloned());
        let pod = claim.as_ref().and_then(pod_claims::owner).map(|owner| owner.name.clone());
        let others = claim.as_ref().map(pod_claims::other_users).unwrap_or_default();
        let others: Vec<String> = others.into_iter().map(str::to_owned).collect();
        let mut claims = self.claims.write();
        if workload.is_none() && pod.is_none() && !claims.contains_key(&namespace) {
            return;
        }
        let own = claims.entry(namespace.clone()).or_default();
        set(&mut own.workloads, &name, workload);
        set(&mut own.pods, &name, pod);
        if others.is_empty() {
            own.others.remove(&name);
        } else {
            own.others.insert(name, others);
        }
        if own.workloads.is_empty() && own.pods.is_empty() {
            claims.remove(&namespace);
        }
    }

    /// Takes in a DeviceClass.
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

/// Sets or removes an entry; without a change nothing is copied.
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
    use crate::tests::applied;
    use serde_json::{Value, json};

    fn claim(metadata: &Value) -> Change<ResourceClaim> {
        applied(json!({"metadata": metadata, "spec": {}}))
    }

    #[test]
    fn claims_have_owners() {
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
        assert!(caches.claims.read().is_empty(), "claims that every Pod may use aren't cached");
        caches.claim(named("a", json!({"labels": {keys::WORKLOAD: "w"}})));
        caches.claim(named("b", pod(true)));
        caches.claim(named("c", pod(false)));
        assert_eq!(*caches.claims("ns"), BTreeMap::from([("a".to_owned(), "w".to_owned())]));
        assert_eq!(*caches.pod_claims("ns"), BTreeMap::from([("b".to_owned(), "web".to_owned())]));
        caches.claim(Change::Gone { namespace: "ns".into(), name: "a".into(), uid: String::new() });
        caches.claim(Change::Gone { namespace: "ns".into(), name: "b".into(), uid: String::new() });
        assert!(caches.claims("ns").is_empty() && caches.pod_claims("ns").is_empty());
        assert!(caches.claims.read().is_empty(), "nothing is left of the namespace");
    }

    #[test]
    fn pods_that_use_claims_of_others_are_known_as_long_as_they_do() {
        let caches = Caches::default();
        let users = |caches: &Caches, name: &str, users: &[&str]| {
            let reserved: Vec<_> =
                users.iter().map(|user| json!({"resource": "pods", "name": user, "uid": user})).collect();
            let object = json!({"metadata": {"name": name, "namespace": "ns", "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "web", "controller": true}]},
                "spec": {}, "status": {"reservedFor": reserved}});
            caches.claim(applied(object));
        };
        users(&caches, "a", &["web", "one", "two"]);
        users(&caches, "b", &["two"]);
        let known = || caches.would_be_refused("ns").into_iter().collect::<Vec<_>>();
        assert_eq!(known(), ["one", "two"]);
        assert!(caches.would_be_refused("other").is_empty());
        users(&caches, "a", &["web"]);
        assert_eq!(known(), ["two"]);
        caches.claim(Change::Gone { namespace: "ns".into(), name: "b".into(), uid: String::new() });
        assert_eq!(known(), [""; 0]);
        caches.claim(Change::Gone { namespace: "ns".into(), name: "a".into(), uid: String::new() });
        assert!(caches.claims.read().is_empty(), "nothing is left of the namespace");
    }

    #[test]
    fn resources_that_classes_stand_behind() {
        let caches = Caches::default();
        for (name, resource) in [("a", "x.org/gpu"), ("b", "x.org/gpu"), ("c", "")] {
            let spec =
                if resource.is_empty() { json!({}) } else { json!({"extendedResourceName": resource}) };
            let class = json!({"metadata": {"name": name}, "spec": spec});
            caches.device_class(applied(class));
        }
        assert!(caches.is_device_class("c"));
        let gpu: BTreeSet<String> = ["a", "b"].map(str::to_owned).into();
        assert_eq!(*caches.device_resources(), BTreeMap::from([("x.org/gpu".to_owned(), gpu)]));
        caches.device_class(Change::Gone { namespace: String::new(), name: "a".into(), uid: String::new() });
        assert_eq!(caches.device_resources()["x.org/gpu"].len(), 1);
    }
}
