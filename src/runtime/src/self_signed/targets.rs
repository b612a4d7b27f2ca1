//! Targets of the CA bundle: webhook configurations of Outrigger, or a ConfigMap.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::environment::Environment;
use crate::ready::Readiness;
use crate::watch::{Event, Watch};

/// An object that contains the CA bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BundleTarget {
    /// A webhook configuration: `caBundle` of the entries whose names have this suffix. The object may be absent.
    Webhooks {
        /// `MutatingWebhookConfiguration` or `ValidatingWebhookConfiguration`.
        kind: &'static str,
        /// The object's name.
        name: &'static str,
        /// Suffix of the names of Outrigger's entries.
        entries: &'static str,
    },
    /// A ConfigMap: the key `ca.crt`. The object has to exist.
    ConfigMap {
        /// The object's name.
        name: &'static str,
    },
}

impl BundleTarget {
    pub(super) fn api(&self, client: &Client, namespace: &str) -> Api<DynamicObject> {
        match self {
            Self::Webhooks { kind, .. } => {
                let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
                Api::all_with(client.clone(), &ApiResource::from_gvk(&gvk))
            }
            Self::ConfigMap { .. } => {
                let gvk = GroupVersionKind::gvk("", "v1", "ConfigMap");
                Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&gvk))
            }
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Webhooks { name, .. } | Self::ConfigMap { name } => name,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Webhooks { kind, .. } => kind,
            Self::ConfigMap { .. } => "ConfigMap",
        }
    }

    /// Reads the object; `None` if it is absent and may be.
    pub(super) async fn read(&self, client: &Client, namespace: &str) -> anyhow::Result<Option<Value>> {
        let failed = || self.to_string();
        let object = self.api(client, namespace).get_opt(self.name()).await.with_context(failed)?;
        match (object, self) {
            (None, Self::ConfigMap { name }) => {
                anyhow::bail!("ConfigMap {namespace}/{name}: not found; apply certs/self-signed first")
            }
            (object, _) => Ok(object.map(serde_json::to_value).transpose()?),
        }
    }

    /// The bundles that the object contains now, PEM, without duplicates.
    pub(super) fn bundles_in(&self, object: &Value) -> BTreeSet<String> {
        match self {
            Self::ConfigMap { .. } => {
                object["data"]["ca.crt"].as_str().map(str::to_owned).into_iter().collect()
            }
            Self::Webhooks { entries, .. } => own_entries(object, entries)
                .filter_map(|(_, webhook)| {
                    STANDARD.decode(webhook["clientConfig"]["caBundle"].as_str()?).ok()
                })
                .filter_map(|bundle| String::from_utf8(bundle).ok())
                .collect(),
        }
    }

    /// The patch that makes the object contain this bundle; `None` if it does already.
    pub(super) fn patch(&self, object: &Value, bundle: &str) -> anyhow::Result<Option<Patch<Value>>> {
        let version = &object["metadata"]["resourceVersion"];
        match self {
            Self::ConfigMap { .. } => {
                if object["data"]["ca.crt"] == bundle {
                    return Ok(None);
                }
                let change = json!({"metadata": {"resourceVersion": version}, "data": {"ca.crt": bundle}});
                Ok(Some(Patch::Merge(change)))
            }
            Self::Webhooks { entries, .. } => {
                let operations = bundle_operations(object, entries, &STANDARD.encode(bundle));
                if operations.is_empty() {
                    return Ok(None);
                }
                // A replica that has read an older Secret must not overwrite a newer bundle.
                let mut all =
                    vec![json!({"op": "test", "path": "/metadata/resourceVersion", "value": version})];
                all.extend(operations);
                Ok(Some(Patch::Json(serde_json::from_value(Value::Array(all))?)))
            }
        }
    }

    /// Applies a patch of [`Self::patch`]. If the object has changed in the meantime, the error [is a conflict](is_conflict).
    pub(super) async fn write(
        &self,
        client: &Client,
        (namespace, manager): (&str, &str),
        patch: &Patch<Value>,
    ) -> anyhow::Result<()> {
        let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
        let failed = || self.to_string();
        self.api(client, namespace).patch(self.name(), &params, patch).await.with_context(failed)?;
        Ok(())
    }
}

impl std::fmt::Display for BundleTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind(), self.name())
    }
}

/// Outrigger's entries of a webhook configuration, with their indexes.
fn own_entries<'a>(object: &'a Value, entries: &'a str) -> impl Iterator<Item = (usize, &'a Value)> {
    let all = object["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_own = move |webhook: &Value| webhook["name"].as_str().is_some_and(|name| name.ends_with(entries));
    all.iter().enumerate().filter(move |(_, webhook)| is_own(webhook))
}

/// JSON patch operations that set this bundle, in base64, in those of Outrigger's entries that have another one.
fn bundle_operations(object: &Value, entries: &str, bundle: &str) -> Vec<Value> {
    let outdated =
        own_entries(object, entries).filter(|(_, webhook)| webhook["clientConfig"]["caBundle"] != bundle);
    outdated
        .flat_map(|(i, webhook)| {
            [
                json!({"op": "test", "path": format!("/webhooks/{i}/name"), "value": webhook["name"]}),
                json!({"op": "add", "path": format!("/webhooks/{i}/clientConfig/caBundle"), "value": bundle}),
            ]
        })
        .collect()
}

/// Whether a write failed because others have written the object in the meantime. A failed JSON patch test has the status 422.
pub(super) fn is_conflict(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<kube::Error>(), Some(kube::Error::Api(status)) if matches!(status.code, 409 | 422))
}

/// Notifies of each change of the object with this name. Errors are logged and retried by the watch.
pub(super) async fn notify_changes<K>(
    api: Api<K>,
    name: &'static str,
    environment: Environment,
    changed: Arc<Notify>,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let watch = Watch::of(api, "self-signed certificates").fields(&format!("metadata.name={name}"));
    // The process doesn't wait for this watch: it is ready when it has a certificate.
    let ready = Readiness::default().wait_for(name);
    let sink = |event| {
        if matches!(event, Event::Listed(_) | Event::Applied(_) | Event::Deleted(_)) {
            changed.notify_one();
        }
    };
    watch.environment(&environment).follow(ready, sink).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOOKS: BundleTarget = BundleTarget::Webhooks {
        kind: "MutatingWebhookConfiguration",
        name: "outrigger",
        entries: ".outrigger.dev",
    };

    /// A webhook configuration whose entries have these names and bundles.
    fn configuration(entries: &[(&str, Option<&str>)]) -> Value {
        let entries: Vec<Value> = entries
            .iter()
            .map(|(name, bundle)| match bundle {
                Some(text) => json!({"name": name, "clientConfig": {"caBundle": STANDARD.encode(text)}}),
                None => json!({"name": name, "clientConfig": {"url": "https://x"}}),
            })
            .collect();
        json!({"metadata": {"name": "outrigger", "resourceVersion": "7"}, "webhooks": entries})
    }

    /// The object after the patch of [`BundleTarget::patch`].
    fn patched(object: &Value, bundle: &str) -> Option<Value> {
        let Patch::Json::<Value>(patch) = HOOKS.patch(object, bundle).unwrap()? else {
            panic!("no JSON patch")
        };
        let mut after = object.clone();
        json_patch::patch(&mut after, &patch).unwrap();
        Some(after)
    }

    #[test]
    fn only_entries_of_outrigger_get_the_bundle() {
        let before = configuration(&[
            ("pods.outrigger.dev", None),
            ("x.example.com", None),
            ("b.outrigger.dev", Some("old")),
        ]);
        let after = patched(&before, "new").unwrap();
        let mut expected = before;
        for at in [0, 2] {
            expected["webhooks"][at]["clientConfig"]["caBundle"] = json!(STANDARD.encode("new"));
        }
        assert_eq!(after, expected);
        assert_eq!(patched(&after, "new"), None, "nothing is left to write");
        assert_eq!(patched(&configuration(&[("x.example.com", None)]), "new"), None);
        assert_eq!(patched(&json!({"metadata": {}}), "new"), None);
    }

    #[test]
    fn current_bundles_are_found() {
        let object = configuration(&[
            ("pods.outrigger.dev", Some("old")),
            ("x.example.com", Some("theirs")),
            ("a.outrigger.dev", None),
            ("b.outrigger.dev", Some("older")),
            ("c.outrigger.dev", Some("old")),
        ]);
        assert_eq!(HOOKS.bundles_in(&object), BTreeSet::from(["old".to_owned(), "older".to_owned()]));
        let target = BundleTarget::ConfigMap { name: "outrigger-ca" };
        assert_eq!(
            target.bundles_in(&json!({"data": {"ca.crt": "old"}})),
            BTreeSet::from(["old".to_owned()])
        );
        assert!(target.bundles_in(&json!({"metadata": {}})).is_empty());
    }

    #[test]
    fn a_configuration_with_a_newer_version_is_not_written() {
        let before = configuration(&[("pods.outrigger.dev", None)]);
        let Some(Patch::Json::<Value>(patch)) = HOOKS.patch(&before, "new").unwrap() else { panic!() };
        for change in
            [json!({"metadata": {"resourceVersion": "8"}}), json!({"webhooks": [{"name": "other"}]})]
        {
            let mut later = before.clone();
            json_patch::merge(&mut later, &change);
            assert!(json_patch::patch(&mut later, &patch).is_err());
        }
    }

    #[test]
    fn only_one_key_of_a_config_map_is_written() {
        let target = BundleTarget::ConfigMap { name: "outrigger-ca" };
        let object = json!({"metadata": {"resourceVersion": "7"}, "data": {"other": "x"}});
        let Some(Patch::Merge(change)) = target.patch(&object, "new").unwrap() else { panic!() };
        assert_eq!(change, json!({"metadata": {"resourceVersion": "7"}, "data": {"ca.crt": "new"}}));
        let object = json!({"metadata": {"resourceVersion": "7"}, "data": {"ca.crt": "new"}});
        assert!(target.patch(&object, "new").unwrap().is_none());
    }
}
