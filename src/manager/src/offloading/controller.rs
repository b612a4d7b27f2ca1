//! The controller of NamespaceOffloadings. One replica runs it, under the manager's Lease.
//!
//! A finalizer goes before the label and leaves after it. So the label of a namespace whose NamespaceOffloading was deleted
//! while no manager ran is taken off too, and no label is ever taken off because an object was not seen: one that isn't
//! there has nothing left to take off. And as long as Pods are sent to admission there is an object that says where they
//! may run.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, Patch};
use kube::core::PartialObjectMeta;
use kube::{Client, ResourceExt};
use outrigger_api::NamespaceOffloading;
use outrigger_core::keys;
use outrigger_core::offloading::{NAME, Strategy, is_reserved};
use outrigger_runtime::lease::Leadership;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::cache::OffloadingCache;
use super::status;
use crate::queue::Queue;
use crate::{worker, writes};

/// Namespaces that are worked on at once.
const AT_ONCE: usize = 8;

/// The namespace to look at.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub Arc<str>);

impl crate::queue::Key for Key {
    type Group = Self;

    fn group(&self) -> Self {
        self.clone()
    }
}

/// Makes namespaces what their NamespaceOffloadings ask for.
#[derive(Clone)]
pub struct Controller {
    /// The cluster.
    pub client: Client,
    /// What is known.
    pub cache: Arc<OffloadingCache>,
    /// What to look at.
    pub queue: Arc<Queue<Key>>,
    /// Whether this replica is the one.
    pub leadership: Leadership,
}

impl Controller {
    /// Works on the queue for ever, while this replica leads.
    pub async fn run(self) {
        let gained = || self.queue.add(self.cache.namespaces().into_iter().map(Key));
        let step = |key| {
            let this = self.clone();
            async move { this.step(&key).await }
        };
        worker::led(self.queue.clone(), AT_ONCE, self.leadership.clone(), gained, step).await;
    }

    async fn step(&self, key: &Key) {
        match self.reconcile(&key.0).await {
            Ok(()) => self.queue.forget(key),
            // Somebody else has written it since; the watch will show how.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                self.queue.retry(key.clone());
            }
            Err(error) => {
                warn!(namespace = %key.0, %error, "will be tried again");
                self.queue.retry(key.clone());
            }
        }
    }

    async fn reconcile(&self, namespace: &str) -> Result<(), kube::Error> {
        let Some(object) = self.cache.get(namespace) else { return Ok(()) };
        let ours = |finalizer: &String| finalizer == keys::OFFLOADING_FINALIZER;
        let held = object.finalizers().iter().any(ours);
        match wanted(&object) {
            // A strategy that nobody knows: its Pods are refused, and nothing else is known of it.
            None => {}
            Some(true) => {
                if !held {
                    let mut all = object.finalizers().to_vec();
                    all.push(keys::OFFLOADING_FINALIZER.to_owned());
                    self.finalizers(namespace, &object, &all).await?;
                }
                self.label(namespace, true).await?;
            }
            Some(false) => {
                // One that is being deleted without our finalizer was let go already.
                if held || object.metadata.deletion_timestamp.is_none() {
                    self.label(namespace, false).await?;
                }
                if held {
                    let others: Vec<String> =
                        object.finalizers().iter().filter(|f| !ours(f)).cloned().collect();
                    self.finalizers(namespace, &object, &others).await?;
                    if others.is_empty() && object.metadata.deletion_timestamp.is_some() {
                        return Ok(());
                    }
                }
            }
        }
        let wanted = self.cache.with_nodes(|nodes| status::compute(&object, nodes, Timestamp::now()));
        if object.status.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let api: Api<NamespaceOffloading> = Api::namespaced(self.client.clone(), namespace);
        let status = status::patch(object.status.as_ref(), &wanted);
        let patch = json!({"metadata": {"uid": object.uid()}, "status": status});
        api.patch_status(NAME, &writes::patch(), &Patch::Merge(&patch)).await.map(drop)
    }

    /// Sets the namespace's label, or takes it off; looks first whether it is so already.
    async fn label(&self, name: &str, offloaded: bool) -> Result<(), kube::Error> {
        let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(self.client.clone());
        let Some(namespace) = namespaces.get_opt(name).await? else { return Ok(()) };
        let value = namespace.labels().get(keys::OFFLOADED).map(String::as_str);
        let wanted = offloaded.then_some("true");
        // In one that is being deleted nobody makes Pods.
        if value == wanted || namespace.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let patch = json!({"metadata": {"uid": namespace.uid(), "labels": {keys::OFFLOADED: wanted}}});
        let api: Api<Namespace> = Api::all(self.client.clone());
        api.patch(name, &writes::patch(), &Patch::Merge(&patch)).await?;
        info!(namespace = name, offloaded, "label written");
        Ok(())
    }

    async fn finalizers(
        &self,
        namespace: &str,
        object: &NamespaceOffloading,
        all: &[String],
    ) -> Result<(), kube::Error> {
        let api: Api<NamespaceOffloading> = Api::namespaced(self.client.clone(), namespace);
        // The list is replaced as a whole: only if nobody has changed it meanwhile.
        let patch: Value = json!({"metadata": {"uid": object.uid(),
            "resourceVersion": object.resource_version(), "finalizers": all}});
        api.patch(NAME, &writes::patch(), &Patch::Merge(&patch)).await.map(drop)
    }
}

/// Whether admission has to look at the namespace's Pods; `None` when that can't be told.
fn wanted(object: &NamespaceOffloading) -> Option<bool> {
    if object.metadata.deletion_timestamp.is_some() || is_reserved(&object.namespace().unwrap_or_default()) {
        return Some(false);
    }
    Strategy::of(&object.spec.pod_offloading_strategy).map(|strategy| strategy != Strategy::Local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_namespaces_are_labelled() {
        for (namespace, strategy, deleted, label) in [
            ("n", "Remote", false, Some(true)),
            ("n", "LocalAndRemote", false, Some(true)),
            ("n", "Local", false, Some(false)),
            ("n", "Perhaps", false, None),
            ("n", "Remote", true, Some(false)),
            ("kube-system", "Remote", false, Some(false)),
        ] {
            let mut object: NamespaceOffloading = serde_json::from_value(json!({
                "apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
                "metadata": {"name": NAME, "namespace": namespace}, "spec": {"podOffloadingStrategy": strategy}}))
            .unwrap();
            if deleted {
                let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH);
                object.metadata.deletion_timestamp = Some(now);
            }
            assert_eq!(wanted(&object), label, "{namespace} {strategy} {deleted}");
        }
    }
}
