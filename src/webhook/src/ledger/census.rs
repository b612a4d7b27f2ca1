//! The guests that there are, asked of the API server itself. A watch may be behind for as long as it likes; nobody gets a
//! slot for that.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use outrigger_core::keys;
use tokio::time::timeout;

use super::{CALL, words};
use crate::caches::{Caches, has_ended};

/// How many objects come at once.
const PAGE: u32 = 500;

#[derive(Debug)]
pub(super) struct Census {
    pods: Api<Pod>,
    namespaces: Api<Namespace>,
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
        let mut params = ListParams::default().labels(&selector).limit(PAGE);
        let mut guests = Vec::new();
        loop {
            let page = self.pods.list(&params).await?;
            let live = page.items.iter().filter(|pod| !has_ended(pod));
            guests.extend(live.map(|pod| (pod.namespace().unwrap_or_default(), pod.name_any())));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(guests),
            }
        }
    }

    /// Namespaces whose guests get slots.
    async fn labelled(&self) -> Result<HashSet<String>, kube::Error> {
        let selector = format!("{}={}", keys::INJECT_RESOURCE, keys::INJECT_ENABLED);
        let mut params = ListParams::default().labels(&selector).limit(PAGE);
        let mut names = HashSet::new();
        loop {
            let page = self.namespaces.list_metadata(&params).await?;
            names.extend(page.items.iter().map(ResourceExt::name_any));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(names),
            }
        }
    }
}
