//! Every change that an API server makes to some kinds of objects, in the order in which they were made.
//!
//! The two clusters of the tests share one etcd, so the resourceVersions of all their objects are revisions of one store: changes
//! of different kinds, and of different clusters, have one order. What must hold at every moment is checked on that order
//! afterwards ([`crate::invariants`]).

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt;
use kube::api::{Api, DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::{InWords, eventually};

/// Which cluster an object is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The infrastructure cluster, whose Nodes are DPUs.
    Infra,
    /// The tenant cluster, whose Nodes are hosts.
    Tenant,
}

/// One change of one object.
#[derive(Debug, Clone)]
pub struct Change {
    /// The revision at which it was made.
    pub revision: u64,
    /// Its cluster.
    pub side: Side,
    /// Its kind.
    pub kind: String,
    /// The object afterwards, or the last of it.
    pub object: Value,
    /// Whether it is gone now.
    pub gone: bool,
}

/// A kind as the API server names it.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Its group; empty for the core group.
    pub group: &'static str,
    /// Its version.
    pub version: &'static str,
    /// Its name.
    pub kind: &'static str,
    /// The plural of it in paths.
    pub plural: &'static str,
}

/// A kind by its group, its version, its name and its plural.
pub const fn kind(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
) -> Kind {
    Kind { group, version, kind, plural }
}

impl Kind {
    fn resource(&self) -> ApiResource {
        let kind = GroupVersionKind::gvk(self.group, self.version, self.kind);
        ApiResource::from_gvk_with_plural(&kind, self.plural)
    }

    /// All objects of the kind.
    pub fn all(&self, client: &Client) -> Api<DynamicObject> {
        Api::all_with(client.clone(), &self.resource())
    }

    /// The objects of the kind in a namespace, or those of a kind without namespaces for an empty name.
    pub fn of(&self, client: &Client, namespace: &str) -> Api<DynamicObject> {
        if namespace.is_empty() {
            return self.all(client);
        }
        Api::namespaced_with(client.clone(), namespace, &self.resource())
    }

    /// All objects of the kind that there are now, without their managed fields.
    pub async fn list(&self, client: &Client) -> Result<Vec<Value>, String> {
        let list = self.all(client).list(&ListParams::default()).await.in_words()?;
        Ok(list.items.into_iter().map(|object| self.value(object)).collect())
    }

    fn value(&self, mut object: DynamicObject) -> Value {
        object.metadata.managed_fields = None;
        let mut value = serde_json::to_value(object).expect("an object is JSON");
        value["kind"] = self.kind.into();
        value
    }
}

/// The revision of the store now.
pub async fn revision(client: &Client) -> Result<u64, String> {
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    let list = namespaces.list_metadata(&ListParams::default().limit(1)).await.in_words()?;
    number(list.metadata.resource_version.as_deref()).ok_or_else(|| "no resourceVersion".to_owned())
}

/// The number that a resourceVersion is; `None` if there is none or it isn't one.
pub fn number(version: Option<&str>) -> Option<u64> {
    version?.parse().ok()
}

/// What is recorded so far.
#[derive(Debug, Default)]
struct Recorded {
    changes: Vec<Change>,
    /// Why changes may be missing.
    gap: Option<String>,
}

/// A recording that goes on until it is dropped.
pub struct History {
    recorded: Arc<Mutex<Recorded>>,
    followed: Vec<(Side, Client, Kind)>,
    /// Ends with this.
    _tasks: JoinSet<()>,
}

impl History {
    /// Begins to record these kinds: first what there is, then each change.
    pub async fn follow(followed: Vec<(Side, Client, Kind)>) -> Result<Self, String> {
        let recorded = Arc::new(Mutex::new(Recorded::default()));
        let mut tasks = JoinSet::new();
        for (side, client, kind) in &followed {
            let api = kind.all(client);
            let list = api.list(&ListParams::default()).await.in_words()?;
            let version = list.metadata.resource_version.clone().unwrap_or_default();
            for object in list.items {
                record(&recorded, *side, kind, object, false);
            }
            tasks.spawn(watch(api, version, *side, *kind, recorded.clone()));
        }
        Ok(Self { recorded, followed, _tasks: tasks })
    }

    /// All changes until now, in the order in which they were made.
    pub async fn changes(&self) -> Result<Vec<Change>, String> {
        for (side, client, kind) in &self.followed {
            self.caught_up(*side, client, kind).await;
        }
        let recorded = self.recorded.lock();
        if let Some(gap) = &recorded.gap {
            return Err(format!("changes may be missing: {gap}"));
        }
        let mut changes = recorded.changes.clone();
        changes.sort_by_key(|change| change.revision);
        Ok(changes)
    }

    /// Waits until the watch has shown what a list shows.
    async fn caught_up(&self, side: Side, client: &Client, kind: &Kind) {
        eventually(&format!("the watch of {} catches up", kind.plural), || async {
            let listed = kind.list(client).await?;
            let recorded = self.recorded.lock();
            let mut shown: BTreeMap<&str, u64> = BTreeMap::new();
            for change in recorded.changes.iter().filter(|c| c.side == side && c.kind == kind.kind) {
                let uid = change.object["metadata"]["uid"].as_str().unwrap_or_default();
                if change.gone {
                    shown.remove(uid);
                } else {
                    shown.insert(uid, change.revision);
                }
            }
            if recorded.gap.is_none() && shown.len() > listed.len() {
                return Err(format!("{} are shown, {} are there", shown.len(), listed.len()));
            }
            for object in &listed {
                let version = number(object["metadata"]["resourceVersion"].as_str()).unwrap_or_default();
                let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
                if recorded.gap.is_none() && shown.get(uid).is_none_or(|revision| *revision < version) {
                    return Err(format!("{} isn't shown", object["metadata"]["name"]));
                }
            }
            Ok(())
        })
        .await;
    }
}

fn record(recorded: &Mutex<Recorded>, side: Side, kind: &Kind, object: DynamicObject, gone: bool) {
    let revision = number(object.resource_version().as_deref()).unwrap_or_default();
    let change = Change { revision, side, kind: kind.kind.to_owned(), object: kind.value(object), gone };
    recorded.lock().changes.push(change);
}

/// The objects as they are after each change from a resourceVersion on, of those that these parameters choose.
pub fn modified<K>(api: Api<K>, which: WatchParams, from: String) -> Arc<Mutex<Vec<K>>>
where
    K: Clone + DeserializeOwned + Debug + Send + 'static,
{
    let kept = Arc::<Mutex<Vec<K>>>::default();
    let to = kept.clone();
    tokio::spawn(async move {
        let mut events = api.watch(&which, &from).await.expect("a watch").boxed();
        while let Some(Ok(event)) = events.next().await {
            if let WatchEvent::Modified(object) = event {
                to.lock().push(object);
            }
        }
    });
    kept
}

/// Records each change after a version, for ever.
async fn watch(
    api: Api<DynamicObject>,
    mut version: String,
    side: Side,
    kind: Kind,
    recorded: Arc<Mutex<Recorded>>,
) {
    loop {
        let mut stream = match api.watch(&WatchParams::default(), &version).await {
            Ok(stream) => stream.boxed(),
            Err(error) => {
                recorded.lock().gap = Some(format!("{}: {error}", kind.plural));
                return;
            }
        };
        while let Some(event) = stream.next().await {
            let (object, gone) = match event {
                Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => (object, false),
                Ok(WatchEvent::Deleted(object)) => (object, true),
                Ok(WatchEvent::Bookmark(bookmark)) => {
                    version = bookmark.metadata.resource_version;
                    continue;
                }
                Ok(WatchEvent::Error(status)) => {
                    recorded.lock().gap = Some(format!("{}: {}", kind.plural, status.message));
                    return;
                }
                // The connection has ended; the next one goes on from the last version.
                Err(_) => break,
            };
            version = object.resource_version().unwrap_or_default();
            record(&recorded, side, &kind, object, gone);
        }
    }
}
