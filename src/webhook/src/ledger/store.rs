//! Ledgers as ConfigMaps.

use std::collections::BTreeMap;
use std::fmt::Display;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, PostParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use outrigger_api::Machine;
use outrigger_core::keys;

use super::answered;

/// The key of the ledger's text in a ConfigMap.
const KEY: &str = "ledger";

#[derive(Debug)]
pub(super) struct LedgerStore {
    api: Api<ConfigMap>,
    machines: Api<Machine>,
    namespace: String,
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

    /// Writes a ledger, and returns its new state; `None` where another replica has written since it was read. Fails where a ledger is
    /// created for a Machine that is deleted.
    pub(super) async fn write(
        &self,
        snapshot: LedgerSnapshot,
        text: String,
        labels: BTreeMap<String, String>,
        owner: Option<OwnerReference>,
    ) -> Result<Option<LedgerSnapshot>, String> {
        let mut object = snapshot.object;
        let name = object.metadata.name.clone().unwrap_or_default();
        object.data = Some(BTreeMap::from([(KEY.to_owned(), text)]));
        object.metadata.managed_fields = None;
        object.metadata.labels.get_or_insert_default().extend(labels);
        object.metadata.owner_references = owner.clone().map(|owner| vec![owner]);
        let params = PostParams { field_manager: Some(keys::WEBHOOK.to_owned()), ..PostParams::default() };
        let exists = object.metadata.resource_version.is_some();
        let written = async {
            if exists {
                self.api.replace(&name, &params, &object).await
            } else {
                self.api.create(&params, &object).await
            }
        };
        match answered(written).await {
            Ok(object) => match owner.filter(|_| !exists) {
                Some(machine) => self.check_owner(&machine).await.map(|()| Some(LedgerSnapshot { object })),
                None => Ok(Some(LedgerSnapshot { object })),
            },
            Err((Some(409), _)) => Ok(None),
            Err((Some(404), _)) if exists => Ok(None),
            Err((_, why)) => Err(self.wrong(&name, why)),
        }
    }
    /// Fails where the Machine of a ledger that has just been created is deleted: the garbage collector may have removed an earlier ledger
    /// with its grants, for guests that aren't visible yet. A replica's cache may show such a Machine for a while.
    async fn check_owner(&self, owner: &OwnerReference) -> Result<(), String> {
        let found = answered(self.machines.get_metadata_opt(&owner.name)).await;
        let machine = found.map_err(|(_, why)| format!("Machine {} can't be read: {why}", owner.name))?;
        let lives = |machine: &PartialObjectMeta<Machine>| {
            machine.metadata.uid.as_ref() == Some(&owner.uid) && machine.metadata.deletion_timestamp.is_none()
        };
        match machine.as_ref() {
            Some(machine) if lives(machine) => Ok(()),
            _ => Err(format!("Machine {} is deleted", owner.name)),
        }
    }
}
