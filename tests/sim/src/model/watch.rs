//! Watches: responses whose bodies go on until they end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use http_body::Frame;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tower::BoxError;

use super::Model;
use super::kinds::ModelKind;
use super::link::{Link, Passage};
use super::refusal::Refusal;
use super::request::ParsedRequest;
use super::selector::Selector;
use super::service::{Shown, failed};
use super::store::State;

/// Time between the bookmarks of a watch.
const BOOKMARKS: Duration = Duration::from_secs(60);
/// How long before its end a watch gets its last bookmark.
const BEFORE_END: Duration = Duration::from_secs(2);
/// How long a watch lasts that doesn't say it.
const LASTS: u64 = 1800;

/// An open watch.
pub(super) struct Watcher<L> {
    model: Model,
    link: Arc<L>,
    request: ParsedRequest,
    kind: ModelKind,
    selector: Selector,
    number: u64,
    /// The cluster's second API server serves it, whose watch cache may lag.
    second: bool,
    /// When that one shows the next write.
    next: Option<Instant>,
    /// All writes up to this revision were shown.
    reached: u64,
    /// Objects that existed at the beginning and are still to be shown.
    initial: std::vec::IntoIter<Bytes>,
    changed: watch::Receiver<()>,
    ends: Instant,
    bookmark: Option<Instant>,
    /// The last event was an error.
    ended: bool,
}

impl<L> Drop for Watcher<L> {
    fn drop(&mut self) {
        self.model.state.lock().watches.remove(&self.number);
    }
}

/// What comes next.
enum Next {
    Event(Bytes),
    Wait,
    End,
}

impl<L: Link> Watcher<L> {
    /// Opens a watch. Fails with 410 if its resourceVersion is compacted and the environment's randomness says so; otherwise the
    /// watch shows the error.
    pub(super) fn open(
        model: &Model,
        link: Arc<L>,
        request: ParsedRequest,
        kind: ModelKind,
    ) -> Result<Self, Refusal> {
        let selector =
            Selector::parse(&kind, request.parameter("labelSelector"), request.parameter("fieldSelector"))?;
        let from = request.number("resourceVersion")?.unwrap_or(0);
        let lasts = request.number("timeoutSeconds")?.unwrap_or(LASTS);
        let clock = model.environment.clock;
        let mut state = model.state.lock();
        let expired = from > 0 && from < state.watched_from;
        let refusal = too_old(from, &state);
        if expired && model.environment.random.fraction() < 0.5 {
            return Err(refusal);
        }
        let resource = state.resource(&kind).ok_or_else(|| Refusal::not_found(&kind, ""))?;
        let (mut reached, mut initial) = (from, Vec::new());
        if from == 0 {
            let namespace = request.info.namespace.as_deref();
            let items = state.list(resource, namespace, &selector, state.revision, ("", 0)).items;
            let metadata_only = request.metadata_only;
            let shown = |object: &Arc<Value>| Shown { object, metadata_only, without_kind: false }.text();
            initial = items.iter().map(|object| line("ADDED", &shown(object))).collect();
            reached = state.revision;
        }
        let changed = resource.changed.subscribe();
        state.opened += 1;
        let number = state.opened;
        state.watches.insert(number, request.info.user.clone());
        drop(state);
        let bookmarks = matches!(request.parameter("allowWatchBookmarks"), "true" | "1");
        let watcher = Self {
            model: model.clone(),
            link,
            request,
            kind,
            selector,
            number,
            second: model.environment.random.fraction() < 0.5,
            next: None,
            reached,
            initial: initial.into_iter(),
            changed,
            ends: clock.now() + Duration::from_secs(lasts),
            bookmark: bookmarks.then(|| clock.now() + BOOKMARKS),
            ended: false,
        };
        // A client that watches from a revision has listed the objects of that revision.
        watcher.note(from);
        Ok(watcher.expired(expired.then_some(refusal)))
    }

    /// Notes that the client knows everything up to a revision.
    fn note(&self, revision: u64) {
        let watched = (self.link.client().to_owned(), self.kind.plural.to_owned());
        let time = self.model.environment.clock.wall();
        self.model.state.lock().shown.entry(watched).or_default().push((revision, time));
    }

    /// A watch that only shows this error.
    fn expired(mut self, refusal: Option<Refusal>) -> Self {
        if let Some(refusal) = refusal {
            self.initial = vec![error(&refusal)].into_iter();
            self.ended = true;
        }
        self
    }

    /// The body of the response.
    pub(super) fn body(self) -> impl Stream<Item = Result<Frame<Bytes>, BoxError>> + Send {
        futures::stream::unfold(Some(self), |watcher| async {
            let mut watcher = watcher?;
            let event = watcher.next().await?;
            match watcher.link.event(&watcher.request.info).await {
                Passage::Deliver => {
                    watcher.note(watcher.reached);
                    let last = watcher.ended && watcher.initial.len() == 0;
                    Some((Ok(Frame::data(event)), (!last).then_some(watcher)))
                }
                Passage::Fail => Some((Err(failed()), None)),
                Passage::Status(code) => {
                    let refusal = Refusal::new(code, "the watch was ended");
                    Some((Ok(Frame::data(error(&refusal))), None))
                }
            }
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.initial.next() {
            return Some(first);
        }
        loop {
            self.changed.mark_unchanged();
            match self.look() {
                Next::Event(event) => return Some(event),
                Next::End => return None,
                Next::Wait => {}
            }
            let wake = self.next.or(self.bookmark).unwrap_or(self.ends).min(self.ends);
            // The sender lives as long as the model.
            let _ = timeout_at(wake, self.changed.changed()).await;
        }
    }

    fn look(&mut self) -> Next {
        let now = self.model.environment.clock.now();
        let state = self.model.state.lock();
        let resource = state.resource(&self.kind);
        if !state.watches.contains_key(&self.number) || now >= self.ends {
            return Next::End;
        }
        let namespace = self.request.info.namespace.as_deref();
        let lag = if self.second { state.lag } else { Duration::ZERO };
        self.next = None;
        while let Some(commit) = resource.and_then(|resource| resource.after(self.reached)) {
            let age = self.model.environment.clock.wall().duration_since(commit.time).unsigned_abs();
            if age < lag {
                self.next = Some(now + (lag - age));
                return Next::Wait;
            }
            self.reached = commit.revision;
            let within = namespace.is_none() || namespace == commit.namespace.as_deref();
            let event = within.then(|| commit.event(&self.selector, self.request.metadata_only)).flatten();
            if let Some((kind, object)) = event {
                return Next::Event(line(kind, &object));
            }
        }
        if self.bookmark.is_none_or(|at| now < at) {
            return Next::Wait;
        }
        let last = self.ends - BEFORE_END;
        self.bookmark = (now < last).then(|| (now + BOOKMARKS).min(last));
        // The revision is older than that of the watch after a restore: then there is nothing to say.
        if state.revision < self.reached {
            return Next::Wait;
        }
        self.reached = state.revision;
        let object = json!({"apiVersion": self.kind.api_version(), "kind": self.kind.kind,
            "metadata": {"resourceVersion": state.revision.to_string(), "creationTimestamp": null}});
        let metadata_only = self.request.metadata_only;
        Next::Event(line("BOOKMARK", &Shown { object: &object, metadata_only, without_kind: false }.text()))
    }
}

fn too_old(from: u64, state: &State) -> Refusal {
    Refusal::expired(&format!("too old resource version: {from} ({})", state.watched_from))
}

fn error(refusal: &Refusal) -> Bytes {
    line("ERROR", &refusal.status().to_string())
}

/// An event with an object's JSON.
fn line(kind: &str, object: &str) -> Bytes {
    Bytes::from(format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"))
}
