//! Access for a harness: without a link, at once.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::link::{RequestInfo, Verb};
use super::object::text;
use super::patch::PatchBody;
use super::store::{Commit, More, Snapshot, key};
use super::write::{Change, DeleteOptions, Write};
use super::{Model, ModelKind, Refusal};

impl Model {
    /// The stored object. `plural` is the kind's plural name; the namespace of a cluster's object is `None`.
    pub fn get(&self, plural: &str, namespace: Option<&str>, name: &str) -> Option<Arc<Value>> {
        self.state.lock().find(None, plural)?.objects.get(&key(namespace, name)).cloned()
    }

    /// The stored objects of a kind, in the order of namespaces and names.
    pub fn list(&self, plural: &str) -> Vec<Arc<Value>> {
        let state = self.state.lock();
        state.find(None, plural).into_iter().flat_map(|resource| resource.objects.values().cloned()).collect()
    }

    /// Creates an object. Returns it as it was stored.
    ///
    /// # Errors
    /// What the API server answers, also from [`Model::admit`].
    pub fn create(&self, user: &str, plural: &str, object: Value) -> Result<Arc<Value>, Refusal> {
        let namespace =
            Some(text(&object, "namespace")).filter(|namespace| !namespace.is_empty()).map(str::to_owned);
        self.make(user, plural, (namespace, None, None), Verb::Create, Change::Create(object))
    }

    /// Replaces an object; with `status` only its status. The write has a precondition if the object has a resourceVersion.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn update(
        &self,
        user: &str,
        plural: &str,
        subresource: Option<&str>,
        object: Value,
    ) -> Result<Arc<Value>, Refusal> {
        let namespace =
            Some(text(&object, "namespace")).filter(|namespace| !namespace.is_empty()).map(str::to_owned);
        let name = text(&object, "name").to_owned();
        let at = (namespace, Some(name), subresource.map(str::to_owned));
        self.make(user, plural, at, Verb::Update, Change::Replace(object))
    }

    /// Changes an object by a merge patch; with the subresource `status` only its status.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn merge(
        &self,
        user: &str,
        plural: &str,
        (namespace, name, subresource): (Option<&str>, &str, Option<&str>),
        patch: Value,
    ) -> Result<Arc<Value>, Refusal> {
        let at = (namespace.map(str::to_owned), Some(name.to_owned()), subresource.map(str::to_owned));
        self.make(user, plural, at, Verb::Patch, Change::Patch(PatchBody::Merge(patch)))
    }

    /// Deletes an object, as `kubectl delete` does. Returns its last state.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn delete(
        &self,
        user: &str,
        plural: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Arc<Value>, Refusal> {
        self.delete_with(user, plural, (namespace, name), DeleteOptions::default())
    }

    pub(super) fn delete_with(
        &self,
        user: &str,
        plural: &str,
        (namespace, name): (Option<&str>, &str),
        options: DeleteOptions,
    ) -> Result<Arc<Value>, Refusal> {
        let at = (namespace.map(str::to_owned), Some(name.to_owned()), None);
        self.make(user, plural, at, Verb::Delete, Change::Delete(options))
    }

    fn make(
        &self,
        user: &str,
        plural: &str,
        (namespace, name, subresource): (Option<String>, Option<String>, Option<String>),
        verb: Verb,
        change: Change,
    ) -> Result<Arc<Value>, Refusal> {
        let kind =
            self.kind(plural).ok_or_else(|| Refusal::new(404, format!("no kind {plural} is served")))?;
        let info = RequestInfo {
            user: user.to_owned(),
            client: String::new(),
            sent: self.environment.clock.wall(),
            verb,
            group: kind.group.to_owned(),
            version: kind.version.to_owned(),
            plural: kind.plural.to_owned(),
            namespace,
            name,
            subresource,
            dry_run: false,
        };
        let write = Write { info, kind, field_manager: Some(user.to_owned()), change };
        self.write_now(&write).map(|answer| answer.object)
    }

    /// The kind with this plural name.
    pub fn kind(&self, plural: &str) -> Option<ModelKind> {
        self.state.lock().find(None, plural).map(|resource| resource.kind)
    }

    /// The resourceVersion of the last write.
    pub fn revision(&self) -> u64 {
        self.state.lock().revision
    }

    /// Changes with every write that a cluster's own controllers may have to act on: of everything but Leases and Events.
    pub fn stirred(&self) -> u64 {
        self.state.lock().stirred
    }

    /// All committed writes since the model was created, in their order. A restore doesn't remove any.
    pub fn history(&self) -> Vec<Arc<Commit>> {
        self.state.lock().history.clone()
    }

    /// The contents of the storage, as a backup of etcd.
    pub fn snapshot(&self) -> Snapshot {
        self.state.lock().snapshot()
    }

    /// Replaces the contents of the storage by an older snapshot, as a restore of etcd does that doesn't raise the revision: later
    /// writes get resourceVersions that other writes had before. All watches end.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.state.lock().restore(snapshot);
    }

    /// The same with later revisions than any before, as `etcdutl snapshot restore --bump-revision --mark-compacted` does it.
    pub fn restore_later(&self, snapshot: &Snapshot) {
        self.state.lock().restore_later(snapshot);
    }

    /// What the API server does besides from now on.
    pub fn set_more(&self, more: More) {
        self.state.lock().more = more;
    }

    /// Removes all earlier revisions: a watch from one of them gets 410, half of the time as the response's status and otherwise as an
    /// event `ERROR`, and so does the next page of a list. Open watches go on.
    pub fn compact(&self) {
        let mut state = self.state.lock();
        state.compacted = state.revision;
        state.watched_from = state.revision;
    }

    /// Ends the open watches of a user, as a connection that is closed does.
    pub fn cut_watches(&self, user: &str) {
        self.state.lock().cut(|other| other == user);
    }

    /// The cluster has two API servers, and each watch is served by one of them, chosen by the environment's randomness when it is opened.
    /// The watch cache of the second one is so far behind from now on: its watches show each write so long after it. Lists and single
    /// objects are consistent on both, as those of Kubernetes are that name no resourceVersion.
    pub fn lag(&self, lag: Duration) {
        self.state.lock().lag(lag);
    }

    /// Restarts the API server: all watches and requests end, and watches start only from now on.
    pub fn restart(&self) {
        self.state.lock().restart();
    }

    /// When a watch of a kind by a client had shown it everything up to a revision; `None` if none has.
    pub fn shown(&self, client: &str, plural: &str, revision: u64) -> Option<Timestamp> {
        let state = self.state.lock();
        let shown = state.shown.get(&(client.to_owned(), plural.to_owned()))?;
        shown.iter().find(|(reached, _)| *reached >= revision).map(|(_, time)| *time)
    }

    /// The users of the open watches, sorted by the time of opening.
    pub fn watchers(&self) -> Vec<String> {
        self.state.lock().watches.values().cloned().collect()
    }
}
