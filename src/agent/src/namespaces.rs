//! Namespaces whose Pods are sent to the manager: those of the command line, or those of a ConfigMap, which is watched.
//!
//! All namespaces are sent only if `*` is set explicitly. Without a valid ConfigMap no Pods are sent, or the last valid
//! one stays in effect.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::Api;
use outrigger_core::bounds::Bounds;
use outrigger_core::syntax::is_short_dns_label;
use outrigger_core::text::quoted;
use outrigger_core::yaml;
use outrigger_runtime::cache::{Change, Feed};
use outrigger_runtime::events::Events;
use outrigger_runtime::ready::{Readiness, ReadyHandle, Warning};
use outrigger_runtime::watch::Watch;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
use tracing::warn;

use crate::context::Context;

pub(crate) const CONFIG_MAP: &str = "workload-plugin-config";
const KEY: &str = "config";
const ALL: &str = "*";
/// Maximum number of namespaces. Each has a watch.
pub(crate) const MAX_NAMESPACES: usize = 256;
/// Maximum size of the value of the key, which exceeds the size of that many names.
const MAX_TEXT: usize = 64 << 10;
/// What that text may hold.
const BOUNDS: Bounds = Bounds { bytes: MAX_TEXT, values: 4 * MAX_NAMESPACES, depth: 4 };

/// The namespaces whose Pods are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    /// These namespaces; at least one.
    Only(BTreeSet<String>),
}

impl Scope {
    /// Validates configured names. Fails if a name is invalid, or there are too many names or none.
    pub(crate) fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut only = BTreeSet::new();
        let mut all = false;
        for name in names {
            if name == ALL {
                all = true;
            } else if !is_short_dns_label(name) {
                return Err(format!(
                    "{:?} is not a namespace name; use a DNS label, or \"*\" for all namespaces",
                    quoted(name)
                ));
            } else {
                only.insert(name.to_owned());
            }
            if only.len() > MAX_NAMESPACES {
                return Err(format!("more than {MAX_NAMESPACES} namespaces; set fewer, or \"*\" for all"));
            }
        }
        match (all, only.is_empty()) {
            (true, true) => Ok(Self::All),
            (true, false) => {
                Err("\"*\" selects all namespaces; remove the other names, or the \"*\"".to_owned())
            }
            (false, true) => Err("no namespaces are set; set them, or \"*\" for all".to_owned()),
            (false, false) => Ok(Self::Only(only)),
        }
    }

    /// Returns the watches: of a namespace each, or `None` for all.
    pub(crate) fn watches(&self) -> BTreeSet<Option<String>> {
        match self {
            Self::All => BTreeSet::from([None]),
            Self::Only(names) => names.iter().cloned().map(Some).collect(),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str(ALL),
            Self::Only(names) => f.write_str(&names.iter().map(String::as_str).collect::<Vec<_>>().join(",")),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    namespaces: Option<Vec<String>>,
}

/// Reads the namespaces from a ConfigMap. Fails if the value of the key is invalid or sets no namespaces.
fn read(map: &ConfigMap) -> Result<Scope, String> {
    let wrong = |error: String| format!("data.{KEY}: {error}");
    let text = map.data.as_ref().and_then(|data| data.get(KEY)).map_or("", String::as_str);
    if text.len() > MAX_TEXT {
        return Err(wrong(format!("has {} bytes, at most {MAX_TEXT} are read", text.len())));
    }
    let mut documents = yaml::documents(text, BOUNDS).map_err(|error| wrong(error.to_string()))?;
    let config = match (documents.pop(), documents.len()) {
        (None | Some(Value::Null), 0) => Config::default(),
        (Some(document), 0) => serde_json::from_value(document).map_err(|error| wrong(error.to_string()))?,
        _ => return Err(wrong("has several documents; one is read".to_owned())),
    };
    Scope::new(config.namespaces.iter().flatten().map(String::as_str))
        .map_err(|error| wrong(format!("namespaces: {error}")))
}

/// Watches the ConfigMap of a namespace and publishes its content, `None` until it is valid for the first time. Invalid content
/// leaves the previous one in effect and is reported by Events, the log and readiness.
pub(crate) async fn configured(
    context: Arc<Context>,
    namespace: String,
    ready: ReadyHandle,
    warning: Warning,
    scopes: watch::Sender<Option<Scope>>,
) {
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &namespace);
    let watch = Watch::of(maps, CONFIG_MAP).fields(&format!("metadata.name={CONFIG_MAP}"));
    let watch = watch.environment(&context.environment);
    // `None` before the first list; then the content of the ConfigMap, or the error.
    let (content, mut changed) = watch::channel(None::<Result<Scope, String>>);
    let content = Arc::new(content);
    let missing = format!("ConfigMap {namespace}/{CONFIG_MAP} not found; create it, or set --namespace");
    let feed = {
        let (content, missing) = (content.clone(), missing.clone());
        Feed::new(move |change: Change<ConfigMap>| {
            content.send_replace(Some(match change {
                Change::Applied(map) => read(&map),
                Change::Gone { .. } => Err(missing.clone()),
            }));
        })
    };
    let listed = Readiness::default();
    let handle = listed.wait_for("config");
    let publish = async {
        let mut ready = Some(ready);
        while changed.changed().await.is_ok() {
            let now = changed.borrow_and_update().clone();
            let Some(now) = now else { continue };
            let valid_before = scopes.borrow().is_some();
            report(&context.events, &namespace, &warning, now.as_ref().err(), valid_before).await;
            if let Ok(scope) = now {
                scopes.send_if_modified(|current| current.replace(scope) != *current);
                if let Some(ready) = ready.take() {
                    ready.done();
                }
            }
        }
    };
    let first = async {
        listed.done().await;
        // The list was empty.
        content.send_if_modified(|content| content.is_none() && content.replace(Err(missing)).is_none());
    };
    tokio::join!(watch.follow(handle, feed.sink()), first, publish);
}

/// Reports that the content of the ConfigMap is invalid, or no longer is.
async fn report(
    events: &Events,
    namespace: &str,
    warning: &Warning,
    error: Option<&String>,
    valid_before: bool,
) {
    let text = error.map(|error| {
        let effect = if valid_before { "the previous namespaces stay in effect" } else { "no Pods are sent" };
        format!("{error}; {effect}")
    });
    if !warning.set(text.clone()) {
        return;
    }
    let Some(text) = text else { return };
    warn!(config_map = CONFIG_MAP, error = text, "invalid configuration of namespaces");
    let about = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("ConfigMap".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(CONFIG_MAP.to_owned()),
        ..ObjectReference::default()
    };
    events.publish(true, "NamespacesUnknown", "ReadConfig", &text, &about).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn only(names: &[&str]) -> Result<Scope, String> {
        Ok(Scope::Only(names.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn config_maps_are_validated() {
        let read = |text: Option<&str>| {
            let data = text.map(|text| BTreeMap::from([(KEY.to_owned(), text.to_owned())]));
            super::read(&ConfigMap { data, ..ConfigMap::default() })
        };
        assert_eq!(read(Some("namespaces: [b, a, b]")), only(&["a", "b"]));
        assert_eq!(read(Some("namespaces: ['*']")), Ok(Scope::All));
        for (text, expected) in [
            (None, "data.config: namespaces: no namespaces are set"),
            (Some(""), "data.config: namespaces: no namespaces are set"),
            (Some("namespaces:"), "data.config: namespaces: no namespaces are set"),
            (Some("namespaces: []"), "data.config: namespaces: no namespaces are set"),
            (Some("namespaces: ['']"), "data.config: namespaces: \"\" is not a namespace name"),
            (Some("namespaces: [a/b]"), "data.config: namespaces: \"a/b\" is not a namespace name"),
            (Some("namespaces: [a, '*']"), "data.config: namespaces: \"*\" selects all namespaces; remove"),
            (Some("namespaces: {}"), "data.config: "),
            // A misspelled key does not select all namespaces.
            (Some("namespace: [a]"), "data.config: "),
            (Some(&format!("namespaces: [{}]", "a".repeat(MAX_TEXT))), "data.config: has 65550 bytes"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn the_number_of_namespaces_is_limited() {
        let names: Vec<String> = (0..=MAX_NAMESPACES).map(|i| format!("n{i}")).collect();
        let scope = |count: usize| Scope::new(names.iter().take(count).map(String::as_str));
        assert!(scope(MAX_NAMESPACES).is_ok());
        assert!(scope(MAX_NAMESPACES + 1).unwrap_err().starts_with("more than 256 namespaces"));
        assert!(Scope::new(["a".repeat(64).as_str()]).is_err());
    }
}
