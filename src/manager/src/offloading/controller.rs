//! The controller of NamespaceOffloadings.
//!
//! The finalizer is written before the label, and removed after it. So the label of a namespace whose NamespaceOffloading was
//! deleted while no manager ran is removed too, and as long as Pods are sent to admission there is an object that says where they
//! may run. There is one exception: a request of a former leader may arrive after its successor has removed the finalizer, and
//! leave a label without an object. Such a label is removed if a manager has written it, by `managedFields`, and if the API server
//! says that there is no object. A label that somebody else has set stays.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use outrigger_api::NamespaceOffloading;
use outrigger_core::keys;
use outrigger_core::offloading::{NAME, Strategy, is_reserved};
use outrigger_core::reason::Cause;
use serde_json::{Value, json};
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

    fn at_once(&self) -> usize {
        8
    }

    fn gained(&self) {
        let Context { queues, caches, .. } = &*self.0;
        let offloadings = &caches.offloadings;
        queues.offloadings.add(offloadings.keys().into_iter().chain(offloadings.labelled()));
    }

    async fn step(&self, namespace: &Namespace) -> Result<Action, kube::Error> {
        let context = &*self.0;
        let Some(mut object) = context.caches.offloadings.get(namespace) else {
            remove_left_label(context, namespace).await?;
            return Ok(Action::Done);
        };
        let (api, held) = (api(context, namespace), is_held(&object));
        match wanted(&object) {
            // The strategy is unknown: the namespace's Pods are refused, and its label can't be determined.
            None => {}
            Some(true) => {
                if let Some(written) =
                    writes::finalizer(&api, &*object, keys::OFFLOADING_FINALIZER, true).await?
                {
                    object = Arc::new(written);
                }
                let labelled = label(context, namespace, &object, true).await;
                // No field of the status can say that the API server refuses it.
                if let Err(kube::Error::Api(refused)) = &labelled {
                    let key = keys::OFFLOADED;
                    let message =
                        format!("the label {key} of namespace {namespace} can't be written: {refused}");
                    context.telemetry.events.offloading(&object, Cause::NotOffloaded, &message).await;
                }
                if !labelled? {
                    return Ok(Action::Wait);
                }
            }
            Some(false) => {
                // One that is being deleted without the finalizer has no label left to remove.
                let is_labelled = held || object.metadata.deletion_timestamp.is_none();
                if is_labelled && !label(context, namespace, &object, false).await? {
                    return Ok(Action::Wait);
                }
                if let Some(written) =
                    writes::finalizer(&api, &*object, keys::OFFLOADING_FINALIZER, false).await?
                {
                    if written.finalizers().is_empty() && object.metadata.deletion_timestamp.is_some() {
                        return Ok(Action::Done);
                    }
                    object = Arc::new(written);
                }
            }
        }
        let now = context.environment.clock.wall();
        let (wanted, trouble) = context.caches.offloadings.with_nodes(|nodes| {
            let wanted = status::compute(&object, nodes, now);
            let trouble = status::trouble(&object, &wanted, nodes.len());
            (wanted, trouble)
        });
        if object.status.as_ref() != Some(&wanted) {
            let change = status::patch(object.status.as_ref(), &wanted);
            let written = writes::status(&api, &Version::of(&*object), change).await?;
            context.feeds.offloadings.answer(written);
        }
        if let Some((cause, message)) = trouble.filter(|_| status::is_news(object.status.as_ref(), &wanted)) {
            context.telemetry.events.offloading(&object, cause, &message).await;
        }
        Ok(Action::Done)
    }
}

fn api(context: &Context, namespace: &str) -> Api<NamespaceOffloading> {
    Api::namespaced(context.client.clone(), namespace)
}

/// A namespace without its spec and status.
type Metadata = PartialObjectMeta<core::Namespace>;

/// The namespace, unless it doesn't exist or is being deleted: in such a one nobody creates Pods.
async fn namespace(context: &Context, name: &str) -> Result<Option<Metadata>, kube::Error> {
    let namespaces: Api<Metadata> = Api::all(context.client.clone());
    let found = namespaces.get_opt(name).await?;
    Ok(found.filter(|namespace| namespace.metadata.deletion_timestamp.is_none()))
}

/// Sets the namespace's label, or removes it. A label that is right isn't written. Returns `false` where nothing was written because the
/// API server has another state of the object: the watch of a new leader may be behind, and an object that has lost its finalizer
/// since may be deleted at any time, and would leave the label.
async fn label(
    context: &Context,
    name: &str,
    object: &NamespaceOffloading,
    offloaded: bool,
) -> Result<bool, kube::Error> {
    let Some(namespace) = namespace(context, name).await? else { return Ok(true) };
    let value = namespace.labels().get(keys::OFFLOADED).map(String::as_str);
    if value == offloaded.then_some("true") {
        return Ok(true);
    }
    let found = api(context, name).get_opt(NAME).await?;
    let same = |found: &NamespaceOffloading| {
        found.uid() == object.uid() && wanted(found) == Some(offloaded) && (is_held(found) || !offloaded)
    };
    if !found.as_ref().is_some_and(same) {
        return Ok(false);
    }
    let uid = namespace.uid();
    if !offloaded {
        remove_label(context, name, json!({"uid": uid})).await?;
        return Ok(true);
    }
    // By an apply the API server keeps who has written it: [`writes::has_written`]. It keeps nothing of a merge patch to an object that was
    // applied without a field of its own. A namespace that is deleted meanwhile isn't created again, because of its uid.
    let label = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "uid": uid, "labels": {keys::OFFLOADED: "true"}}});
    write_label(context, name, &writes::apply(), Patch::Apply(&label)).await?;
    info!(namespace = name, "offloading label written");
    Ok(true)
}

/// Removes a label that a manager has written from a namespace that has no NamespaceOffloading. The namespace is read first and written
/// in this version: a label that is written meanwhile for a new NamespaceOffloading stays.
async fn remove_left_label(context: &Context, name: &str) -> Result<(), kube::Error> {
    let is_ours = |found: &PartialObjectMeta<core::Namespace>| {
        writes::has_written(&found.metadata, "f:labels", keys::OFFLOADED)
    };
    let Some(namespace) = namespace(context, name).await?.filter(is_ours) else {
        return Ok(());
    };
    // The cache may be stale.
    if api(context, name).get_opt(NAME).await?.is_some() {
        return Ok(());
    }
    let metadata = json!({"uid": namespace.uid(), "resourceVersion": namespace.resource_version()});
    remove_label(context, name, metadata).await
}

/// Removes the label from a namespace with this metadata.
async fn remove_label(context: &Context, name: &str, mut metadata: Value) -> Result<(), kube::Error> {
    metadata["labels"] = json!({keys::OFFLOADED: null});
    let patch = json!({"metadata": metadata});
    write_label(context, name, &writes::patch(), Patch::Merge(&patch)).await?;
    info!(namespace = name, "offloading label removed");
    Ok(())
}

async fn write_label(
    context: &Context,
    name: &str,
    params: &PatchParams,
    patch: Patch<&Value>,
) -> Result<(), kube::Error> {
    let namespaces: Api<core::Namespace> = Api::all(context.client.clone());
    namespaces.patch(name, params, &patch).await.map(drop)
}

/// Whether the object's deletion waits for the manager.
fn is_held(object: &NamespaceOffloading) -> bool {
    object.finalizers().iter().any(|finalizer| finalizer == keys::OFFLOADING_FINALIZER)
}

/// Whether admission has to look at the namespace's Pods; `None` when that can't be determined.
fn wanted(object: &NamespaceOffloading) -> Option<bool> {
    if object.metadata.deletion_timestamp.is_some() || is_reserved(&object.namespace().unwrap_or_default()) {
        return Some(false);
    }
    Strategy::of(&object.spec.pod_offloading_strategy).map(|strategy| strategy != Strategy::Local)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use outrigger_runtime::fake_api::{FakeApi, not_found};

    use super::*;
    use crate::fixtures;

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
            let mut object: NamespaceOffloading = fixtures::object(json!({
                "apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
                "metadata": {"name": NAME, "namespace": namespace}, "spec": {"podOffloadingStrategy": strategy}}));
            if deleted {
                let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH);
                object.metadata.deletion_timestamp = Some(now);
            }
            assert_eq!(wanted(&object), label, "{namespace} {strategy} {deleted}");
        }
    }

    #[tokio::test]
    async fn a_label_changes_only_if_the_api_server_has_the_object_as_it_is_known() {
        const NAMESPACE: &str = "/api/v1/namespaces/n";
        const OBJECT: &str = "/apis/offloading.liqo.io/v1beta1/namespaces/n/namespaceoffloadings/offloading";
        let object = |strategy: &str, finalizers: &[&str]| {
            json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
                "metadata": {"name": NAME, "namespace": "n", "uid": "o", "finalizers": finalizers},
                "spec": {"podOffloadingStrategy": strategy}})
        };
        let held = [keys::OFFLOADING_FINALIZER];
        let other = {
            let mut other = object("Remote", &held);
            other["metadata"]["uid"] = json!("other");
            other
        };
        for (known, found, label, changes) in [
            ("Remote", (200, object("Remote", &held)), json!({}), true),
            ("Remote", (200, object("Local", &[])), json!({}), false),
            ("Remote", (200, object("Remote", &[])), json!({}), false),
            ("Remote", (200, other), json!({}), false),
            ("Remote", (404, not_found()), json!({}), false),
            ("Local", (200, object("Local", &held)), json!({keys::OFFLOADED: "true"}), true),
            ("Local", (200, object("Remote", &held)), json!({keys::OFFLOADED: "true"}), false),
        ] {
            let api = FakeApi::default();
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": "n", "uid": "u", "labels": label}});
            api.answers("GET", NAMESPACE, 200, namespace.clone());
            api.answers("PATCH", NAMESPACE, 200, namespace);
            let (code, body) = found;
            api.answers("GET", OBJECT, code, body.clone());
            let context = fixtures::context(api.client());
            let known = fixtures::object(object(known, &held));
            context.caches.offloadings.object(outrigger_runtime::cache::Change::Applied(known));
            let done = Offloadings(context).step(&"n".into()).await;
            let written = api.calls("PATCH").iter().filter(|(path, _)| path.starts_with(NAMESPACE)).count();
            assert_eq!(written == 1, changes, "{code} {body}");
            assert_eq!(matches!(done, Ok(Action::Wait)), !changes, "{code} {body}: {done:?}");
        }
    }

    #[tokio::test]
    async fn a_label_without_an_object_is_removed_if_a_manager_has_written_it() {
        const NAMESPACE: &str = "/api/v1/namespaces/n";
        const OBJECT: &str = "/apis/offloading.liqo.io/v1beta1/namespaces/n/namespaceoffloadings/offloading";
        let object = json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
            "metadata": {"name": NAME, "namespace": "n"}, "spec": {}});
        for (manager, found, removed) in [
            (keys::MANAGER, (404, not_found()), true),
            (keys::MANAGER, (200, object), false),
            (keys::MANAGER, (503, json!({})), false),
            ("kubectl-label", (404, not_found()), false),
        ] {
            let api = FakeApi::default();
            let owned = json!({"f:metadata": {"f:labels": {format!("f:{}", keys::OFFLOADED): {}}}});
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
                "name": "n", "uid": "u", "resourceVersion": "7", "labels": {keys::OFFLOADED: "true"},
                "managedFields": [{"manager": "else"}, {"manager": manager, "fieldsV1": owned}]}});
            api.answers("GET", NAMESPACE, 200, namespace.clone());
            api.answers("PATCH", NAMESPACE, 200, namespace);
            let (code, body) = found;
            api.answers("GET", OBJECT, code, body);
            let done = Offloadings(fixtures::context(api.client())).step(&"n".into()).await;
            assert_eq!(done.is_ok(), code != 503, "{manager} {code}");
            let patch =
                json!({"metadata": {"uid": "u", "resourceVersion": "7", "labels": {keys::OFFLOADED: null}}});
            let written: Vec<Value> = api.calls("PATCH").into_iter().map(|(_, body)| body).collect();
            assert_eq!(written, Vec::from_iter(removed.then_some(patch)), "{manager} {code}");
        }
    }
}
