//! Ledgers as ConfigMaps.

use std::collections::BTreeMap;
use std::fmt::Display;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use outrigger_core::keys;

use super::answered;

/// The key of the ledger's text in a ConfigMap.
const KEY: &str = "ledger";

#[derive(Debug)]
pub(super) struct LedgerStore {
    api: Api<ConfigMap>,
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
        Self { api: Api::namespaced(client, namespace), namespace: namespace.to_owned() }
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

    /// Writes a ledger, and returns its new state; `None` where another replica has written since it was read.
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
        object.metadata.owner_references = owner.map(|owner| vec![owner]);
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
            Ok(object) => Ok(Some(LedgerSnapshot { object })),
            Err((Some(409), _)) => Ok(None),
            Err((Some(404), _)) if exists => Ok(None),
            Err((_, why)) => Err(self.wrong(&name, why)),
        }
    }
}
