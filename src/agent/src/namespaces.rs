//! Which namespaces' Pods are told: those of the command line, or those that a ConfigMap names, followed live.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use outrigger_runtime::cache::{Change, Feed};
use outrigger_runtime::pod::Pod;
use outrigger_runtime::ready::{Readiness, ReadyHandle};
use outrigger_runtime::watch::{follow, watch_config};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::store::Store;

/// The ConfigMap that names them.
pub const CONFIG_MAP: &str = "workload-plugin-config";
/// Its key.
const KEY: &str = "config";

/// What the ConfigMap says.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    namespaces: Option<Vec<String>>,
}

/// The namespaces out of a ConfigMap; empty for all.
///
/// # Errors
/// When what is under its key is no configuration.
fn read(map: &ConfigMap) -> Result<BTreeSet<String>, String> {
    let text = map.data.as_ref().and_then(|data| data.get(KEY)).map_or("", String::as_str);
    if text.trim().is_empty() {
        return Ok(BTreeSet::new());
    }
    let config: Config = serde_yaml::from_str(text).map_err(|e| format!("data.{KEY}: {e}"))?;
    Ok(config.namespaces.unwrap_or_default().into_iter().collect())
}

/// Follows the ConfigMap of a namespace. What it says comes out of the channel; `None` before the first look. What can't be
/// read leaves the last that could.
pub async fn configured(
    client: Client,
    namespace: String,
    ready: ReadyHandle,
    tell: watch::Sender<Option<BTreeSet<String>>>,
) {
    let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let config = watch_config().fields(&format!("metadata.name={CONFIG_MAP}"));
    let told = Arc::new(tell);
    let feed = {
        let told = told.clone();
        Feed::new(move |change: Change<ConfigMap>| match change {
            Change::Applied(map) => match read(&map) {
                Ok(namespaces) => _ = told.send_replace(Some(namespaces)),
                Err(error) => {
                    warn!(config_map = CONFIG_MAP, %error, "it can't be used; the last that could stays");
                }
            },
            Change::Gone { .. } => _ = told.send_replace(Some(BTreeSet::new())),
        })
    };
    let listed = Readiness::default();
    let handle = listed.wait_for("config");
    tokio::join!(follow(maps, config, "workload-plugin-config", handle, feed.sink()), async {
        listed.done().await;
        // There is none: all namespaces.
        told.send_if_modified(|now| now.is_none() && now.replace(BTreeSet::new()).is_none());
        ready.done();
    });
}

/// Keeps one watch of Pods for each namespace that is wanted, or one for all.
pub async fn pods(
    client: Client,
    store: Arc<Store>,
    mut wanted: watch::Receiver<Option<BTreeSet<String>>>,
    ready: ReadyHandle,
) {
    let mut ready = Some(ready);
    let mut watches: BTreeMap<Option<String>, (CancellationToken, JoinHandle<()>)> = BTreeMap::new();
    loop {
        let now = wanted.borrow_and_update().clone();
        if let Some(now) = now {
            let names: BTreeSet<Option<String>> =
                if now.is_empty() { BTreeSet::from([None]) } else { now.iter().cloned().map(Some).collect() };
            for (token, task) in
                watches.extract_if(.., |name, _| !names.contains(name)).map(|(_, watch)| watch)
            {
                token.cancel();
                // Its last event must not come after what it told is forgotten.
                let _ = task.await;
            }
            if !now.is_empty() {
                store.keep_namespaces(&now);
            }
            let listed = Readiness::default();
            for name in names {
                watches.entry(name.clone()).or_insert_with(|| start(&client, &store, name, &listed));
            }
            info!(namespaces = ?now, "Pods of these namespaces are told (none: of all)");
            if let Some(ready) = ready.take() {
                listed.done().await;
                ready.done();
            }
        }
        if wanted.changed().await.is_err() {
            // Nobody changes them any more: they are those of the command line.
            std::future::pending::<()>().await;
        }
    }
}

fn start(
    client: &Client,
    store: &Arc<Store>,
    name: Option<String>,
    listed: &Readiness,
) -> (CancellationToken, JoinHandle<()>) {
    let api: Api<Pod> = match &name {
        Some(name) => Api::namespaced(client.clone(), name),
        None => Api::all(client.clone()),
    };
    let token = CancellationToken::new();
    let watching = follow(api, watch_config(), "pods", listed.wait_for("pods"), store.pods(name));
    let end = token.clone();
    let task = tokio::spawn(async move {
        tokio::select! {
            () = watching => {}
            () = end.cancelled() => {}
        }
    });
    (token, task)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_config_map_says() {
        let say = |text: Option<&str>| {
            let data = text.map(|text| BTreeMap::from([(KEY.to_owned(), text.to_owned())]));
            read(&ConfigMap { data, ..ConfigMap::default() })
        };
        let set = |names: &[&str]| Ok(names.iter().map(ToString::to_string).collect());
        assert_eq!(say(None), set(&[]));
        assert_eq!(say(Some("")), set(&[]));
        assert_eq!(say(Some("namespaces:")), set(&[]));
        assert_eq!(say(Some("namespaces: []")), set(&[]));
        assert_eq!(say(Some("namespaces: [b, a, b]")), set(&["a", "b"]));
        assert!(say(Some("namespaces: {}")).unwrap_err().starts_with("data.config: "));
        assert!(say(Some("namespace: [a]")).is_err(), "a typo is not all namespaces");
    }
}
