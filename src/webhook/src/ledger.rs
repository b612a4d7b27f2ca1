//! What replicas of the webhook have to agree on before they admit: the slots of guests, and which Machine has which group
//! and nodes. Each is an object in the cluster that is written in the version it was read in, so of two writers one begins
//! anew.
//!
//! Only guests and Machines come here; nobody else waits for the API server.

mod census;
mod claims;
mod slots;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use outrigger_core::keys;
use outrigger_core::slots::Sightings;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use crate::caches::Caches;

pub use claims::NoClaim;

/// Where the ledger's text is in a ConfigMap.
const KEY: &str = "ledger";

/// How long one call of the API server may take.
const CALL: Duration = Duration::from_secs(3);

/// How long all of it may take. With the wait for caches before it (2 s) it stays below the configuration's timeoutSeconds
/// (10), so that the refusal is ours and says why.
const DEADLINE: Duration = Duration::from_secs(6);

/// How often somebody begins anew because another has written. Each time one of them gets on, and there are as many as
/// replicas.
const TRIES: usize = 64;

/// The ledgers of a cluster.
#[derive(Debug)]
pub struct Ledgers {
    store: Store,
    census: census::Census,
    caches: Arc<Caches>,
    queues: Mutex<slots::Queues>,
    /// What has been seen of each ledger, by its name.
    sightings: Mutex<HashMap<String, Sightings>>,
    /// Ledgers that are tidied in a while.
    tidying: Mutex<HashSet<String>>,
    /// What sightings are counted from.
    began: Instant,
}

impl Ledgers {
    /// Ledgers in a namespace of the client's cluster.
    pub fn new(client: Client, namespace: String, caches: Arc<Caches>) -> Arc<Self> {
        let store = Store { api: Api::namespaced(client.clone(), &namespace), namespace };
        Arc::new(Self {
            store,
            census: census::Census::new(client),
            caches,
            queues: Mutex::default(),
            sightings: Mutex::default(),
            tidying: Mutex::default(),
            began: Instant::now(),
        })
    }

    /// Seconds since this began, by a clock that only goes forward.
    fn elapsed(&self) -> u64 {
        self.began.elapsed().as_secs()
    }

    /// Takes in what a ledger has now, and tells what of it was seen for how long. One that has nothing is forgotten.
    fn saw(&self, name: &str, entries: impl Iterator<Item = String>) -> Sightings {
        let (mut all, now) = (self.sightings.lock(), self.elapsed());
        let mut entries = entries.peekable();
        if entries.peek().is_none() {
            all.remove(name);
            return Sightings::default();
        }
        let sightings = all.entry(name.to_owned()).or_default();
        sightings.saw(entries, now);
        sightings.clone()
    }
}

/// Seconds since 1970. What is written so is for people: nobody compares it with another clock.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The API server's own words, or what kept it from having any.
fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

#[derive(Debug)]
struct Store {
    api: Api<ConfigMap>,
    namespace: String,
}

/// A ledger's object as it was read.
#[derive(Debug)]
struct Page {
    object: ConfigMap,
}

impl Page {
    fn text(&self) -> &str {
        self.object.data.as_ref().and_then(|data| data.get(KEY)).map_or("", String::as_str)
    }
}

impl Store {
    /// In whose words something failed.
    fn wrong(&self, name: &str, why: impl std::fmt::Display) -> String {
        format!("ConfigMap {}/{name}: {why}", self.namespace)
    }

    /// Reads a ledger; one that isn't there is empty.
    async fn open(&self, name: &str) -> Result<Page, String> {
        let object = match timeout(CALL, self.api.get_opt(name)).await {
            Ok(Ok(object)) => object,
            Ok(Err(error)) => return Err(self.wrong(name, words(&error))),
            Err(_) => return Err(self.wrong(name, "the API server doesn't answer")),
        };
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        Ok(Page { object: object.unwrap_or(ConfigMap { metadata, ..ConfigMap::default() }) })
    }

    /// Writes a ledger, and returns it as it is then; nothing where another has written since it was read.
    async fn save(
        &self,
        page: Page,
        text: String,
        labels: BTreeMap<String, String>,
        owner: Option<OwnerReference>,
    ) -> Result<Option<Page>, String> {
        let mut object = page.object;
        let name = object.metadata.name.clone().unwrap_or_default();
        object.data = Some(BTreeMap::from([(KEY.to_owned(), text)]));
        object.metadata.managed_fields = None;
        object.metadata.labels.get_or_insert_default().extend(labels);
        object.metadata.owner_references = owner.map(|owner| vec![owner]);
        let params = PostParams { field_manager: Some(keys::WEBHOOK.to_owned()), ..PostParams::default() };
        let written = async {
            if object.metadata.resource_version.is_none() {
                self.api.create(&params, &object).await
            } else {
                self.api.replace(&name, &params, &object).await
            }
        };
        let exists = object.metadata.resource_version.is_some();
        match timeout(CALL, written).await {
            Ok(Ok(object)) => Ok(Some(Page { object })),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 || (status.code == 404 && exists) => {
                Ok(None)
            }
            Ok(Err(error)) => Err(self.wrong(&name, words(&error))),
            Err(_) => Err(self.wrong(&name, "the API server doesn't answer")),
        }
    }
}

#[cfg(test)]
mod tests;
