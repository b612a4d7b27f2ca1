//! What must hold of offloaded namespaces: Pods are changed there and nowhere else, and nothing is left of an offloading that is
//! deleted.

use std::sync::Arc;

use outrigger_core::keys;
use outrigger_core::offloading::NAME;
use serde_json::Value;

use super::Judge;
use crate::model::Commit;
use crate::world::{AFFINITY, PLAIN, World, at, text};

impl Judge {
    /// A write in the infrastructure cluster that may be about offloading.
    pub(super) fn offloading_written(&self, world: &World, commit: &Commit) {
        let namespace = match (commit.kind.plural, commit.namespace.as_deref()) {
            ("namespaces", _) => commit.name.as_str(),
            ("namespaceoffloadings" | "pods", Some(namespace)) => namespace,
            _ => return,
        };
        if !PLAIN.contains(&namespace) {
            return;
        }
        if commit.kind.plural != "pods" {
            self.found.lock().offloadings.insert(namespace.to_owned());
        }
        // Webhooks may not know of a change yet, and of what a restore brings back nobody has heard.
        let unsure = {
            let found = self.found.lock();
            found.restored || (commit.kind.plural == "pods" && found.offloadings.contains(namespace))
        };
        match (commit.kind.plural, &commit.old, &commit.new) {
            _ if unsure => {}
            ("pods", None, Some(pod)) => {
                if let Some(wrong) = wrongly_admitted(world, namespace, pod) {
                    let name = &commit.name;
                    self.violation(world, format!("Pod {namespace}/{name} is admitted {wrong}"));
                }
            }
            // Nobody could say where the namespace's Pods may run.
            ("namespaceoffloadings", Some(_), None) if is_labelled(world, namespace) => {
                self.violation(
                    world,
                    format!("the NamespaceOffloading of {namespace} is gone, and the label isn't"),
                );
            }
            _ => {}
        }
    }

    /// How namespaces differ from what their NamespaceOffloadings say.
    pub(super) fn offloadings_missing(world: &World) -> Vec<String> {
        let mut missing = Vec::new();
        for namespace in PLAIN {
            let object = world.infra.get("namespaceoffloadings", Some(namespace), NAME);
            let offloads = wanted(object.as_deref()).is_some();
            let labelled = is_labelled(world, namespace);
            if labelled != offloads {
                missing.push(format!("namespace {namespace} is labelled: {labelled}, offloaded: {offloads}"));
            }
            let Some(object) = object else { continue };
            let finalizers = &object["metadata"]["finalizers"];
            let held = finalizers.to_string().contains(keys::OFFLOADING_FINALIZER);
            let observed = object["status"]["observedGeneration"] == object["metadata"]["generation"];
            if !object["metadata"]["deletionTimestamp"].is_null() {
                missing.push(format!("the NamespaceOffloading of {namespace} is still being deleted"));
            } else if held != offloads || !observed {
                let about = format!("its finalizers are {finalizers}, its status is {}", object["status"]);
                missing.push(format!("the NamespaceOffloading of {namespace} isn't served: {about}"));
            }
        }
        missing
    }
}

fn is_labelled(world: &World, namespace: &str) -> bool {
    let namespace = world.infra.get("namespaces", None, namespace);
    namespace.is_some_and(|namespace| namespace["metadata"]["labels"][keys::OFFLOADED] == "true")
}

/// Strategy and region of an offloading; `None` where Pods stay as they are.
fn wanted(object: Option<&Value>) -> Option<(&str, &str)> {
    let object = object.filter(|object| object["metadata"]["deletionTimestamp"].is_null())?;
    let strategy = text(object, "/spec/podOffloadingStrategy");
    let region = text(object, "/spec/clusterSelector/nodeSelectorTerms/0/matchExpressions/0/values/0");
    (strategy != "Local").then_some((strategy, region))
}

/// How a new Pod differs from what the namespace's offloading asks for.
fn wrongly_admitted(world: &World, namespace: &str, pod: &Arc<Value>) -> Option<String> {
    let object = world.infra.get("namespaceoffloadings", Some(namespace), NAME);
    let terms = at(pod, AFFINITY).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let tolerates = pod["spec"]["tolerations"].to_string().contains(keys::NOT_ALLOWED);
    let all = Value::from(terms).to_string();
    let fits = match wanted(object.as_deref()) {
        None => terms.is_empty() && !tolerates,
        Some((strategy, region)) => {
            let local = strategy == "LocalAndRemote";
            terms.len() == 1 + usize::from(local)
                && all.contains("\"NotIn\"") == local
                && all.contains(&format!("\"{region}\""))
                && tolerates
        }
    };
    let spec = object.as_ref().map(|object| &object["spec"]);
    (!fits).then(|| format!("with {all}, tolerating: {tolerates}; the offloading is {spec:?}"))
}
