//! The versions of the objects of a kind: of two states of an object the newer one wins, by uid and resourceVersion.
//!
//! States of an object come from four sources: an event of a watch that it was applied or that it was deleted, the response to a
//! write of this process, and a list. Responses can arrive before or after the corresponding event. [`Versions`] decides which
//! states are new. [`Feed`] passes only new states on, one after the other, so that a cache never replaces a newer state by an
//! older one, and never restores an object after its deletion.
//!
//! resourceVersions of one kind are ordered integers in all clusters that are conformant (KEP-5504).

use outrigger_core::map::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use kube::Resource;
pub use outrigger_api::Change;
use outrigger_core::fault;
use parking_lot::Mutex;

use crate::watch::{Event, Unreadable};

/// A resourceVersion as a number. One that is missing or isn't a number is 0, older than all others.
pub fn version(resource_version: Option<&str>) -> u64 {
    resource_version.and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// A state of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// `metadata.uid`: another object of the same name has another one.
    pub uid: Box<str>,
    /// `metadata.resourceVersion`.
    pub version: u64,
}

impl State {
    /// The state of this object.
    pub fn of<K: Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self {
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            version: version(meta.resource_version.as_deref()),
        }
    }
}

/// The newest known state of each object of a kind that one watch follows.
///
/// Invariants, for any order of the inputs:
/// - The known state of an object only becomes newer, except by a complete list: a list is consistent, so it overrides everything
///   that was known before it started. So the states are also correct after etcd was restored from an older snapshot.
/// - A response that is older than the watch is ignored: the watch has shown that state or a newer one.
#[derive(Debug)]
pub struct Versions<N> {
    objects: HashMap<N, KnownState>,
    /// The resourceVersion of the watch: all events up to it have been received.
    reached: u64,
    /// The number of the list that is in progress, or of the last one.
    list: u32,
    listing: bool,
}

#[derive(Debug)]
struct KnownState {
    state: State,
    /// The last list that contained it, or that was started before it was received.
    list: u32,
    /// It is from a response during that list, and may be newer than the list.
    answered: bool,
    /// This process has deleted the object, and knows that already.
    deleted: bool,
}

impl<N> Default for Versions<N> {
    fn default() -> Self {
        Self { objects: HashMap::default(), reached: 0, list: 0, listing: false }
    }
}

impl<N: Eq + Hash + Clone> Versions<N> {
    /// An event that an object was applied. Returns whether the state is new.
    pub fn event(&mut self, name: N, state: State) -> bool {
        self.reached = self.reached.max(state.version);
        self.put(name, state, false)
    }

    /// An event that an object was deleted; `state` is that of the deletion. Returns whether the known object was deleted: a
    /// response may have shown a later object with the same name.
    pub fn gone(&mut self, name: &N, state: &State) -> bool {
        self.reached = self.reached.max(state.version);
        let is_latest = |known: &KnownState| {
            known.state.version <= state.version || fault("late-deletion-removes-a-later-object")
        };
        if self.objects.get(name).is_some_and(is_latest) {
            self.objects.remove(name);
            return true;
        }
        false
    }

    /// A response to a request of this process contains an object. Returns whether the state is new.
    pub fn answer(&mut self, name: N, state: State) -> bool {
        // The watch has received this state or a newer one.
        if state.version <= self.reached && !fault("late-answer-is-taken") {
            return false;
        }
        self.put(name, state, self.listing)
    }

    /// A list of all objects starts. Known states stay until the list is complete.
    pub fn list_started(&mut self) {
        self.list = self.list.wrapping_add(1);
        self.listing = true;
    }

    /// An object of the list. Returns whether the state is new.
    pub fn listed(&mut self, name: N, state: State) -> bool {
        let list = self.list;
        match self.objects.entry(name) {
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                // Only a response since the start of the list can be newer than the list.
                let newer = known.answered && known.list == list && known.state.version > state.version;
                known.list = list;
                let is_restored = known.state.version > state.version;
                if newer || is_restored && fault("restored-state-is-taken-for-old") {
                    return false;
                }
                known.answered = false;
                let news = std::mem::take(&mut known.deleted) || known.state != state;
                known.state = state;
                news
            }
            Entry::Vacant(entry) => {
                entry.insert(KnownState { state, list, answered: false, deleted: false });
                true
            }
        }
    }

    /// The list with this resourceVersion is complete. Returns the known objects that it didn't contain, with their last states.
    pub fn list_completed(&mut self, version: u64) -> Vec<(N, State)> {
        self.reached = version;
        self.listing = false;
        let list = self.list;
        let stays =
            |known: &KnownState| known.list == list && (!known.answered || known.state.version > version);
        self.objects
            .extract_if(|_, known| !stays(known) && !fault("list-keeps-what-is-gone"))
            .map(|(name, known)| (name, known.state))
            .collect()
    }

    /// How many lists have begun.
    pub fn lists(&self) -> u32 {
        self.list
    }

    /// A request of this process to delete the object with this uid has succeeded, which was made after so many [`Self::lists`]. Returns
    /// whether the process may act on that before the watch shows it. If the next list has the object as it was, because the cluster's
    /// state was restored, that is news. A list that has begun since may be that one already.
    pub fn deleted(&mut self, name: &N, uid: &str, lists: u32) -> bool {
        let is_newest = self.list == lists;
        if let Some(known) = self.objects.get_mut(name).filter(|known| is_newest && *known.state.uid == *uid)
        {
            known.deleted = true;
        }
        is_newest
    }

    /// An object of the list, or an event about one, can't be decoded: its known state stays.
    pub fn unreadable(&mut self, name: &N, version: u64) {
        // The list itself says what it has reached.
        if !self.listing {
            self.reached = self.reached.max(version);
        }
        if let Some(known) = self.objects.get_mut(name) {
            (known.list, known.answered) = (self.list, false);
        }
    }

    /// A bookmark: the watch has reached this resourceVersion.
    pub fn bookmark(&mut self, version: u64) {
        self.reached = self.reached.max(version);
    }

    /// The newest known state of an object.
    pub fn get(&self, name: &N) -> Option<&State> {
        self.objects.get(name).map(|known| &known.state)
    }

    /// The number of known objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there are no known objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    fn put(&mut self, name: N, state: State, answered: bool) -> bool {
        let known = KnownState { state, list: self.list, answered, deleted: false };
        match self.objects.entry(name) {
            Entry::Occupied(before) if before.get().state.version > known.state.version => false,
            // An event with the state of an earlier response.
            Entry::Occupied(before) if before.get().state == known.state && known.state.version > 0 => false,
            Entry::Occupied(mut before) => {
                before.insert(known);
                true
            }
            Entry::Vacant(entry) => {
                entry.insert(known);
                true
            }
        }
    }
}

/// Namespace and name of an object; the namespace is empty for an object of the cluster.
pub type ObjectName = (Box<str>, Box<str>);

fn name<K: Resource>(object: &K) -> ObjectName {
    let meta = object.meta();
    (meta.namespace.as_deref().unwrap_or_default().into(), meta.name.as_deref().unwrap_or_default().into())
}

/// Receives the events of a watch and the responses to writes, and passes the new states on. Cheap to clone; all clones share the
/// states.
///
/// `sink` is called under a lock, so the changes of a kind are passed on one after the other, in their order. It must return
/// quickly, and must not pass responses to the same feed.
pub struct Feed<K> {
    state: Arc<Mutex<FeedState<K>>>,
}

struct FeedState<K> {
    versions: Versions<ObjectName>,
    sink: Box<dyn FnMut(Change<K>) + Send>,
}

impl<K: Resource> FeedState<K> {
    /// Passes an object on if its state is new. Returns whether it is.
    fn show(
        &mut self,
        object: K,
        is_news: impl FnOnce(&mut Versions<ObjectName>, ObjectName, State) -> bool,
    ) -> bool {
        let (name, state) = (name(&object), State::of(&object));
        let before = self.versions.get(&name).filter(|before| before.uid != state.uid).cloned();
        let news = is_news(&mut self.versions, name.clone(), state);
        if news {
            // The deletion of the former object with this name was not received.
            if let Some(before) = before {
                self.gone(name, before);
            }
            (self.sink)(Change::Applied(object));
        }
        news
    }

    fn gone(&mut self, (namespace, name): ObjectName, state: State) {
        let (namespace, name) = (namespace.into(), name.into());
        (self.sink)(Change::Gone { namespace, name, uid: state.uid.into() });
    }
}

impl<K> Clone for Feed<K> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone() }
    }
}

impl<K> fmt::Debug for Feed<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("objects", &self.state.lock().versions.len()).finish_non_exhaustive()
    }
}

impl<K: Resource> Feed<K> {
    /// A feed that passes changes to `sink`.
    pub fn new(sink: impl FnMut(Change<K>) + Send + 'static) -> Self {
        Self {
            state: Arc::new(Mutex::new(FeedState { versions: Versions::default(), sink: Box::new(sink) })),
        }
    }

    /// Receives an event of the watch.
    pub fn event(&self, event: Event<K>) {
        let mut inner = self.state.lock();
        match event {
            Event::ListStarted => inner.versions.list_started(),
            Event::Listed(object) => _ = inner.show(object, Versions::listed),
            Event::Applied(object) => _ = inner.show(object, Versions::event),
            Event::Deleted(object) => {
                let (name, state) = (name(&object), State::of(&object));
                if inner.versions.gone(&name, &state) {
                    inner.gone(name, state);
                }
            }
            Event::Unreadable(Unreadable { namespace, name, uid, resource_version, deleted, .. }) => {
                let name = (namespace.into(), name.into());
                let state = State { uid: uid.into(), version: version(Some(&resource_version)) };
                if !deleted {
                    inner.versions.unreadable(&name, state.version);
                } else if inner.versions.gone(&name, &state) {
                    inner.gone(name, state);
                }
            }
            Event::Bookmark { version } => inner.versions.bookmark(version),
            Event::Failed(_) => {}
            Event::ListCompleted { version } => {
                for (name, state) in inner.versions.list_completed(version) {
                    inner.gone(name, state);
                }
            }
        }
    }

    /// Receives the object of a response to a request of this process. Returns whether its state is new.
    pub fn answer(&self, object: K) -> bool {
        self.state.lock().show(object, Versions::answer)
    }

    /// How many lists have begun.
    pub fn lists(&self) -> u32 {
        self.state.lock().versions.lists()
    }

    /// A request of this process to delete the object with this uid has succeeded ([`Versions::deleted`]). The namespace is empty for an
    /// object of the cluster.
    pub fn deleted(&self, (namespace, name): (&str, &str), uid: &str, lists: u32) -> bool {
        self.state.lock().versions.deleted(&(namespace.into(), name.into()), uid, lists)
    }

    /// The sink for the watch.
    pub fn sink(&self) -> impl FnMut(Event<K>) + Send + use<K>
    where
        K: Send,
    {
        let this = self.clone();
        move |event| this.event(event)
    }
}

#[cfg(test)]
mod tests;
