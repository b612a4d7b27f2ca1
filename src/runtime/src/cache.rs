//! What has been seen of the objects of a kind, and so what is news: the newer of two states wins, by uid and
//! resourceVersion.
//!
//! What is known of an object comes in four ways: as an event of a watch that shows it, as one that shows its deletion, as the
//! answer to a write of our own, and as part of a list. Answers come in any order with the watch's events, early or late.
//! [`Versions`] decides which of them is news. [`Feed`] hands only news on, one after the other, so that whoever keeps
//! objects never replaces a newer state by an older one, and never brings back an object whose deletion it has seen.
//!
//! resourceVersions of one kind are ordered integers in all clusters that are conformant (KEP-5504).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use kube::Resource;
pub use outrigger_api::Change;
use parking_lot::Mutex;

use crate::watch::Event;

/// A resourceVersion as a number. One that is missing or isn't a number is 0, older than all others.
pub fn version(resource_version: Option<&str>) -> u64 {
    resource_version.and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// Which state of an object something is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// `metadata.uid`: another object of the same name has another one.
    pub uid: Box<str>,
    /// `metadata.resourceVersion`.
    pub version: u64,
}

impl State {
    /// The state that an object shows.
    pub fn of<K: Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self {
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            version: version(meta.resource_version.as_deref()),
        }
    }
}

/// The newest state that is known of each object of a kind, as far as one watch shows them.
///
/// Invariants, whatever the order in which things come in:
/// - The state that is known of an object only becomes newer, but for what a complete list says: a list is consistent, so it
///   counts for everything that was known before it began. That is also how a cluster is followed whose etcd was restored
///   from an older snapshot.
/// - An answer that is older than what the watch has reached is no news: the watch has shown that state, or a newer one.
#[derive(Debug)]
pub struct Versions<N> {
    objects: HashMap<N, Known>,
    /// How far the watch has come: everything up to here has been shown.
    reached: u64,
    /// Counts lists; the one that is under way, or the last.
    list: u32,
    listing: bool,
}

#[derive(Debug)]
struct Known {
    state: State,
    /// The list that has shown it, or during which or after which it was seen.
    list: u32,
    /// It was learned from an answer while that list was under way, which may have been taken before.
    answered: bool,
}

impl<N> Default for Versions<N> {
    fn default() -> Self {
        Self { objects: HashMap::new(), reached: 0, list: 0, listing: false }
    }
}

impl<N: Eq + Hash + Clone> Versions<N> {
    /// The watch shows an object. Whether that is news.
    pub fn event(&mut self, name: N, state: State) -> bool {
        self.reached = self.reached.max(state.version);
        self.put(name, state, false)
    }

    /// The watch shows that an object is gone; `state` is that of the deletion. Whether that is news: an answer may have told
    /// of a later object of the same name.
    pub fn gone(&mut self, name: &N, state: &State) -> bool {
        self.reached = self.reached.max(state.version);
        if self.objects.get(name).is_some_and(|known| known.state.version <= state.version) {
            self.objects.remove(name);
            return true;
        }
        false
    }

    /// The answer to a write or a read of our own shows an object. Whether that is news.
    pub fn answer(&mut self, name: N, state: State) -> bool {
        // Not even the first list of a new watch can be older than what comes from before it.
        if state.version <= self.reached {
            return false;
        }
        self.put(name, state, self.listing)
    }

    /// The watch begins a list of all objects. What was known stays known until the list is complete.
    pub fn list_started(&mut self) {
        self.list = self.list.wrapping_add(1);
        self.listing = true;
    }

    /// The list shows an object. Whether that is news.
    pub fn listed(&mut self, name: N, state: State) -> bool {
        let list = self.list;
        match self.objects.entry(name) {
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                // Only what was answered since the list began can be newer than the list.
                let newer = known.answered && known.list == list && known.state.version > state.version;
                known.list = list;
                if newer {
                    return false;
                }
                known.answered = false;
                let news = known.state != state;
                known.state = state;
                news
            }
            Entry::Vacant(place) => {
                place.insert(Known { state, list, answered: false });
                true
            }
        }
    }

    /// The list is complete, and was taken at `version`. Returns what it doesn't show, which is gone, and its last state.
    pub fn list_completed(&mut self, version: u64) -> Vec<(N, State)> {
        self.reached = version;
        self.listing = false;
        let list = self.list;
        let stays = |known: &Known| known.list == list && (!known.answered || known.state.version > version);
        self.objects.extract_if(|_, known| !stays(known)).map(|(name, known)| (name, known.state)).collect()
    }

    /// The watch has come to this version, without anything to show.
    pub fn bookmark(&mut self, version: u64) {
        self.reached = self.reached.max(version);
    }

    /// The newest state that is known of an object.
    pub fn get(&self, name: &N) -> Option<&State> {
        self.objects.get(name).map(|known| &known.state)
    }

    /// How many objects are known.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    fn put(&mut self, name: N, state: State, answered: bool) -> bool {
        let known = Known { state, list: self.list, answered };
        match self.objects.entry(name) {
            Entry::Occupied(before) if before.get().state.version > known.state.version => false,
            // The answer has told already what the watch shows now.
            Entry::Occupied(before) if before.get().state == known.state && known.state.version > 0 => false,
            Entry::Occupied(mut before) => {
                before.insert(known);
                true
            }
            Entry::Vacant(place) => {
                place.insert(known);
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

/// Takes in what a watch shows and what writes are answered, and hands on what is news. Cheap to clone; all clones are one.
///
/// `sink` is called under a lock, so changes of one kind are handed on one after the other, in an order in which they happened.
/// It has to return soon, and must not give answers to the same feed.
pub struct Feed<K> {
    inner: Arc<Mutex<Inner<K>>>,
}

struct Inner<K> {
    versions: Versions<ObjectName>,
    sink: Box<dyn FnMut(Change<K>) + Send>,
}

impl<K: Resource> Inner<K> {
    /// Something shows an object. Whether that is news.
    fn show(
        &mut self,
        object: K,
        is_news: impl FnOnce(&mut Versions<ObjectName>, ObjectName, State) -> bool,
    ) -> bool {
        let (name, state) = (name(&object), State::of(&object));
        let before = self.versions.get(&name).filter(|before| before.uid != state.uid).cloned();
        let news = is_news(&mut self.versions, name.clone(), state);
        if news {
            // Nobody has shown the end of the object that had the name before.
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
        Self { inner: self.inner.clone() }
    }
}

impl<K> fmt::Debug for Feed<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("objects", &self.inner.lock().versions.len()).finish_non_exhaustive()
    }
}

impl<K: Resource> Feed<K> {
    /// Hands news on to `sink`.
    pub fn new(sink: impl FnMut(Change<K>) + Send + 'static) -> Self {
        Self { inner: Arc::new(Mutex::new(Inner { versions: Versions::default(), sink: Box::new(sink) })) }
    }

    /// The watch shows something.
    pub fn event(&self, event: Event<K>) {
        let mut inner = self.inner.lock();
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
            Event::Bookmark { version } => inner.versions.bookmark(version),
            Event::ListCompleted { version } => {
                for (name, state) in inner.versions.list_completed(version) {
                    inner.gone(name, state);
                }
            }
        }
    }

    /// A write or a read of our own was answered with this object. Whether that was news.
    pub fn answer(&self, object: K) -> bool {
        self.inner.lock().show(object, Versions::answer)
    }

    /// What to give to the function that follows the watch.
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
