//! Faults, and the requests that they are meant for.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::call::{Call, Verb};

/// Which requests a fault applies to: those that have all of this.
#[derive(Debug, Clone, Default)]
pub struct Matching {
    /// Any of these verbs; empty for every verb.
    pub verbs: Vec<Verb>,
    /// The resource with its subresource: `pods`, `tenants/status`.
    pub resource: Option<String>,
    /// The namespace.
    pub namespace: Option<String>,
    /// The object's name.
    pub name: Option<String>,
    /// Part of the client's name.
    pub user_agent: Option<String>,
    /// Part of the path or of the query.
    pub path: Option<String>,
    /// Part of the body, which has no spaces between its tokens.
    pub body: Option<String>,
    /// Whether it is a dry run.
    pub dry_run: Option<bool>,
    /// Only if the API server answers with success. For faults that are about answers.
    pub succeeded: bool,
    /// How many requests; `None` for all.
    pub times: Option<u32>,
}

impl Matching {
    /// Every request.
    pub fn all() -> Self {
        Self::default()
    }

    /// Every request that isn't a dry run and writes this resource.
    pub fn writes(resource: &str) -> Self {
        Self { dry_run: Some(false), ..Self::verbs(&Verb::WRITES, resource) }
    }

    /// Requests with this verb for this resource, dry runs excluded.
    pub fn verb(verb: Verb, resource: &str) -> Self {
        Self { dry_run: Some(false), ..Self::verbs(&[verb], resource) }
    }

    /// The watches of a resource.
    pub fn watches(resource: &str) -> Self {
        Self::verbs(&[Verb::Watch], resource)
    }

    fn verbs(verbs: &[Verb], resource: &str) -> Self {
        Self { verbs: verbs.to_vec(), resource: Some(resource.to_owned()), ..Self::default() }
    }

    /// Only in this namespace.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self }
    }

    /// Only the object with this name.
    #[must_use]
    pub fn name(self, name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..self }
    }

    /// Only with this in the path or query.
    #[must_use]
    pub fn path(self, part: &str) -> Self {
        Self { path: Some(part.to_owned()), ..self }
    }

    /// Only with this in the body.
    #[must_use]
    pub fn body(self, part: &str) -> Self {
        Self { body: Some(part.to_owned()), ..self }
    }

    /// Only if the API server answers with success.
    #[must_use]
    pub fn succeeded(self) -> Self {
        Self { succeeded: true, ..self }
    }

    /// Only so many requests.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self { times: Some(times), ..self }
    }

    /// Whether a request is meant. How many have been already is counted elsewhere.
    pub fn matches(&self, call: &Call) -> bool {
        let same = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        let part = |wanted: &Option<String>, found: &str| {
            wanted.as_deref().is_none_or(|wanted| found.contains(wanted))
        };
        (self.verbs.is_empty() || self.verbs.contains(&call.verb))
            && same(&self.resource, Some(&call.resource))
            && same(&self.namespace, call.namespace.as_deref())
            && same(&self.name, call.name.as_deref())
            && part(&self.user_agent, &call.user_agent)
            && part(&self.path, &call.path)
            && (!self.succeeded || call.status.is_some_and(|status| (200..300).contains(&status)))
            && self.dry_run.is_none_or(|dry_run| dry_run == call.dry_run)
            && (self.body.is_none()
                || part(&self.body, &call.body.as_ref().map(ToString::to_string).unwrap_or_default()))
    }
}

/// What happens to a request or to its answer.
#[derive(Debug, Clone)]
pub enum Fault {
    /// It is forwarded after this time.
    Delay(Duration),
    /// It is forwarded when the fault is removed.
    HoldRequest,
    /// It is forwarded at once, and answered after this time; without a time when the fault is removed.
    HoldAnswer(Option<Duration>),
    /// It is forwarded, and its connection ends without an answer.
    DropAnswer,
    /// It is forwarded, and the answer is a `Status` all the same: a timeout of what has been done.
    ReplaceAnswer {
        /// The HTTP status.
        code: u16,
    },
    /// It is not forwarded; the answer is a `Status`.
    Status {
        /// The HTTP status.
        code: u16,
        /// Seconds in the header `Retry-After`.
        retry_after: Option<u32>,
    },
    /// It is not forwarded, and its connection is reset. Watches that are open are reset too.
    Cut,
    /// It is neither forwarded nor answered, and its connection stays open, also when the fault has been removed: a
    /// client that sets no deadline waits for ever. Watches that are open fall silent for ever.
    BlackHole,
    /// The answer's body comes in pieces of so many bytes, with a pause before each.
    SlowBytes {
        /// Bytes of a piece.
        bytes: usize,
        /// The pause.
        every: Duration,
    },
    /// Lists come in pages of so many objects, whatever the client asks for.
    Pages(u32),
    /// Each event of a watch comes later by this time.
    LagWatch(Duration),
    /// Events of a watch come when the fault is removed. The connection stays open.
    FreezeWatch,
    /// The next event of a watch comes in half, and the answer ends.
    TruncateWatch,
    /// The watch ends as one whose resourceVersion is too old: an event `ERROR` with the code 410.
    Expire,
}

/// Names a fault that was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FaultId(u64);

/// The faults of a proxy.
#[derive(Debug)]
pub(super) struct Rules {
    inner: Mutex<Inner>,
    /// Changes with each change of the faults.
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    rules: BTreeMap<FaultId, (Matching, Fault)>,
    hits: BTreeMap<FaultId, u32>,
    last: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Self { inner: Mutex::default(), changed: watch::channel(0).0 }
    }
}

impl Rules {
    pub(super) fn add(&self, matching: Matching, fault: Fault) -> FaultId {
        let id = {
            let mut inner = self.inner.lock();
            inner.last += 1;
            let id = FaultId(inner.last);
            inner.rules.insert(id, (matching, fault));
            id
        };
        self.notify();
        id
    }

    pub(super) fn remove(&self, id: FaultId) {
        self.inner.lock().rules.remove(&id);
        self.notify();
    }

    pub(super) fn clear(&self) {
        self.inner.lock().rules.clear();
        self.notify();
    }

    pub(super) fn hits(&self, id: FaultId) -> u32 {
        self.inner.lock().hits.get(&id).copied().unwrap_or_default()
    }

    /// The faults that apply to a request from now on and did not before, in the order in which they were added. Each is
    /// counted.
    pub(super) fn take(&self, call: &Call, before: &BTreeMap<FaultId, Fault>) -> Vec<(FaultId, Fault)> {
        self.take_if(call, |id, _| !before.contains_key(&id))
    }

    /// Those that apply to it only because it has succeeded.
    pub(super) fn take_succeeded(&self, call: &Call) -> Vec<(FaultId, Fault)> {
        self.take_if(call, |_, matching| matching.succeeded)
    }

    fn take_if(&self, call: &Call, meant: impl Fn(FaultId, &Matching) -> bool) -> Vec<(FaultId, Fault)> {
        let mut inner = self.inner.lock();
        let Inner { rules, hits, .. } = &mut *inner;
        let mut taken = Vec::new();
        for (id, (matching, fault)) in rules.iter() {
            let hit = hits.entry(*id).or_default();
            let spent = matching.times.is_some_and(|times| *hit >= times);
            if spent || !meant(*id, matching) || !matching.matches(call) {
                continue;
            }
            *hit += 1;
            taken.push((*id, fault.clone()));
        }
        taken
    }

    /// Whether a fault is still there.
    pub(super) fn is_set(&self, id: FaultId) -> bool {
        self.inner.lock().rules.contains_key(&id)
    }

    /// Waits until a fault has been removed.
    pub(super) async fn removed(&self, id: FaultId) {
        let mut changed = self.changed();
        // The sender lives as long as this does.
        while self.is_set(id) && changed.changed().await.is_ok() {}
    }

    /// Notifies of each change of the faults.
    pub(super) fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn notify(&self) {
        self.changed.send_modify(|n| *n += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn call(method: &str, uri: &str, body: &str) -> Call {
        let (parts, ()) = http::Request::builder().method(method).uri(uri).body(()).unwrap().into_parts();
        Call::read(&parts, &Bytes::copy_from_slice(body.as_bytes()))
    }

    #[test]
    fn a_request_has_to_have_all_that_is_asked_for() {
        let create =
            call("POST", "/api/v1/namespaces/n/pods", r#"{"metadata": {"name": "p", "labels": {"a": "b"}}}"#);
        let pods = || Matching::verb(Verb::Create, "pods");
        assert!(Matching::all().matches(&create) && pods().matches(&create));
        assert!(pods().namespace("n").name("p").body(r#"{"a":"b"}"#).path("/n/").matches(&create));
        assert!(!pods().succeeded().matches(&create));
        assert!(pods().succeeded().matches(&Call { status: Some(201), ..create.clone() }));
        assert!(!pods().succeeded().matches(&Call { status: Some(409), ..create.clone() }));
        assert!(!pods().namespace("m").matches(&create));
        assert!(!pods().name("q").matches(&create));
        assert!(!pods().body("c").matches(&create));
        assert!(!pods().path("limit=").matches(&create));
        assert!(!Matching::verb(Verb::Patch, "pods").matches(&create));
        assert!(!Matching::writes("nodes").matches(&create));
        assert!(!pods().matches(&call("POST", "/api/v1/namespaces/n/pods?dryRun=All", "{}")));
    }

    #[test]
    fn a_fault_applies_as_often_as_it_says_and_once_to_a_request() {
        let rules = Rules::default();
        let list = call("GET", "/api/v1/nodes", "");
        let id = rules.add(Matching::all().times(2), Fault::Cut);
        let taken: BTreeMap<_, _> = rules.take(&list, &BTreeMap::new()).into_iter().collect();
        assert!(rules.take(&list, &taken).is_empty(), "it is taken already");
        assert_eq!(rules.take(&list, &BTreeMap::new()).len(), 1);
        assert_eq!((rules.take(&list, &BTreeMap::new()).len(), rules.hits(id)), (0, 2));
        rules.remove(id);
        assert!(!rules.is_set(id));
        assert_eq!(rules.hits(id), 2, "it can still be asked");
    }
}
