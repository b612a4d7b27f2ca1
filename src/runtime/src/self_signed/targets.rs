//! Where it is published whom to trust: our own webhook configurations, or a ConfigMap.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Client, Resource};
use serde_json::{Value, json};
use tokio::sync::Notify;

/// An object that says whom to trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A webhook configuration: `caBundle` of the entries whose names end as said. Where there is no such object there is
    /// nobody to tell.
    Webhooks {
        /// `MutatingWebhookConfiguration` or `ValidatingWebhookConfiguration`.
        kind: &'static str,
        /// The object's name.
        name: &'static str,
        /// What the names of our own entries end in.
        entries: &'static str,
    },
    /// A ConfigMap in the namespace of the Secret, under `ca.crt`. It has to be there.
    ConfigMap {
        /// The object's name.
        name: &'static str,
    },
}

impl Place {
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

    /// The object as it is now; `None` where there is none and none is needed.
    pub(super) async fn read(&self, client: &Client, namespace: &str) -> anyhow::Result<Option<Value>> {
        let failed = || self.to_string();
        let object = self.api(client, namespace).get_opt(self.name()).await.with_context(failed)?;
        match (object, self) {
            (None, Self::ConfigMap { name }) => {
                anyhow::bail!("ConfigMap {namespace}/{name}: isn't there; apply certs/self-signed first")
            }
            (object, _) => Ok(object.map(serde_json::to_value).transpose()?),
        }
    }

    /// Whom the object says to trust now, PEM; each bundle once.
    pub(super) fn carries(&self, object: &Value) -> BTreeSet<String> {
        match self {
            Self::ConfigMap { .. } => {
                object["data"]["ca.crt"].as_str().map(str::to_owned).into_iter().collect()
            }
            Self::Webhooks { entries, .. } => own(object, entries)
                .filter_map(|(_, webhook)| {
                    STANDARD.decode(webhook["clientConfig"]["caBundle"].as_str()?).ok()
                })
                .filter_map(|bundle| String::from_utf8(bundle).ok())
                .collect(),
        }
    }

    /// What has to be done to the object for it to carry this trust; `None` if it does.
    pub(super) fn patch(&self, object: &Value, trust: &str) -> anyhow::Result<Option<Patch<Value>>> {
        let version = &object["metadata"]["resourceVersion"];
        match self {
            Self::ConfigMap { .. } => {
                if object["data"]["ca.crt"] == trust {
                    return Ok(None);
                }
                let change = json!({"metadata": {"resourceVersion": version}, "data": {"ca.crt": trust}});
                Ok(Some(Patch::Merge(change)))
            }
            Self::Webhooks { entries, .. } => {
                let bundle = STANDARD.encode(trust);
                let operations = bundles(object, entries, &bundle);
                if operations.is_empty() {
                    return Ok(None);
                }
                // Whoever read the Secret before it changed must not undo what was published since.
                let mut all =
                    vec![json!({"op": "test", "path": "/metadata/resourceVersion", "value": version})];
                all.extend(operations);
                Ok(Some(Patch::Json(serde_json::from_value(Value::Array(all))?)))
            }
        }
    }

    /// Makes a change that [`Self::patch`] asks for. An object that has changed meanwhile is an error of the API server's
    /// ([`is_conflict`]).
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

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind(), self.name())
    }
}

/// Our own entries of a configuration, and where they are in it.
fn own<'a>(object: &'a Value, entries: &'a str) -> impl Iterator<Item = (usize, &'a Value)> {
    let all = object["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_ours = move |webhook: &Value| webhook["name"].as_str().is_some_and(|name| name.ends_with(entries));
    all.iter().enumerate().filter(move |(_, webhook)| is_ours(webhook))
}

/// Operations that give our own entries this bundle, base64, where they have another one.
fn bundles(object: &Value, entries: &str, bundle: &str) -> Vec<Value> {
    let others = own(object, entries).filter(|(_, webhook)| webhook["clientConfig"]["caBundle"] != bundle);
    others
        .flat_map(|(i, webhook)| {
            [
                json!({"op": "test", "path": format!("/webhooks/{i}/name"), "value": webhook["name"]}),
                json!({"op": "add", "path": format!("/webhooks/{i}/clientConfig/caBundle"), "value": bundle}),
            ]
        })
        .collect()
}

/// Whether a write failed because somebody else has written since: look again. A JSON patch whose test fails is 422.
pub(super) fn is_conflict(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<kube::Error>(), Some(kube::Error::Api(status)) if matches!(status.code, 409 | 422))
}

/// Tells whenever the object of this name changes. What fails is tried again; the rounds themselves say what is wrong.
pub(super) async fn wake<K>(api: Api<K>, name: &'static str, changed: Arc<Notify>)
where
    K: Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut stream = std::pin::pin!(watcher(api, config).default_backoff());
    while let Some(event) = stream.next().await {
        if event.is_ok() {
            changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOOKS: Place = Place::Webhooks {
        kind: "MutatingWebhookConfiguration",
        name: "outrigger",
        entries: ".outrigger.dev",
    };

    /// A configuration of which the entries have these names and bundles.
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

    /// The object after what [`Place::patch`] asks for.
    fn patched(object: &Value, trust: &str) -> Option<Value> {
        let Patch::Json::<Value>(patch) = HOOKS.patch(object, trust).unwrap()? else {
            panic!("no JSON patch")
        };
        let mut after = object.clone();
        json_patch::patch(&mut after, &patch).unwrap();
        Some(after)
    }

    #[test]
    fn only_our_own_entries_get_the_bundle() {
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
        assert_eq!(patched(&after, "new"), None, "nothing is written twice");
        assert_eq!(patched(&configuration(&[("x.example.com", None)]), "new"), None);
        assert_eq!(patched(&json!({"metadata": {}}), "new"), None);
    }

    #[test]
    fn what_is_trusted_already_is_found() {
        let object = configuration(&[
            ("pods.outrigger.dev", Some("old")),
            ("x.example.com", Some("theirs")),
            ("a.outrigger.dev", None),
            ("b.outrigger.dev", Some("older")),
            ("c.outrigger.dev", Some("old")),
        ]);
        assert_eq!(HOOKS.carries(&object), BTreeSet::from(["old".to_owned(), "older".to_owned()]));
        let place = Place::ConfigMap { name: "outrigger-ca" };
        assert_eq!(place.carries(&json!({"data": {"ca.crt": "old"}})), BTreeSet::from(["old".to_owned()]));
        assert!(place.carries(&json!({"metadata": {}})).is_empty());
    }

    #[test]
    fn a_configuration_that_has_changed_since_is_not_written() {
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
    fn a_config_map_gets_one_key() {
        let place = Place::ConfigMap { name: "outrigger-ca" };
        let object = json!({"metadata": {"resourceVersion": "7"}, "data": {"other": "x"}});
        let Some(Patch::Merge(change)) = place.patch(&object, "new").unwrap() else { panic!() };
        assert_eq!(change, json!({"metadata": {"resourceVersion": "7"}, "data": {"ca.crt": "new"}}));
        let object = json!({"metadata": {"resourceVersion": "7"}, "data": {"ca.crt": "new"}});
        assert!(place.patch(&object, "new").unwrap().is_none());
    }
}
