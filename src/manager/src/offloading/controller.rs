//! The controller of NamespaceOffloadings.
//!
//! A finalizer goes before the label and leaves after it. So the label of a namespace whose NamespaceOffloading was deleted
//! while no manager ran is taken off too, and no label is ever taken off because an object was not seen: one that isn't
//! there has nothing left to take off. And as long as Pods are sent to admission there is an object that says where they
//! may run.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use kube::ResourceExt;
use kube::api::{Api, Patch};
use kube::core::PartialObjectMeta;
use outrigger_api::NamespaceOffloading;
use outrigger_core::keys;
use outrigger_core::offloading::{Strategy, is_reserved};
use outrigger_core::reason::Cause;
use serde_json::json;
use tracing::info;

use super::status;
use crate::context::Context;
use crate::queue::{self, Queue};
use crate::state::Namespace;
use crate::worker::{Action, Controller};
use crate::writes::{self, Version};

impl queue::Key for Namespace {}

pub(crate) struct Offloadings(pub(crate) Arc<Context>);

impl Controller for Offloadings {
    type Key = Namespace;

    const NAME: &'static str = "offloading";
    const QUEUE: fn(&Context) -> &Queue<Namespace> = |context| &context.queues.offloadings;

    fn context(&self) -> &Context {
        &self.0
    }

    fn at_once(&self) -> usize {
        8
    }

    fn gained(&self) {
        self.0.queues.offloadings.add(self.0.offloadings.keys());
    }

    async fn step(&self, namespace: &Namespace) -> Result<Action, kube::Error> {
        let context = &*self.0;
        let Some(mut object) = context.offloadings.get(namespace) else { return Ok(Action::Done) };
        let held = object.finalizers().iter().any(|finalizer| finalizer == keys::OFFLOADING_FINALIZER);
        match wanted(&object) {
            // The strategy is unknown: the namespace's Pods are refused, and its label can't be told.
            None => {}
            Some(true) => {
                if let Some(written) = finalizer(context, &object, true).await? {
                    object = Arc::new(written);
                }
                self.label(namespace, &object, true).await?;
            }
            Some(false) => {
                // One that is being deleted without the finalizer has no label left to remove.
                if held || object.metadata.deletion_timestamp.is_none() {
                    self.label(namespace, &object, false).await?;
                }
                if let Some(written) = finalizer(context, &object, false).await? {
                    if written.finalizers().is_empty() && object.metadata.deletion_timestamp.is_some() {
                        return Ok(Action::Done);
                    }
                    object = Arc::new(written);
                }
            }
        }
        let now = context.environment.clock.wall();
        let (wanted, trouble) = context.offloadings.with_nodes(|nodes| {
            let wanted = status::compute(&object, nodes, now);
            let trouble = status::trouble(&object, &wanted, nodes.len());
            (wanted, trouble)
        });
        if object.status.as_ref() != Some(&wanted) {
            let change = status::patch(object.status.as_ref(), &wanted);
            let written = writes::status(&api(context, namespace), &Version::of(&*object), change).await?;
            context.feeds.offloadings.answer(written);
        }
        if let Some((cause, message)) = trouble.filter(|_| status::is_news(object.status.as_ref(), &wanted)) {
            context.events.offloading(&object, cause, &message).await;
        }
        Ok(Action::Done)
    }
}

impl Offloadings {
    /// Sets the namespace's label, or takes it off. An Event reports that the API server refuses it, as no field of the status
    /// can.
    async fn label(
        &self,
        namespace: &str,
        object: &NamespaceOffloading,
        offloaded: bool,
    ) -> Result<(), kube::Error> {
        let context = &*self.0;
        let labelled = label(context, namespace, offloaded).await;
        if let Err(kube::Error::Api(refused)) = &labelled
            && offloaded
        {
            let message =
                format!("the label {} of namespace {namespace} can't be written: {refused}", keys::OFFLOADED);
            context.events.offloading(object, Cause::NotOffloaded, &message).await;
        }
        labelled
    }
}

fn api(context: &Context, namespace: &str) -> Api<NamespaceOffloading> {
    Api::namespaced(context.client.clone(), namespace)
}

/// Adds the finalizer, or removes it. Returns the object where that was a write.
async fn finalizer(
    context: &Context,
    object: &NamespaceOffloading,
    wanted: bool,
) -> Result<Option<NamespaceOffloading>, kube::Error> {
    let api = api(context, &object.namespace().unwrap_or_default());
    let over = Version::of(object);
    writes::finalizer(&api, &over, object.finalizers(), keys::OFFLOADING_FINALIZER, wanted).await
}

/// Sets the namespace's label, or takes it off; looks first whether it is so already.
async fn label(context: &Context, name: &str, offloaded: bool) -> Result<(), kube::Error> {
    let namespaces: Api<PartialObjectMeta<core::Namespace>> = Api::all(context.client.clone());
    let Some(namespace) = namespaces.get_opt(name).await? else { return Ok(()) };
    let value = namespace.labels().get(keys::OFFLOADED).map(String::as_str);
    let wanted = offloaded.then_some("true");
    // In one that is being deleted nobody makes Pods.
    if value == wanted || namespace.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let patch = json!({"metadata": {"uid": namespace.uid(), "labels": {keys::OFFLOADED: wanted}}});
    let api: Api<core::Namespace> = Api::all(context.client.clone());
    api.patch(name, &writes::patch(), &Patch::Merge(&patch)).await?;
    info!(namespace = name, offloaded, "offloading label written");
    Ok(())
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
    use jiff::Timestamp;
    use outrigger_core::offloading::NAME;

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
