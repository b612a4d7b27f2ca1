//! Which namespaces' Pods are told: those of the command line, or those that a ConfigMap names, followed live.
//!
//! All namespaces are only ever told where somebody has said so, with `*`. A ConfigMap that isn't there, or can't be used, says
//! nothing: then nothing is told, or what was told before goes on.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::Api;
use outrigger_core::ids::is_dns_label;
use outrigger_runtime::cache::{Change, Feed};
use outrigger_runtime::events::Events;
use outrigger_runtime::ready::{Readiness, ReadyHandle, Warning};
use outrigger_runtime::watch::Watch;
use serde::Deserialize;
use tokio::sync::watch;
use tracing::warn;

use crate::context::Context;

/// The ConfigMap that names them.
pub const CONFIG_MAP: &str = "workload-plugin-config";
/// Its key.
const KEY: &str = "config";
/// Stands for all namespaces.
const ALL: &str = "*";
/// Most namespaces. Each has a watch of its own.
pub const MOST: usize = 256;
/// Most bytes of what is under the key: more than that many names take.
const MAX_TEXT: usize = 64 << 10;
/// Most characters of a name that are shown.
const SHOWN: usize = 80;

/// The namespaces whose Pods are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All that there are.
    All,
    /// These, and at least one.
    Only(BTreeSet<String>),
}

impl Scope {
    /// What somebody has written down.
    ///
    /// # Errors
    /// When a name is none, there are too many, or there is none at all.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut only = BTreeSet::new();
        let mut all = false;
        for name in names {
            if name == ALL {
                all = true;
            } else if name.len() > 63 || !is_dns_label(name) {
                let shown: String = name.chars().take(SHOWN).collect();
                return Err(format!(
                    "{shown:?} is no namespace's name; use a DNS label, or \"*\" for all namespaces"
                ));
            } else {
                only.insert(name.to_owned());
            }
            if only.len() > MOST {
                return Err(format!("more than {MOST} namespaces; name fewer, or \"*\" for all"));
            }
        }
        match (all, only.is_empty()) {
            (true, true) => Ok(Self::All),
            (true, false) => {
                Err("\"*\" is all namespaces; leave the other names out, or the \"*\"".to_owned())
            }
            (false, true) => Err("no namespaces are named; name them, or write \"*\" for all".to_owned()),
            (false, false) => Ok(Self::Only(only)),
        }
    }

    /// One entry for each watch: a namespace, or `None` for all.
    pub(crate) fn watches(&self) -> BTreeSet<Option<String>> {
        match self {
            Self::All => BTreeSet::from([None]),
            Self::Only(names) => names.iter().cloned().map(Some).collect(),
        }
    }
}

/// What the ConfigMap says.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    namespaces: Option<Vec<String>>,
}

/// The namespaces out of a ConfigMap.
///
/// # Errors
/// When what is under its key is no configuration, or doesn't say which namespaces.
fn read(map: &ConfigMap) -> Result<Scope, String> {
    let wrong = |error: String| format!("data.{KEY}: {error}");
    let text = map.data.as_ref().and_then(|data| data.get(KEY)).map_or("", String::as_str);
    if text.len() > MAX_TEXT {
        return Err(wrong(format!("has {} bytes, at most {MAX_TEXT} are read", text.len())));
    }
    let config = if text.trim().is_empty() {
        Config::default()
    } else {
        serde_yaml::from_str(text).map_err(|error| wrong(error.to_string()))?
    };
    Scope::new(config.namespaces.iter().flatten().map(String::as_str))
        .map_err(|error| wrong(format!("namespaces: {error}")))
}

/// Follows the ConfigMap of a namespace. What it says comes out of the channel: `None` as long as it has never said anything that
/// can be used. What can't be used leaves the last that could; Events, the log and readiness say so.
pub async fn configured(
    context: Arc<Context>,
    namespace: String,
    ready: ReadyHandle,
    warning: Warning,
    tell: watch::Sender<Option<Scope>>,
) {
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &namespace);
    let watch = Watch::of(maps, CONFIG_MAP).fields(&format!("metadata.name={CONFIG_MAP}"));
    let watch = watch.environment(&context.environment);
    // `None` before the first list; then what the ConfigMap says, or why it says nothing.
    let (seen, mut look) = watch::channel(None::<Result<Scope, String>>);
    let seen = Arc::new(seen);
    let missing = format!("there is no ConfigMap {namespace}/{CONFIG_MAP}; make it, or set --namespace");
    let feed = {
        let (seen, missing) = (seen.clone(), missing.clone());
        Feed::new(move |change: Change<ConfigMap>| {
            seen.send_replace(Some(match change {
                Change::Applied(map) => read(&map),
                Change::Gone { .. } => Err(missing.clone()),
            }));
        })
    };
    let listed = Readiness::default();
    let handle = listed.wait_for("config");
    let telling = async {
        let mut ready = Some(ready);
        let mut trouble = Trouble { namespace: &namespace, warning, events: context.events.clone() };
        while look.changed().await.is_ok() {
            let now = look.borrow_and_update().clone();
            let Some(now) = now else { continue };
            let known = tell.borrow().is_some();
            trouble.tell(now.as_ref().err(), known).await;
            if let Ok(scope) = now {
                tell.send_if_modified(|told| told.replace(scope) != *told);
                if let Some(ready) = ready.take() {
                    ready.done();
                }
            }
        }
    };
    let first = async {
        listed.done().await;
        // It has shown nothing: there is none.
        seen.send_if_modified(|seen| seen.is_none() && seen.replace(Err(missing)).is_none());
    };
    tokio::join!(watch.follow(handle, feed.sink()), first, telling);
}

/// Says what is wrong with the ConfigMap.
struct Trouble<'a> {
    namespace: &'a str,
    warning: Warning,
    events: Arc<Events>,
}

impl Trouble<'_> {
    async fn tell(&mut self, error: Option<&String>, known: bool) {
        let text = error.map(|error| {
            let follows = if known {
                "the last that could be used stays"
            } else {
                "nothing is told of any Pod until then"
            };
            format!("{error}; {follows}")
        });
        if !self.warning.set(text.clone()) {
            return;
        }
        let Some(text) = text else { return };
        warn!(config_map = CONFIG_MAP, error = text, "which namespaces' Pods are told isn't said");
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("ConfigMap".to_owned()),
            namespace: Some(self.namespace.to_owned()),
            name: Some(CONFIG_MAP.to_owned()),
            ..ObjectReference::default()
        };
        self.events.publish(true, "NamespacesUnknown", "ReadConfig", &text, &about).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn only(names: &[&str]) -> Result<Scope, String> {
        Ok(Scope::Only(names.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn what_the_config_map_says() {
        let say = |text: Option<&str>| {
            let data = text.map(|text| BTreeMap::from([(KEY.to_owned(), text.to_owned())]));
            read(&ConfigMap { data, ..ConfigMap::default() })
        };
        assert_eq!(say(Some("namespaces: [b, a, b]")), only(&["a", "b"]));
        assert_eq!(say(Some("namespaces: ['*']")), Ok(Scope::All));
        for (text, expected) in [
            (None, "data.config: namespaces: no namespaces are named"),
            (Some(""), "data.config: namespaces: no namespaces are named"),
            (Some("namespaces:"), "data.config: namespaces: no namespaces are named"),
            (Some("namespaces: []"), "data.config: namespaces: no namespaces are named"),
            (Some("namespaces: ['']"), "data.config: namespaces: \"\" is no namespace's name"),
            (Some("namespaces: [a/b]"), "data.config: namespaces: \"a/b\" is no namespace's name"),
            (Some("namespaces: [a, '*']"), "data.config: namespaces: \"*\" is all namespaces; leave"),
            (Some("namespaces: {}"), "data.config: "),
            // A typo is not all namespaces.
            (Some("namespace: [a]"), "data.config: "),
            (Some(&format!("namespaces: [{}]", "a".repeat(MAX_TEXT))), "data.config: has 65550 bytes"),
        ] {
            let error = say(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn there_are_only_so_many() {
        let names: Vec<String> = (0..=MOST).map(|i| format!("n{i}")).collect();
        let scope = |count: usize| Scope::new(names.iter().take(count).map(String::as_str));
        assert!(scope(MOST).is_ok());
        assert!(scope(MOST + 1).unwrap_err().starts_with("more than 256 namespaces"));
        assert!(Scope::new(["a".repeat(64).as_str()]).is_err());
    }
}
