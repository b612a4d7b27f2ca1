//! Keeps the rows of a cluster by watches, for as long as somebody looks.
//!
//! Tenants, rules, companions and DPUs are watched with the rights of whoever looks. An open watch goes on for minutes after its user has
//! lost the right to it, so the API server is asked about rights in each interval too: whoever may no longer list a kind doesn't see it
//! any longer. The installation has few objects, which are read in each interval.

use std::fmt::Debug;
use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client, Resource, ResourceExt};
use outrigger_core::host::HostLabels;
use outrigger_core::keys;
use outrigger_runtime::environment::Clock;
use outrigger_runtime::pod::Pod;
use outrigger_runtime::ready::Readiness;
use outrigger_runtime::watch::{self, Event, Watch};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::data::{self, NodeEntry, PodEntry, TenantEntry};
use super::rights::{Right, refuses};
use super::rows::{Id, Kept, Rows};
use super::store::{Source, Store};
use crate::cluster::{Kind, of_kind, with_kind};
use crate::explain::live::is_infrastructure;
use crate::status::read::{self, ADMIN_RULE, NODE, POD, RULE, TENANT};

/// Shortest time from a change that pages show to the next one.
const PACE: Duration = Duration::from_millis(500);

/// The pause after [`data::Data`] was made, in times of what that took: a large cluster takes a fifth of a core at most.
const SHARE: u32 = 4;

/// How long pages wait for complete lists at the beginning. Then they show what there is.
const COMPLETE: Duration = Duration::from_secs(10);

/// Questions about a right in a row that the API server may leave without an answer before rows are no longer shown.
const UNKNOWN: u32 = 3;

/// What the tasks of a store share.
struct Shared {
    source: Arc<Source>,
    rows: Mutex<Rows>,
    changed: Notify,
}

/// Keeps rows, and shows them to the store until nobody looks any longer. All ends when this is dropped.
pub(super) async fn follow(store: Weak<Store>, source: Arc<Source>) {
    let (rows, changed) = (Mutex::default(), Notify::new());
    let shared = Arc::new(Shared { source, rows, changed });
    let mut tasks = JoinSet::new();
    tasks.spawn(installation(shared.clone()));
    shared.start(&mut tasks);
    let began = Clock::system().now();
    let mut is_new = false;
    loop {
        is_new |= timeout(PACE, shared.changed.notified()).await.is_ok();
        let is_late = began.elapsed() >= COMPLETE;
        let (picture, error) = {
            let rows = shared.rows.lock();
            match store.upgrade() {
                Some(store) if store.is_watched() => store.keeps(rows.len()),
                _ => return,
            }
            if !is_new || !(is_late || rows.are_reported()) {
                continue;
            }
            (rows.picture(), rows.error.clone())
        };
        let making = Clock::system().now();
        let (data, error) = match picture {
            Some(picture) => match tokio::task::spawn_blocking(|| picture.data()).await {
                Ok(data) => (Some(data), error),
                Err(failed) => (None, Some(failed.to_string())),
            },
            None if error.is_none() => continue,
            None => (None, error),
        };
        let took = making.elapsed();
        match store.upgrade() {
            Some(store) => store.show(data, error),
            None => return,
        }
        is_new = false;
        sleep(PACE.max(took * SHARE)).await;
    }
}

/// Reads the installation in each interval, and watches what only an infrastructure cluster has as soon as it is known to be one.
async fn installation(shared: Arc<Shared>) {
    let mut tasks = JoinSet::new();
    let source = shared.source.clone();
    let client = &source.clients.cluster;
    loop {
        let read = read::installation(client, source.system_namespace.as_deref(), &source.admission, None);
        let read = Box::pin(read).await;
        let is_infrastructure = shared.rows.lock().tenants.is_shown()
            || (read.is_ok() && is_infrastructure(client).await.unwrap_or_default());
        {
            let mut rows = shared.rows.lock();
            if is_infrastructure && !std::mem::replace(&mut rows.infrastructure, true) {
                shared.start_infrastructure(&mut tasks);
            }
            rows.error = read.as_ref().err().map(ToString::to_string);
            rows.installation = read.ok().or_else(|| rows.installation.take());
        }
        shared.changed.notify_one();
        sleep(source.interval).await;
    }
}

/// How a kind is read from now on.
enum Next {
    /// All objects are watched.
    All,
    /// Those of the user's own namespace are watched.
    Own(String),
    /// The same are listed, which may not be watched.
    Lists,
    /// The same are watched, which may be watched by now.
    Watch,
}

/// The objects of a namespace, or, where its name is empty, of all.
type Scope<K> = Box<dyn Fn(&str) -> Api<K> + Send + Sync>;

/// The row of an object; `None`: it isn't shown.
type RowOf<K, R> = Box<dyn Fn(&K) -> Option<R> + Send + Sync>;

/// A kind whose objects are kept.
struct Keeper<K, R> {
    resource: ApiResource,
    /// Its name in logs.
    name: &'static str,
    label: &'static str,
    /// Its objects can be read in the user's own namespace.
    has_own: bool,
    api: Scope<K>,
    row: RowOf<K, R>,
    kept: fn(&mut Rows) -> &mut Kept<R>,
}

impl Shared {
    /// Starts the watches of what each cluster may have.
    fn start(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        let client = &self.source.clients.cluster;
        let tenant = |object: &Value| Some(TenantEntry::of(object));
        tasks.spawn(self.clone().keep(few(client, TENANT, tenant, |rows| &mut rows.tenants)));
        let rule = |object: &Value| Some(data::rule(object));
        tasks.spawn(self.clone().keep(few(client, RULE, rule, |rows| &mut rows.rules)));
        tasks.spawn(self.clone().keep(few(client, ADMIN_RULE, rule, |rows| &mut rows.admin_rules)));
    }

    /// Starts the watches of what only an infrastructure cluster has.
    fn start_infrastructure(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        let (client, admission) = (self.source.clients.cluster.clone(), &self.source.admission);
        let admin = admission.admin_resources_namespace.clone();
        let nodes = node_keeper(client.clone(), admission.host_labels.clone());
        let pods = Keeper {
            resource: POD.resource(),
            name: POD.1,
            label: keys::RULE,
            has_own: true,
            api: Box::new(move |namespace| match namespace {
                "" => Api::all(client.clone()),
                namespace => Api::namespaced(client.clone(), namespace),
            }),
            row: Box::new(move |pod: &Pod| PodEntry::of(pod, &admin)),
            kept: |rows| &mut rows.pods,
        };
        tasks.spawn(self.clone().keep(pods));
        tasks.spawn(self.clone().keep(nodes));
    }

    /// Keeps the rows of a kind: of all objects, or where these may not be read, of those in the user's namespace.
    async fn keep<K, R>(self: Arc<Self>, keeper: Keeper<K, R>)
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
        R: PartialEq,
    {
        let mut namespace = None::<String>;
        loop {
            (keeper.kept)(&mut self.rows.lock()).begin(namespace.clone());
            let api = (keeper.api)(namespace.as_deref().unwrap_or_default());
            let Some(turn) = self.source.turns.read().await else { return };
            let (mut turn, refused) = (Some(turn), Notify::new());
            let mut sink = |event: Event<K>| {
                if matches!(event, Event::ListCompleted { .. } | Event::Failed(_)) {
                    turn.take();
                }
                let mut rows = self.rows.lock();
                let kept = (keeper.kept)(&mut rows);
                if matches!(&event, Event::Failed(failed) if failed.status.is_some_and(refuses)) {
                    refused.notify_one();
                    if kept.is_shown() {
                        // Perhaps they may be listed, but not watched.
                        return;
                    }
                }
                if kept.take(event, id, &keeper.row) {
                    self.changed.notify_one();
                }
            };
            let watch = Watch::of(api.clone(), keeper.name).labels(keeper.label).unlisted();
            let mut next = tokio::select! {
                () = watch.follow(Readiness::default().wait_for(keeper.name), &mut sink) => return,
                next = self.after_refusal(&keeper, &refused) => next,
                next = self.rights_change(&keeper, false) => next,
            };
            if matches!(next, Next::Lists) {
                next = tokio::select! {
                    next = self.list(&keeper, &api, &mut sink) => next,
                    next = self.rights_change(&keeper, true) => next,
                };
            }
            match next {
                Next::All => namespace = None,
                Next::Own(own) => namespace = Some(own),
                Next::Watch | Next::Lists => {}
            }
        }
    }

    /// Waits until the API server has refused a list or a watch that something else may take the place of.
    async fn after_refusal<K, R>(&self, keeper: &Keeper<K, R>, refused: &Notify) -> Next
    where
        K: Resource + Clone + DeserializeOwned + Debug,
        R: PartialEq,
    {
        let own = self.source.namespace.as_ref().filter(|_| keeper.has_own);
        loop {
            refused.notified().await;
            let (is_shown, namespace) = self.scope(keeper);
            if is_shown {
                match self.right(keeper, namespace.as_deref()).await {
                    Right::Granted => return Next::Lists,
                    Right::Refused(why) => return self.refuse(keeper, why),
                    // The watch tries again.
                    Right::Unknown => {}
                }
            } else if namespace.is_none()
                && let Some(own) = own
            {
                return Next::Own(own.clone());
            }
        }
    }

    /// Whether the user may list a kind, in a namespace or everywhere.
    async fn right<K, R>(&self, keeper: &Keeper<K, R>, namespace: Option<&str>) -> Right
    where
        K: Resource + Clone + DeserializeOwned + Debug,
    {
        let namespace = namespace.unwrap_or_default();
        let client = &self.source.clients.cluster;
        Right::to_list(client, &keeper.resource, namespace, &(keeper.api)(namespace)).await
    }

    /// Shows the rows of a kind no longer.
    fn refuse<K, R: PartialEq>(&self, keeper: &Keeper<K, R>, why: String) -> Next {
        (keeper.kept)(&mut self.rows.lock()).refuse(why);
        self.changed.notify_one();
        Next::All
    }

    /// Lists again and again what may be listed and not watched, until it may not be listed either.
    async fn list<K, R>(&self, keeper: &Keeper<K, R>, api: &Api<K>, sink: &mut impl FnMut(Event<K>)) -> Next
    where
        K: Resource + Clone + DeserializeOwned,
        R: PartialEq,
    {
        let mut took = Duration::ZERO;
        loop {
            sleep(self.source.interval.max(took)).await;
            let began = Clock::system().now();
            sink(Event::ListStarted);
            let params = ListParams::default().labels(keeper.label);
            match watch::list(api, params, |object| sink(Event::Listed(object))).await {
                Ok(()) => sink(Event::ListCompleted { version: 0 }),
                Err(kube::Error::Api(status)) if refuses(status.code) => {
                    return self.refuse(keeper, status.message.clone());
                }
                Err(error) => sink(Event::Failed((&error).into())),
            }
            took = began.elapsed();
        }
    }

    /// Whether a kind is shown, and the namespace that is watched; `None`: all.
    fn scope<K, R: PartialEq>(&self, keeper: &Keeper<K, R>) -> (bool, Option<String>) {
        let mut rows = self.rows.lock();
        let kept = (keeper.kept)(&mut rows);
        (kept.is_shown(), kept.namespace().map(str::to_owned))
    }

    /// Waits until the user's rights to a kind have changed. `listed`: it is listed instead of watched.
    async fn rights_change<K, R>(&self, keeper: &Keeper<K, R>, listed: bool) -> Next
    where
        K: Resource + Clone + DeserializeOwned + Debug,
        R: PartialEq,
    {
        let client = &self.source.clients.cluster;
        let mut unknown = 0;
        loop {
            sleep(self.source.interval).await;
            let (is_shown, namespace) = self.scope(keeper);
            let namespace = namespace.as_deref();
            // What isn't shown is listed again by the watch.
            if is_shown {
                match self.right(keeper, namespace).await {
                    Right::Granted => unknown = 0,
                    Right::Refused(why) => return self.refuse(keeper, why),
                    Right::Unknown => unknown += 1,
                }
                if unknown >= UNKNOWN {
                    return self.refuse(
                        keeper,
                        "the API server doesn't say whether the user may list them".to_owned(),
                    );
                }
            }
            if namespace.is_some() && self.right(keeper, None).await == Right::Granted {
                return Next::All;
            }
            let place = namespace.unwrap_or_default();
            if listed && Right::to_watch(client, &keeper.resource, place).await == Right::Granted {
                return Next::Watch;
            }
        }
    }
}

/// DPUs.
fn node_keeper(client: Client, host_labels: HostLabels) -> Keeper<Node, NodeEntry> {
    Keeper {
        resource: NODE.resource(),
        name: NODE.1,
        label: "",
        has_own: false,
        api: Box::new(move |_| Api::all(client.clone())),
        row: Box::new(move |node: &Node| NodeEntry::of(node, &host_labels)),
        kept: |rows| &mut rows.nodes,
    }
}

/// A kind of which there are few objects: each is read as a whole.
fn few<R: 'static>(
    client: &Client,
    kind: Kind,
    row: impl Fn(&Value) -> Option<R> + Send + Sync + 'static,
    kept: fn(&mut Rows) -> &mut Kept<R>,
) -> Keeper<DynamicObject, R> {
    let (client, resource) = (client.clone(), kind.resource());
    Keeper {
        resource: resource.clone(),
        name: kind.1,
        label: "",
        has_own: kind.1 == RULE.1,
        api: Box::new(move |namespace| {
            of_kind(&client, kind.resource(), Some(namespace).filter(|name| !name.is_empty())).0
        }),
        row: Box::new(move |object| row(&with_kind(&resource, object.clone()).ok()?)),
        kept,
    }
}

fn id<K: Resource>(object: &K) -> Id {
    Id { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
}

#[cfg(test)]
mod tests;
