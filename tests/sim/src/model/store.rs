//! The storage of a model: objects, and a log of all writes.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::kinds::ModelKind;
use super::link::{RequestInfo, Verb};
use super::object;
use super::refusal::Refusal;
use super::selector::Selector;
use super::service::Shown;

/// A committed write.
#[derive(Debug, Clone)]
pub struct Commit {
    /// Wall time of the API server.
    pub time: Timestamp,
    /// Who wrote it.
    pub user: String,
    /// The party that sent the request, as in [`RequestInfo::client`].
    pub client: String,
    /// When that party sent it.
    pub sent: Timestamp,
    /// The verb of the request. An update or a patch that removes the last finalizer of a deleted object removes the object.
    pub verb: Verb,
    /// The kind of the object.
    pub kind: ModelKind,
    /// The subresource that was written.
    pub subresource: Option<String>,
    /// Namespace of the object.
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: String,
    /// The resourceVersion that the write got.
    pub revision: u64,
    /// The object before; `None` if it was created.
    pub old: Option<Arc<Value>>,
    /// The object afterwards; `None` if it was removed.
    pub new: Option<Arc<Value>>,
    /// The object afterwards as JSON: every watch sends it.
    text: OnceLock<Arc<str>>,
}

impl Commit {
    fn key(&self) -> String {
        key(self.namespace.as_deref(), &self.name)
    }

    /// The event of a watch with this selector, as its type and the object's JSON; `None` if the watch doesn't show the write.
    pub(super) fn event(&self, selector: &Selector, metadata_only: bool) -> Option<(&'static str, Arc<str>)> {
        let selected = |object: &Arc<Value>| selector.selects(object);
        let (was, is) =
            (self.old.as_ref().filter(|old| selected(old)), self.new.as_ref().filter(|new| selected(new)));
        Some(match (was, is) {
            (None, None) => return None,
            (None, Some(new)) => ("ADDED", self.text(new, metadata_only)),
            (Some(_), Some(new)) => ("MODIFIED", self.text(new, metadata_only)),
            (Some(old), None) => {
                let mut old = (**old).clone();
                object::set(&mut old, "resourceVersion", json!(self.revision.to_string()));
                ("DELETED", Shown { object: &old, metadata_only, without_kind: false }.text())
            }
        })
    }

    fn text(&self, new: &Value, metadata_only: bool) -> Arc<str> {
        let shown = Shown { object: new, metadata_only, without_kind: false };
        if metadata_only { shown.text() } else { self.text.get_or_init(|| shown.text()).clone() }
    }
}

/// Whether no controller of a cluster acts on objects of a kind: Leases and Events.
pub(super) fn is_noise(kind: &ModelKind) -> bool {
    matches!(kind.plural, "leases" | "events")
}

/// The key of an object within its kind. Keys are ordered as etcd orders them.
pub(super) fn key(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}

/// The objects of a kind by their keys.
type Objects = BTreeMap<String, Arc<Value>>;

/// All objects of a kind, and their writes since the last restore, the oldest first.
#[derive(Debug)]
pub(super) struct Resource {
    pub(super) kind: ModelKind,
    pub(super) objects: Objects,
    pub(super) log: Vec<Arc<Commit>>,
    /// Changes with every write, and when watches are cut.
    pub(super) changed: watch::Sender<()>,
}

impl Resource {
    fn new(kind: ModelKind) -> Self {
        Self { kind, objects: BTreeMap::new(), log: Vec::new(), changed: watch::Sender::new(()) }
    }

    /// The first write after a revision.
    pub(super) fn after(&self, revision: u64) -> Option<&Arc<Commit>> {
        self.log.get(self.log.partition_point(|commit| commit.revision <= revision))
    }

    /// The objects as they were at a revision.
    fn at(&self, revision: u64) -> Objects {
        let mut objects = self.objects.clone();
        for commit in self.log.iter().rev().take_while(|commit| commit.revision > revision) {
            match &commit.old {
                Some(old) => objects.insert(commit.key(), old.clone()),
                None => objects.remove(&commit.key()),
            };
        }
        objects
    }
}

/// A page of a list.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) items: Vec<Arc<Value>>,
    /// The key of the last object, if there are more objects.
    pub(super) more: Option<String>,
    /// How many objects follow.
    pub(super) remaining: usize,
}

/// Everything that a model stores.
#[derive(Debug)]
pub(super) struct State {
    /// The revision of the last write.
    pub(super) revision: u64,
    /// Counts the writes of everything but Leases and Events, and restores.
    pub(super) stirred: u64,
    /// Since the collector found nothing the last time, something was written that may be garbage or have made some: anything but an
    /// update that keeps the owners and deletes nothing.
    pub(super) littered: bool,
    /// The oldest revision that lists can show.
    pub(super) compacted: u64,
    /// The oldest revision from which watches can start.
    pub(super) watched_from: u64,
    pub(super) resources: Vec<Resource>,
    pub(super) history: Vec<Arc<Commit>>,
    /// The users of open watches, by number.
    pub(super) watches: BTreeMap<u64, String>,
    /// How many watches were opened.
    pub(super) opened: u64,
    /// The revisions that watches have reached, with the times, by client and kind.
    pub(super) shown: BTreeMap<(String, String), Vec<(u64, Timestamp)>>,
    /// How far the watch cache of the second API server is behind.
    pub(super) lag: Duration,
    /// How many times the API server has restarted: no request outlives that.
    pub(super) restarts: u64,
    /// The least generation that a change of an object leads to. After a restore with later revisions it is one that no object has had:
    /// who has missed the restored state would take another spec of the same generation for the same.
    pub(super) generation: i64,
    /// What it does beside what it has always done.
    pub(super) more: More,
}

/// What a model may do besides.
#[derive(Debug, Clone, Copy, Default)]
pub struct More {
    /// Pages of lists have one to four objects, however many the client asks for.
    pub short_pages: bool,
    /// Strategic merge patches of statuses are merged. Otherwise they are refused.
    pub merges_conditions: bool,
    /// Pods have the subresource `resize`.
    pub resizes: bool,
}

/// The contents of a storage at some time.
#[derive(Debug, Clone)]
pub struct Snapshot {
    revision: u64,
    compacted: u64,
    resources: Vec<(Objects, Vec<Arc<Commit>>)>,
}

impl State {
    pub(super) fn new(kinds: &[ModelKind]) -> Self {
        Self {
            revision: 1,
            stirred: 0,
            littered: false,
            compacted: 0,
            watched_from: 0,
            resources: kinds.iter().copied().map(Resource::new).collect(),
            history: Vec::new(),
            watches: BTreeMap::new(),
            opened: 0,
            shown: BTreeMap::new(),
            lag: Duration::ZERO,
            restarts: 0,
            generation: 0,
            more: More::default(),
        }
    }

    /// The resource with this plural name, and this group unless it is `None`.
    pub(super) fn find(&self, group: Option<&str>, plural: &str) -> Option<&Resource> {
        let is = |kind: &ModelKind| kind.plural == plural && group.is_none_or(|group| kind.group == group);
        self.resources.iter().find(|resource| is(&resource.kind))
    }

    pub(super) fn resource(&self, kind: &ModelKind) -> Option<&Resource> {
        self.find(Some(kind.group), kind.plural)
    }

    pub(super) fn object(
        &self,
        kind: &ModelKind,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<&Arc<Value>> {
        self.resource(kind)?.objects.get(&key(namespace, name))
    }

    /// The selected objects of a kind in a namespace, or in all, at a revision, from a key on.
    pub(super) fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        selector: &Selector,
        at: u64,
        (after, limit): (&str, usize),
    ) -> Page {
        let old = (at < self.revision).then(|| resource.at(at));
        let objects = old.as_ref().unwrap_or(&resource.objects);
        let prefix = namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();
        let from = if after.is_empty() { prefix.clone() } else { format!("{after}\0") };
        let within = objects.range(from..).take_while(|(key, _)| key.starts_with(&prefix));
        let mut all = within.filter(|(_, object)| selector.reads(object, after.is_empty()));
        let mut page = Page::default();
        let mut last = "";
        for (key, object) in all.by_ref() {
            if selector.selects(object) {
                page.items.push(object.clone());
            }
            last = key;
            if limit > 0 && page.items.len() == limit {
                break;
            }
        }
        page.remaining = all.count();
        page.more = (page.remaining > 0).then(|| last.to_owned());
        page
    }

    /// Stores an object, or removes it, with the next revision.
    pub(super) fn commit(
        &mut self,
        time: Timestamp,
        info: &RequestInfo,
        kind: &ModelKind,
        name: &str,
        new: Option<Value>,
    ) -> Result<Arc<Commit>, Refusal> {
        self.revision += 1;
        self.stirred += u64::from(!is_noise(kind));
        let revision = self.revision;
        let is = |other: &&mut Resource| (other.kind.group, other.kind.plural) == (kind.group, kind.plural);
        let resource =
            self.resources.iter_mut().find(is).ok_or_else(|| Refusal::new(404, "the kind isn't served"))?;
        let new = new.map(|mut new| {
            object::set(&mut new, "resourceVersion", json!(revision.to_string()));
            Arc::new(new)
        });
        let namespace = info.namespace.clone();
        let key = key(namespace.as_deref(), name);
        let old = match &new {
            Some(new) => resource.objects.insert(key, new.clone()),
            None => resource.objects.remove(&key),
        };
        self.littered |= match (&old, &new) {
            (Some(old), Some(new)) => object::ties(old) != object::ties(new),
            (_, new) => new.is_none() || !is_noise(kind),
        };
        let commit = Arc::new(Commit {
            time,
            user: info.user.clone(),
            client: info.client.clone(),
            sent: info.sent,
            verb: info.verb,
            kind: *kind,
            subresource: info.subresource.clone(),
            namespace,
            name: name.to_owned(),
            revision,
            old,
            new,
            text: OnceLock::new(),
        });
        resource.log.push(commit.clone());
        self.history.push(commit.clone());
        resource.changed.send_replace(());
        Ok(commit)
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let resources = self.resources.iter().map(|one| (one.objects.clone(), one.log.clone())).collect();
        Snapshot { revision: self.revision, compacted: self.compacted, resources }
    }

    pub(super) fn restore(&mut self, snapshot: &Snapshot) {
        self.revision = snapshot.revision;
        self.stirred += 1;
        self.littered = true;
        self.compacted = snapshot.compacted;
        for (resource, (objects, log)) in self.resources.iter_mut().zip(&snapshot.resources) {
            resource.objects.clone_from(objects);
            resource.log.clone_from(log);
        }
        self.restart();
    }

    /// As [`Self::restore`], with later revisions than any before, also than those of the snapshot, which may be later than the present ones:
    /// objects keep the versions that they had, and watches start only from now on.
    pub(super) fn restore_later(&mut self, snapshot: &Snapshot) {
        let revision = self.revision.max(snapshot.revision) + 1000;
        self.restore(snapshot);
        (self.revision, self.compacted, self.watched_from) = (revision, revision, revision);
        self.generation = i64::try_from(revision).unwrap_or(i64::MAX);
    }

    /// The API server restarts: all watches end, and watches start only from now on.
    pub(super) fn restart(&mut self) {
        self.watched_from = self.revision;
        self.restarts += 1;
        self.cut(|_| true);
    }

    /// The watch cache of the second API server is so far behind from now on.
    pub(super) fn lag(&mut self, lag: Duration) {
        self.lag = lag;
        self.wake();
    }

    /// Ends the open watches of these users.
    pub(super) fn cut(&mut self, cut: impl Fn(&str) -> bool) {
        self.watches.retain(|_, user| !cut(user));
        self.wake();
    }

    /// All watches look at what is theirs now.
    fn wake(&self) {
        for resource in &self.resources {
            resource.changed.send_replace(());
        }
    }
}
