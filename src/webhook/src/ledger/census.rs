//! The guests that there are, asked of the API server itself. A watch may be behind for as long as it likes; nobody gets a
//! slot for that.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};
use outrigger_core::keys;
use outrigger_runtime::pod::Pod;
use outrigger_runtime::watch;
use tokio::time::timeout;

use super::{CALL, words};
use crate::caches::{Caches, has_ended};

/// A namespace, of which only the name matters.
type Labelled = PartialObjectMeta<Namespace>;

#[derive(Debug)]
pub(super) struct Census {
    pods: Api<Pod>,
    namespaces: Api<Labelled>,
}

impl Census {
    pub(super) fn new(client: Client) -> Self {
        Self { pods: Api::all(client.clone()), namespaces: Api::all(client) }
    }

    /// Namespace and name of each guest of a type that has a slot, with a slash between. Every Pod is shown that was created
    /// before this was called: the lists name no resourceVersion.
    ///
    /// # Errors
    /// What keeps the API server from telling.
    pub(super) async fn live(
        &self,
        group: &str,
        type_: &str,
        caches: &Caches,
    ) -> Result<HashSet<String>, String> {
        let asked = async {
            let guests = self.guests(group, type_).await?;
            // A namespace whose label the own watch hasn't seen yet has guests of other replicas.
            let labelled = if guests.iter().all(|(namespace, _)| caches.is_injected(namespace)) {
                HashSet::new()
            } else {
                self.labelled().await?
            };
            let counts = |namespace: &str| caches.is_injected(namespace) || labelled.contains(namespace);
            let live = guests.into_iter().filter(|(namespace, _)| counts(namespace));
            Ok(live.map(|(namespace, name)| format!("{namespace}/{name}")).collect())
        };
        match timeout(CALL, asked).await {
            Ok(Ok(live)) => Ok(live),
            Ok(Err(error)) => Err(format!("its guests can't be listed: {}", words(&error))),
            Err(_) => Err("its guests can't be listed: the API server doesn't answer".to_owned()),
        }
    }

    /// Namespace and name of those that have not ended.
    async fn guests(&self, group: &str, type_: &str) -> Result<Vec<(String, String)>, kube::Error> {
        let selector = format!(
            "{}={group},{}={type_},{}={}",
            keys::MACHINE_GROUP,
            keys::MACHINE_TYPE,
            keys::POD_ROLE,
            keys::GUEST
        );
        let mut guests = Vec::new();
        watch::list(&self.pods, ListParams::default().labels(&selector), |pod: Pod| {
            if !has_ended(&pod) {
                guests.push((pod.namespace().unwrap_or_default(), pod.name_any()));
            }
        })
        .await?;
        Ok(guests)
    }

    /// Namespaces whose guests get slots.
    async fn labelled(&self) -> Result<HashSet<String>, kube::Error> {
        let selector = format!("{}={}", keys::INJECT_RESOURCE, keys::INJECT_ENABLED);
        let mut names = HashSet::new();
        watch::list(&self.namespaces, ListParams::default().labels(&selector), |namespace: Labelled| {
            names.insert(namespace.name_any());
        })
        .await?;
        Ok(names)
    }
}
