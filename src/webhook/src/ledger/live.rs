//! Guests and Machines as the API server lists them. The cache may be stale for any time, and neither a slot nor a group or a node may
//! be given away for that. The lists name no resourceVersion, so they have what was created before they were asked for.

use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};
use outrigger_admission::caches::{Caches, holds_slot};
use outrigger_admission::machines::claimed;
use outrigger_api::Machine;
use outrigger_core::groups::Claim;
use outrigger_core::keys;
use outrigger_core::map::HashSet;
use outrigger_runtime::pod::Pod;
use outrigger_runtime::watch;

use super::answered;

/// A namespace, of which only the name matters.
type Labelled = PartialObjectMeta<Namespace>;

#[derive(Debug)]
pub(super) struct Live {
    pods: Api<Pod>,
    namespaces: Api<Labelled>,
    machines: Api<Machine>,
}

impl Live {
    pub(super) fn new(client: Client) -> Self {
        Self {
            pods: Api::all(client.clone()),
            namespaces: Api::all(client.clone()),
            machines: Api::all(client),
        }
    }

    /// What each Machine has, whether or not the rest of it is valid.
    pub(super) async fn machines(&self) -> Result<Vec<Claim>, String> {
        let mut machines = Vec::new();
        let list = watch::list(&self.machines, ListParams::default(), |machine: Machine| {
            machines.push(claimed(&machine, None));
        });
        answered(list).await.map_err(|(_, why)| format!("Machines can't be listed: {why}"))?;
        Ok(machines)
    }

    /// Namespace and name of each guest of a type with a slot, joined by a slash.
    pub(super) async fn guests(
        &self,
        group: &str,
        type_: &str,
        caches: &Caches,
    ) -> Result<HashSet<String>, String> {
        let asked = async {
            let guests = self.labelled_guests(group, type_).await?;
            // Other replicas admit guests in namespaces whose label this replica's cache doesn't show yet.
            let labelled = if guests.iter().all(|(namespace, _)| caches.is_injected(namespace)) {
                HashSet::default()
            } else {
                self.labelled_namespaces().await?
            };
            let counts = |namespace: &str| caches.is_injected(namespace) || labelled.contains(namespace);
            let live = guests.into_iter().filter(|(namespace, _)| counts(namespace));
            Ok(live.map(|(namespace, name)| format!("{namespace}/{name}")).collect())
        };
        answered(asked).await.map_err(|(_, why)| format!("its guests can't be listed: {why}"))
    }

    /// Namespace and name of guests that have a slot wherever guests get some.
    async fn labelled_guests(&self, group: &str, type_: &str) -> Result<Vec<(String, String)>, kube::Error> {
        let selector = format!(
            "{}={group},{}={type_},{}={}",
            keys::MACHINE_GROUP,
            keys::MACHINE_TYPE,
            keys::POD_ROLE,
            keys::GUEST
        );
        let mut guests = Vec::new();
        watch::list(&self.pods, ListParams::default().labels(&selector), |pod: Pod| {
            if holds_slot(&pod) {
                guests.push((pod.namespace().unwrap_or_default(), pod.name_any()));
            }
        })
        .await?;
        Ok(guests)
    }

    /// Namespaces whose guests get slots.
    async fn labelled_namespaces(&self) -> Result<HashSet<String>, kube::Error> {
        let selector = format!("{}={}", keys::INJECT_RESOURCE, keys::INJECT_ENABLED);
        let mut names = HashSet::default();
        watch::list(&self.namespaces, ListParams::default().labels(&selector), |namespace: Labelled| {
            names.insert(namespace.name_any());
        })
        .await?;
        Ok(names)
    }
}
