//! Ledgers as ConfigMaps.

use std::collections::BTreeMap;
use std::fmt::Display;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use outrigger_api::Machine;
use outrigger_core::keys;
use outrigger_core::map::HashMap;
use outrigger_runtime::calls::found;
use parking_lot::Mutex;

use super::answered;

/// The key of the ledger's text in a ConfigMap.
const KEY: &str = "ledger";

#[derive(Debug)]
pub(super) struct LedgerStore {
    api: Api<ConfigMap>,
    machines: Api<Machine>,
    namespace: String,
    /// The ledgers, by name, of which this replica has seen that their Machine lived after it had written them: uids of both.
    verified: Mutex<HashMap<String, (String, String)>>,
}

/// A ledger's object as it was read.
#[derive(Debug)]
pub(super) struct LedgerSnapshot {
    object: ConfigMap,
}

impl LedgerSnapshot {
    pub(super) fn text(&self) -> &str {
        self.object.data.as_ref().and_then(|data| data.get(KEY)).map_or("", String::as_str)
    }
}

impl LedgerStore {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client.clone(), namespace),
            machines: Api::all(client),
            namespace: namespace.to_owned(),
            verified: Mutex::default(),
        }
    }

    /// The message of a failure: it names the ledger's object.
    pub(super) fn wrong(&self, name: &str, why: impl Display) -> String {
        format!("ConfigMap {}/{name}: {why}", self.namespace)
    }

    /// Reads a ledger; a missing object is an empty ledger.
    pub(super) async fn read(&self, name: &str) -> Result<LedgerSnapshot, String> {
        let object = answered(self.api.get_opt(name)).await.map_err(|(_, why)| self.wrong(name, why))?;
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        Ok(LedgerSnapshot { object: object.unwrap_or(ConfigMap { metadata, ..ConfigMap::default() }) })
    }

    /// Writes a ledger, and returns its new state; `None` where another replica has written since it was read. Without an owner the ledger
    /// keeps the one that it has. Fails where the owner is a Machine that is deleted.
    ///
    /// The garbage collector may have removed an earlier ledger of such a Machine with its grants, for guests that aren't visible yet, and a
    /// replica's cache may show the Machine for a while. A ledger whose Machine lives after it was written has no such predecessor.
    pub(super) async fn write(
        &self,
        snapshot: LedgerSnapshot,
        text: String,
        labels: BTreeMap<String, String>,
        owner: Option<OwnerReference>,
    ) -> Result<Option<LedgerSnapshot>, String> {
        let mut object = snapshot.object;
        let name = object.metadata.name.clone().unwrap_or_default();
        let exists = object.metadata.resource_version.is_some();
        if let Some(owner) = &owner {
            let owners = object.metadata.owner_references.iter().flatten();
            if exists && !owners.map(|owner| &owner.uid).eq([&owner.uid]) {
                // With a reference to a Machine that is gone the ledger would be collected, and the grants of others with it.
                self.check_owner(owner).await?;
            }
            object.metadata.owner_references = Some(vec![owner.clone()]);
        }
        object.data = Some(BTreeMap::from([(KEY.to_owned(), text)]));
        object.metadata.managed_fields = None;
        object.metadata.labels.get_or_insert_default().extend(labels);
        let params = PostParams { field_manager: Some(keys::WEBHOOK.to_owned()), ..PostParams::default() };
        let written = async {
            if exists {
                self.api.replace(&name, &params, &object).await
            } else {
                self.api.create(&params, &object).await
            }
        };
        let object = match answered(written).await {
            Ok(object) => object,
            Err((Some(409), _)) => return Ok(None),
            Err((Some(404), _)) if exists => return Ok(None),
            Err((_, why)) => return Err(self.wrong(&name, why)),
        };
        if let Some(owner) = owner {
            let pair = (object.metadata.uid.clone().unwrap_or_default(), owner.uid.clone());
            if self.verified.lock().get(&name) != Some(&pair) {
                self.check_owner(&owner).await?;
                self.verified.lock().insert(name, pair);
            }
        }
        Ok(Some(LedgerSnapshot { object }))
    }

    /// A ledger is empty: nothing is lost with it.
    pub(super) fn forget(&self, name: &str) {
        self.verified.lock().remove(name);
    }

    /// Fails unless a Machine exists and isn't being deleted.
    async fn check_owner(&self, owner: &OwnerReference) -> Result<(), String> {
        let name = &owner.name;
        let read = answered(async { found(self.machines.get_metadata(name).await) }).await;
        let machine = read.map_err(|(_, why)| format!("Machine {name} can't be read: {why}"))?;
        let same = machine.filter(|machine| machine.uid().as_ref() == Some(&owner.uid));
        match same.map(|machine| machine.metadata.deletion_timestamp) {
            Some(None) => Ok(()),
            Some(Some(_)) => Err(format!("Machine {name} is being deleted")),
            None => Err(format!("Machine {name} is deleted")),
        }
    }
}
