//! A cluster's state out of objects: what the server has from watches.

use outrigger_core::host::HostLabels;
use outrigger_core::map::HashMap;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1 as full;
use outrigger_admission::caches::Caches;
use outrigger_api::NamespaceOffloading;
use outrigger_core::json::text;
use outrigger_core::keys;
use outrigger_core::offloading::{NAME, is_reserved};
use outrigger_runtime::cache::Change;
use outrigger_runtime::pod::Pod;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::condition;
use crate::files::{self, InputError, Object};

/// Files show one moment.
pub(crate) const NOW: Duration = Duration::ZERO;

/// What a kind does to the webhook's caches.
type Apply = fn(&Caches, &Object) -> Result<(), InputError>;

/// Every kind that the webhook watches: group, kind, and the cache it goes to.
const CACHED: &[(&str, &str, Apply)] = &[
    ("", "Namespace", |caches, object| put(caches, object, Caches::namespace)),
    (keys::OFFLOADING_GROUP, "NamespaceOffloading", |caches, object| {
        let read = NamespaceOffloading::read(&object.value).map_err(|error| object.wrong(error))?;
        caches.apply_offloading(Change::Applied(read));
        Ok(())
    }),
    (keys::GROUP, "Tenant", |caches, object| put(caches, object, Caches::apply_tenant)),
    (keys::WORKLOAD_GROUP, "WorkloadRule", |caches, object| put(caches, object, Caches::apply_rule)),
    (keys::WORKLOAD_GROUP, "AdminWorkloadRule", |caches, object| {
        put(caches, object, Caches::apply_admin_rule)
    }),
    ("", "Node", |caches, object| put(caches, object, Caches::node)),
    ("resource.k8s.io", "ResourceClaim", |caches, object| put(caches, object, Caches::claim)),
    ("scheduling.k8s.io", "PriorityClass", |caches, object| put(caches, object, Caches::priority_class)),
    ("resource.k8s.io", "DeviceClass", |caches, object| put(caches, object, Caches::device_class)),
    (keys::MACHINE_GROUP_DOMAIN, "Machine", |caches, object| {
        put(caches, object, |caches, change| caches.apply_machine(change, NOW))
    }),
    ("", "Pod", crate::slots::guest),
];

/// Whether it is the NamespaceOffloading of its namespace.
fn is_offloading(object: &Object) -> bool {
    object.is(keys::OFFLOADING_GROUP, "NamespaceOffloading") && object.name == NAME
}

/// What the scheduler says of a Pod that it hasn't placed.
pub(crate) fn unscheduled(pod: &Value) -> &str {
    let scheduled = condition::named(pod, "PodScheduled").filter(|c| text(c, "/status") == "False");
    scheduled.map_or("", |condition| text(condition, "/message"))
}

/// The namespace that a Tenant's rules and companions are in.
pub(crate) fn namespace_of(tenant: &Object) -> String {
    let named = tenant.value.pointer("/spec/namespace").and_then(Value::as_str);
    named.map_or_else(|| format!("tenant-{}", tenant.name), str::to_owned)
}

/// Whether the controller would label the namespace of a NamespaceOffloading. In files no controller does.
fn labels_its_namespace(object: &Object) -> bool {
    let strategy = object.value.pointer("/spec/podOffloadingStrategy").and_then(Value::as_str);
    is_offloading(object) && strategy != Some("Local") && !is_reserved(&object.namespace)
}

fn put<K: DeserializeOwned>(
    caches: &Caches,
    object: &Object,
    sink: fn(&Caches, Change<K>),
) -> Result<(), InputError> {
    sink(caches, Change::Applied(object.read()?));
    Ok(())
}

/// Objects of a cluster.
#[derive(Debug, Default)]
pub(crate) struct State {
    objects: Vec<Object>,
    /// Where the Namespaces are, by name: each request asks for one.
    namespaces: HashMap<String, usize>,
    /// What other objects say of namespaces, by name.
    implied: HashMap<String, Implied>,
}

/// What the controllers would make of a namespace: files may leave it out.
#[derive(Debug, Default)]
struct Implied {
    /// The Tenant whose namespace it would be; only where the files have no Namespace of that name.
    tenant: Option<String>,
    /// It has a NamespaceOffloading that is not Local.
    offloaded: bool,
}

impl State {
    /// What is in files; see [`files::read`].
    pub(crate) fn read(paths: &[PathBuf]) -> Result<Self, InputError> {
        Ok(Self::new(files::read(paths)?))
    }

    /// The state in a text, for tests.
    #[cfg(test)]
    pub(crate) fn of_text(place: &str, text: &str) -> Result<Self, InputError> {
        let mut objects = Vec::new();
        files::parse(place, text, outrigger_core::yaml::OF_FILES, &mut objects)?;
        Ok(Self::new(objects))
    }

    /// Of several objects with one name the last counts, so that a file can change what an earlier one says.
    pub(crate) fn new(objects: Vec<Object>) -> Self {
        let mut at: HashMap<(String, String, String, String), usize> = HashMap::default();
        let mut kept: Vec<Object> = Vec::with_capacity(objects.len());
        for object in objects {
            if object.name.is_empty() {
                kept.push(object);
                continue;
            }
            let Object { group, kind, namespace, name, .. } = &object;
            let key = (group.clone(), kind.clone(), namespace.clone(), name.clone());
            match at.get(&key) {
                Some(&before) => kept[before] = object,
                None => {
                    at.insert(key, kept.len());
                    kept.push(object);
                }
            }
        }
        let namespaces = kept.iter().enumerate().filter(|(_, object)| object.is("", "Namespace"));
        let namespaces: HashMap<String, usize> =
            namespaces.map(|(i, object)| (object.name.clone(), i)).collect();
        let mut implied: HashMap<String, Implied> = HashMap::default();
        for object in &kept {
            if is_offloading(object) {
                let of = implied.entry(object.namespace.clone()).or_default();
                of.offloaded = labels_its_namespace(object);
            } else if object.is(keys::GROUP, "Tenant") && !namespaces.contains_key(&namespace_of(object)) {
                implied.entry(namespace_of(object)).or_default().tenant = Some(object.name.clone());
            }
        }
        Self { objects: kept, namespaces, implied }
    }

    /// This state without some objects, and with others, which take the place of those of their names.
    pub(crate) fn changed(&self, with: Vec<Object>, without: impl Fn(&Object) -> bool) -> Self {
        let kept = self.objects.iter().filter(|object| !without(object)).cloned();
        Self::new(kept.chain(with).collect())
    }

    pub(crate) fn of<'a>(&'a self, group: &'a str, kind: &'a str) -> impl Iterator<Item = &'a Object> {
        self.objects.iter().filter(move |object| object.is(group, kind))
    }

    /// The objects of a kind, as a type.
    pub(crate) fn all<K: DeserializeOwned>(&self, group: &str, kind: &str) -> Result<Vec<K>, InputError> {
        self.of(group, kind).map(Object::read).collect()
    }

    /// The Pods. One that no API server has seen gets a uid made from its name, which distinguishes it from others.
    pub(crate) fn pods(&self) -> Result<Vec<Pod>, InputError> {
        // What is read of them is less than what makes them Pods.
        self.all::<full::Pod>("", "Pod")?;
        let mut pods: Vec<Pod> = self.all("", "Pod")?;
        for pod in &mut pods {
            let metadata = &mut pod.metadata;
            let namespace = metadata.namespace.get_or_insert_with(|| "default".to_owned());
            let name = metadata.name.clone().unwrap_or_default();
            metadata.uid.get_or_insert_with(|| format!("uid-of-{namespace}-{name}"));
        }
        Ok(pods)
    }

    /// The labels of a namespace, where the state has it, or has what makes it be there.
    pub(crate) fn namespace_labels(&self, name: &str) -> Option<BTreeMap<&str, &str>> {
        let namespace = self.namespaces.get(name).and_then(|at| self.objects.get(*at));
        let implied = self.implied.get(name);
        if namespace.is_none() && implied.is_none() {
            return None;
        }
        let labels = namespace.and_then(|n| n.value.pointer("/metadata/labels")).and_then(Value::as_object);
        let labels = labels.into_iter().flatten().filter_map(|(k, v)| Some((k.as_str(), v.as_str()?)));
        let tenant = implied.and_then(|i| i.tenant.as_deref()).map(|tenant| (keys::TENANT, tenant));
        let offloaded = implied.filter(|i| i.offloaded).map(|_| (keys::OFFLOADED, "true"));
        Some(labels.chain(tenant).chain(offloaded).collect())
    }

    /// The tenant that the label of a namespace names.
    pub(crate) fn tenant_of(&self, namespace: &str) -> Option<&str> {
        self.namespace_labels(namespace)?.get(keys::TENANT).copied()
    }

    /// The state as the webhook would have it. `admin_rules`: the namespace of the admin rules that are served; `host_labels`:
    /// the Node label that names the host of a DPU.
    ///
    /// # Errors
    /// The first object of a kind that the webhook watches and that isn't of that kind's shape.
    pub(crate) fn caches(&self, admin_rules: &str, host_labels: &HostLabels) -> Result<Caches, InputError> {
        let caches = Caches::new(host_labels);
        for object in &self.objects {
            if object.is(keys::WORKLOAD_GROUP, "AdminWorkloadRule") && object.namespace != admin_rules {
                continue;
            }
            if let Some((_, _, apply)) = CACHED.iter().find(|(group, kind, _)| object.is(group, kind)) {
                apply(&caches, object)?;
            }
        }
        // The controllers' changes of namespaces are applied last, whatever the order of the files.
        for name in self.implied.keys() {
            let metadata = json!({"name": name, "labels": self.namespace_labels(name)});
            if let Ok(namespace) = serde_json::from_value(json!({"metadata": metadata})) {
                caches.namespace(Change::Applied(namespace));
            }
        }
        Ok(caches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::ids::TenantId;

    fn state(text: &str) -> State {
        State::of_text("f", text).unwrap()
    }

    const STATE: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: tenant-blue, labels: {outrigger.dev/tenant: blue}}
---
apiVersion: outrigger.dev/v1alpha1
kind: Tenant
metadata: {name: blue}
spec: {hosts: [host-a]}
---
apiVersion: example.org/v7
kind: Whatever
spec: [1]
---
apiVersion: v1
kind: Node
metadata: {name: dpu, labels: {outrigger.dev.node-restriction.kubernetes.io/tenant: blue}}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: usual}
globalDefault: true
value: 1
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: crypto}
spec: {}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: []}
";

    #[test]
    fn the_caches_are_the_servers_own() {
        let blue = TenantId::new("blue").unwrap();
        let caches = state(STATE).caches("universe", Default::default()).unwrap();
        assert_eq!(caches.owner("tenant-blue"), Some(blue.clone()));
        assert!(caches.tenant(&blue).flatten().unwrap().hosts.contains("host-a"));
        assert_eq!((caches.dpus_of(&blue), caches.is_device_class("crypto")), (1, true));
        assert_eq!(caches.default_priority_class().as_deref(), Some("usual"));
    }

    #[test]
    fn the_last_of_a_name_counts_and_pods_get_a_uid() {
        let text = format!(
            "{STATE}---\n{}",
            "{apiVersion: outrigger.dev/v1alpha1, kind: Tenant, metadata: {name: blue}, spec: {hosts: [host-b]}}"
        );
        let state = state(&text);
        let caches = state.caches("universe", Default::default()).unwrap();
        let tenant = caches.tenant(&TenantId::new("blue").unwrap()).flatten().unwrap();
        assert!(tenant.hosts.contains("host-b"));
        let pods = state.pods().unwrap();
        assert_eq!(pods[0].metadata.uid.as_deref(), Some("uid-of-default-web"));
        assert_eq!(state.namespace_labels("tenant-blue").unwrap()["outrigger.dev/tenant"], "blue");
        assert_eq!(state.namespace_labels("other"), None);
    }

    #[test]
    fn a_known_kind_of_another_shape_is_an_error_with_its_place() {
        let bad = state(
            "apiVersion: outrigger.dev/v1alpha1\nkind: Tenant\nmetadata: {name: blue}\nspec: {hosts: x}",
        );
        let error = bad.caches("universe", Default::default()).unwrap_err().to_string();
        assert!(error.starts_with("f: document 1: Tenant blue: spec.hosts: invalid type: string"), "{error}");
    }
}
