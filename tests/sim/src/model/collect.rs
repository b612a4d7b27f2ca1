//! What the controllers and kubelets of a cluster do with deleted objects, step by step.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::Model;
use super::kinds::ModelKind;
use super::object::{self, text};
use super::store::{self, Resource, State};
use super::write::DeleteOptions;

const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";
const POD_COLLECTOR: &str = "system:serviceaccount:kube-system:pod-garbage-collector";
const NAMESPACES: &str = "system:serviceaccount:kube-system:namespace-controller";

/// What a step does with an object.
enum Step {
    Delete,
    /// These owners are left.
    Own(Vec<Value>),
}

impl Model {
    /// One step of the garbage collector and of the namespace controller: objects whose owners no longer exist are deleted,
    /// and so are the objects in terminating namespaces; namespaces that are empty are removed. Returns how many objects were
    /// written. Deleted owners have dependents in turn, so call it until it returns 0 to collect all.
    pub fn collect_garbage(&self) -> usize {
        let steps = {
            let mut state = self.state.lock();
            if !state.littered {
                return 0;
            }
            let steps = state.garbage();
            state.littered = !steps.is_empty();
            steps
        };
        let mut written = 0;
        for (user, kind, object, step) in steps {
            let namespace = Some(text(&object, "namespace")).filter(|namespace| !namespace.is_empty());
            let at = (namespace, text(&object, "name"));
            let result = match step {
                Step::Delete => {
                    let before = self.revision();
                    let result = self.delete_with(user, kind.plural, at, only(&object));
                    result.map(|_| self.revision() > before)
                }
                Step::Own(owners) => {
                    let version = text(&object, "resourceVersion");
                    let patch = json!({"metadata": {"ownerReferences": owners, "resourceVersion": version}});
                    self.merge(user, kind.plural, (at.0, at.1, None), patch).map(|_| true)
                }
            };
            written += usize::from(result.unwrap_or(false));
        }
        written + self.finish_namespaces()
    }

    /// Removes the terminating namespaces that no longer have objects.
    fn finish_namespaces(&self) -> usize {
        let empty = self.state.lock().empty_namespaces();
        let mut removed = 0;
        for name in empty {
            let before = self.revision();
            let namespace = json!({"metadata": {"name": name}, "spec": {"finalizers": []}});
            let _ = self.update(NAMESPACES, "namespaces", Some("finalize"), namespace);
            removed += usize::from(self.revision() > before);
        }
        removed
    }

    /// What the kubelets of these nodes do with Pods that are being deleted: they have stopped, and are removed. Returns how many.
    /// Pods with finalizers stay until these are removed.
    pub fn finish_deletions(&self, ends: impl Fn(&Value, &str) -> bool) -> usize {
        self.remove_bound(|pod, node| {
            (object::is_leaving(pod) && ends(pod, node)).then(|| format!("system:node:{node}"))
        })
    }

    /// What the collector of Pods does with those that are bound to a node that doesn't exist: they are removed. Returns how many.
    pub fn remove_orphans(&self, is_node: impl Fn(&str) -> bool) -> usize {
        self.remove_bound(|_, node| (!is_node(node)).then(|| POD_COLLECTOR.to_owned()))
    }

    /// Removes bound Pods as the user that this names for a Pod and its node.
    fn remove_bound(&self, user: impl Fn(&Value, &str) -> Option<String>) -> usize {
        let mut removed = 0;
        for pod in self.list("pods") {
            let Some(user) = pod["spec"]["nodeName"].as_str().and_then(|node| user(&pod, node)) else {
                continue;
            };
            let before = self.revision();
            let options = DeleteOptions { grace_period_seconds: Some(0), ..only(&pod) };
            let at = (Some(text(&pod, "namespace")), text(&pod, "name"));
            let _ = self.delete_with(&user, "pods", at, options);
            removed += usize::from(self.revision() > before);
        }
        removed
    }
}

/// Deletes nothing but the object with this uid.
fn only(object: &Value) -> DeleteOptions {
    let options = json!({"preconditions": {"uid": text(object, "uid")}});
    serde_json::from_value(options).unwrap_or_default()
}

impl State {
    fn garbage(&self) -> Vec<(&'static str, ModelKind, Arc<Value>, Step)> {
        let terminating = self.terminating();
        let uids: HashSet<&str> = self
            .resources
            .iter()
            .filter(|all| !store::is_noise(&all.kind))
            .flat_map(|all| all.objects.values())
            .map(|object| text(object, "uid"))
            .collect();
        let mut steps = Vec::new();
        // Events and Leases have no owners, but they are in namespaces.
        let owned = |all: &&Resource| !terminating.is_empty() || !store::is_noise(&all.kind);
        for resource in self.resources.iter().filter(owned) {
            for object in resource.objects.values() {
                let step = if terminating.contains(text(object, "namespace")) {
                    Some((NAMESPACES, Step::Delete)).filter(|_| !object::is_leaving(object))
                } else {
                    self.orphan(object, &uids).map(|step| (COLLECTOR, step))
                };
                steps.extend(step.map(|(user, step)| (user, resource.kind, object.clone(), step)));
            }
        }
        steps
    }

    /// What is done about an object with owners that don't exist.
    fn orphan(&self, object: &Value, uids: &HashSet<&str>) -> Option<Step> {
        let owners = object["metadata"]["ownerReferences"].as_array().filter(|owners| !owners.is_empty())?;
        let exists = |owner: &&Value| {
            let group = owner["apiVersion"]
                .as_str()
                .unwrap_or_default()
                .split_once('/')
                .map_or("", |(group, _)| group);
            let kind = |kind: &ModelKind| {
                (kind.group, kind.kind) == (group, owner["kind"].as_str().unwrap_or_default())
            };
            // The collector knows nothing of kinds that aren't served.
            !self.resources.iter().any(|resource| kind(&resource.kind))
                || owner["uid"].as_str().is_some_and(|uid| uids.contains(uid))
        };
        let left: Vec<Value> = owners.iter().filter(exists).cloned().collect();
        match left.len() {
            0 => Some(Step::Delete).filter(|_| !object::is_leaving(object)),
            some if some < owners.len() => Some(Step::Own(left)),
            _ => None,
        }
    }

    fn terminating(&self) -> BTreeSet<&str> {
        let namespaces = self.find(Some(""), "namespaces").into_iter();
        let leaving =
            namespaces.flat_map(|all| all.objects.values()).filter(|object| object::is_leaving(object));
        leaving.map(|object| text(object, "name")).collect()
    }

    fn empty_namespaces(&self) -> Vec<String> {
        let mut empty = self.terminating();
        if empty.is_empty() {
            return Vec::new();
        }
        for object in self.resources.iter().flat_map(|all| all.objects.values()) {
            empty.remove(text(object, "namespace"));
        }
        empty.into_iter().map(str::to_owned).collect()
    }
}
