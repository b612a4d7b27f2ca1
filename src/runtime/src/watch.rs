//! Watches: all objects of a kind, listed and then followed for as long as the process serves.
//!
//! A list is read in pages and is consistent with the API server's storage. Pages and lines of a watch are limited in bytes, and
//! decoded object by object (`read`). A watch that ends continues from its last resourceVersion. All objects are listed again
//! when the API server no longer has this resourceVersion, and when the watch was silent for longer than it is with a
//! healthy API server: so the watch recovers when etcd is restored from an older snapshot, although resourceVersions have gone
//! back. The pauses after failures grow up to [`MAX_PAUSE`]. An object that can't be decoded stops nothing (`unreadable`).
//!
//! `kube::runtime::watcher` doesn't fit, because [`crate::cache`] needs the resourceVersions of lists and bookmarks, which the
//! library doesn't expose.

use std::fmt::Debug;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::{ListParams, WatchParams};
use kube::{Api, Client, Error, Resource, ResourceExt};
use outrigger_core::fault;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::api_metrics::WatchMetrics;
use crate::cache::version;
use crate::calls::TimedOut;
use crate::environment::{Environment, Random};
use crate::process::Process;
use crate::ready::ReadyHandle;

mod read;
mod unreadable;

pub use read::READ_BYTES;
pub use unreadable::Unreadable;

use read::{Decoded, Line, Pages, TooLong};
use unreadable::LeftOut;

/// Timeout of a watch request at the API server, in seconds. kube requires less than 295.
const LASTS: u32 = 290;
/// Pause after the first failure.
const MIN_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause after a failure, jitter included.
pub const MAX_PAUSE: Duration = Duration::from_secs(15);
/// Time without a failure after which the next failure counts as the first.
const HEALTHY: Duration = Duration::from_secs(60);
/// Pause between lists of a kind that the cluster doesn't have.
const ABSENT: Duration = Duration::from_secs(30);
/// Number of watch requests without progress after which all objects are listed again.
const OPENINGS: u32 = 5;

/// An event of a watch.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<K> {
    /// A list of all objects starts. Known objects stay valid until it is complete.
    ListStarted,
    /// An object of the list.
    Listed(K),
    /// The list is complete: known objects that it didn't contain no longer exist.
    ListCompleted {
        /// The resourceVersion of the list.
        version: u64,
    },
    /// An object was created or changed.
    Applied(K),
    /// An object was deleted, or no longer matches the watch's selector.
    Deleted(K),
    /// An object of the list, or one that was changed or deleted, can't be decoded. What is known of it stays until it is deleted.
    Unreadable(Unreadable),
    /// All events up to this resourceVersion have been sent.
    Bookmark {
        /// The resourceVersion that the watch has reached.
        version: u64,
    },
    /// A request has failed, and is repeated after a pause. Known objects stay valid, and may be stale until the next list is complete or
    /// another event than of a list comes.
    Failed(Failed),
}

impl<K> Event<K> {
    /// Whether the process may not list or watch the objects (status 403); `None` where the event says nothing about its rights. A watch
    /// that goes on from its resourceVersion lists nothing, and has its right again.
    pub fn refused(&self) -> Option<bool> {
        match self {
            Self::Failed(failed) => (failed.status == Some(403)).then_some(true),
            Self::ListStarted | Self::Listed(_) | Self::Unreadable(_) => None,
            _ => Some(false),
        }
    }
}

/// Why a request of a watch has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// The status of the API server's response; `None` if there was none, or none that could be used.
    pub status: Option<u16>,
    /// The error, for people.
    pub message: String,
}

impl From<&Error> for Failed {
    fn from(error: &Error) -> Self {
        match error {
            Error::Api(status) => Self { status: Some(status.code), message: status.message.clone() },
            error => Self { status: None, message: error.to_string() },
        }
    }
}

/// Builder of a watch of the objects of a kind.
#[derive(Debug, Clone)]
pub struct Watch<K> {
    api: Api<K>,
    name: &'static str,
    selection: ListParams,
    optional: bool,
    complete: bool,
    unlisted: bool,
    environment: Environment,
}

impl<K> Watch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// A watch of the objects of `api`. `name` is its name in metrics, readiness and logs.
    pub fn of(api: Api<K>, name: &'static str) -> Self {
        let environment = Environment::system();
        let (selection, optional, complete, unlisted) = Default::default();
        Self { api, name, selection, optional, complete, unlisted, environment }
    }

    /// A watch of all objects of a kind.
    pub fn all(client: &Client, name: &'static str) -> Self
    where
        K::DynamicType: Default,
    {
        Self::of(Api::all(client.clone()), name)
    }

    /// Only objects with these labels: a label selector as the API server reads it.
    #[must_use]
    pub fn labels(mut self, selector: &str) -> Self {
        self.selection.label_selector = Some(selector.to_owned());
        self
    }

    /// Only objects with these fields: a field selector as the API server reads it.
    #[must_use]
    pub fn fields(mut self, selector: &str) -> Self {
        self.selection.field_selector = Some(selector.to_owned());
        self
    }

    /// The cluster may not have the kind. Then the watch is ready too, and lists again every 30 s.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Companions are deleted, or slots given away, for objects that the first list lacks: with one that can't be decoded it fails, and is
    /// made again.
    #[must_use]
    pub fn complete(mut self) -> Self {
        self.complete = true;
        self
    }

    /// The watch isn't the process's own, but has the rights of one of its users: it isn't in the metrics of watches, and its failures,
    /// which the user's rights may cause, aren't logged as warnings. The sink receives them.
    #[must_use]
    pub fn unlisted(mut self) -> Self {
        self.unlisted = true;
        self
    }

    /// Sets the source of time and randomness.
    #[must_use]
    pub fn environment(mut self, environment: &Environment) -> Self {
        self.environment = environment.clone();
        self
    }

    /// Follows the objects for as long as the process serves, which becomes ready only after the first complete list.
    pub fn start(self, process: &Process, sink: impl FnMut(Event<K>) + Send + 'static) {
        let ready = process.readiness.wait_for(self.name);
        process.spawn(self.name, self.environment(&process.environment).follow(ready, sink));
    }

    /// Follows the objects for ever. `ready` is done after the first complete list. `sink` receives all events.
    pub async fn follow(self, ready: ReadyHandle, sink: impl FnMut(Event<K>)) {
        let metrics = if self.unlisted { WatchMetrics::unlisted() } else { WatchMetrics::new(self.name) };
        metrics.reading(Follower::new(self, &metrics, ready, sink).run()).await;
    }
}

/// Lists all objects once, in pages of bounded size, and passes each to `show`. The list is consistent with the API server's
/// storage.
///
/// # Errors
/// If the API server returns an error, or an object is too long to be read or can't be decoded: who asks believes that there are no others.
pub async fn list<K>(api: &Api<K>, config: ListParams, mut show: impl FnMut(K)) -> Result<(), Error>
where
    K: Resource + Clone + DeserializeOwned,
{
    let (mut pages, mut params) = (Pages::default(), config);
    let mut show = |object: Decoded<K>| -> Result<(), Error> {
        show(object?);
        Ok(())
    };
    loop {
        let page = pages.next(api, &params, &mut show).await?;
        match page.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(()),
        }
    }
}

#[derive(Debug)]
enum Failure {
    /// The watch can't continue from its resourceVersion, or may have lost events: all objects are listed again.
    Lost(Error),
    /// The request has failed: the watch continues from its resourceVersion.
    Failed(Error),
}

struct Follower<'m, K, S> {
    watch: Watch<K>,
    ready: Option<ReadyHandle>,
    sink: S,
    metrics: &'m WatchMetrics,
    pages: Pages,
    pauses: ExponentialBackoff,
    last_failure: Option<Instant>,
    left_out: LeftOut,
    /// The last attempt has failed. Only the first of several failures in a row is logged as a warning.
    failing: bool,
    /// The cluster doesn't have the kind.
    absent: bool,
}

impl<'m, K, S> Follower<'m, K, S>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    S: FnMut(Event<K>),
{
    fn new(watch: Watch<K>, metrics: &'m WatchMetrics, ready: ReadyHandle, sink: S) -> Self {
        Self {
            metrics,
            pauses: pauses(&watch.environment.random),
            watch,
            ready: Some(ready),
            sink,
            pages: Pages::default(),
            last_failure: None,
            left_out: LeftOut::default(),
            failing: false,
            absent: false,
        }
    }

    async fn run(mut self) {
        loop {
            match self.list().await {
                Ok(version) => {
                    let listed = self.watch.environment.clock.now();
                    self.watch_from(version).await;
                    // A watch that can't continue soon after each list would list all the time.
                    if listed.elapsed() < HEALTHY {
                        self.metrics.synced(false);
                        self.sleep().await;
                    }
                }
                Err(error) if self.watch.optional && is_no_such_kind(&error) => self.no_such_kind().await,
                Err(error) => self.pause(&error).await,
            }
        }
    }

    /// Lists all objects. Returns the resourceVersion from which a watch continues.
    async fn list(&mut self) -> Result<String, Error> {
        // A cluster without the kind has no objects of it.
        self.metrics.synced(self.absent);
        let mut params = self.watch.selection.clone();
        let mut shown = None;
        (self.sink)(Event::ListStarted);
        loop {
            let (sink, left_out, name) = (&mut self.sink, &mut self.left_out, self.watch.name);
            let fails = self.watch.complete && self.ready.is_some();
            let show = |object: Decoded<K>| -> Result<(), Error> {
                match object {
                    Ok(object) => sink(Event::Listed(object)),
                    Err(object) if fails => return Err(object.into()),
                    Err(object) => {
                        left_out.log(name, &object);
                        sink(Event::Unreadable(object));
                    }
                }
                Ok(())
            };
            let page = self.pages.next(&self.watch.api, &params, show).await;
            let is_next = params.continue_token.is_some();
            let page = match page {
                Err(_) if is_next && fault("failed-page-ends-a-list") => {
                    ListMeta { resource_version: shown.take(), ..ListMeta::default() }
                }
                page => page?,
            };
            match page.continue_.filter(|token| !token.is_empty()) {
                Some(token) => (shown, params.continue_token) = (page.resource_version, Some(token)),
                None => {
                    let listed = page.resource_version.unwrap_or_default();
                    (self.sink)(Event::ListCompleted { version: version(Some(&listed)) });
                    self.listed();
                    return Ok(listed);
                }
            }
        }
    }

    fn listed(&mut self) {
        self.metrics.synced(true);
        self.absent = false;
        if std::mem::take(&mut self.failing) && !self.watch.unlisted {
            info!(watch = self.watch.name, "watch restored: all objects were listed");
        }
        if let Some(ready) = self.ready.take() {
            debug!(watch = self.watch.name, "all objects were listed");
            ready.done();
        }
    }

    /// Follows changes from a resourceVersion on, until the watch can't continue.
    async fn watch_from(&mut self, mut reached: String) {
        let mut openings = 0;
        loop {
            let clock = self.watch.environment.clock;
            let (began, from) = (clock.now(), reached.clone());
            let ended = self.changes(&mut reached).await;
            openings = if reached == from { openings + 1 } else { 0 };
            match ended {
                Ok(()) => {
                    self.failing = false;
                    // Normally watches last for minutes. If the API server ends them at once, there is a pause between requests.
                    if began.elapsed() < MIN_PAUSE {
                        tokio::time::sleep(MIN_PAUSE).await;
                    }
                    openings = if began.elapsed() > HEALTHY { 0 } else { openings };
                }
                Err(Failure::Lost(error)) => {
                    self.metrics.failed();
                    info!(watch = self.watch.name, %error, "listing all objects again: the watch can't continue");
                    return;
                }
                Err(Failure::Failed(error)) => self.pause(&error).await,
            }
            if openings >= OPENINGS {
                info!(watch = self.watch.name, "listing all objects again: the watch makes no progress");
                return;
            }
        }
    }

    /// One watch request, until it ends.
    async fn changes(&mut self, reached: &mut String) -> Result<(), Failure> {
        let params = WatchParams {
            label_selector: self.watch.selection.label_selector.clone(),
            field_selector: self.watch.selection.field_selector.clone(),
            timeout: Some(LASTS),
            bookmarks: true,
            send_initial_events: false,
        };
        let mut lines = read::open(&self.watch.api, &params, reached).await.map_err(failure)?;
        if self.failing {
            // The failure is over, although the first line may come a minute later.
            (self.sink)(Event::Bookmark { version: version(Some(reached)) });
        }
        while let Some(line) = lines.next::<K>().await.map_err(failure)? {
            self.failing &= matches!(line, Line::Failed(_));
            let (object, deleted) = match line {
                Line::Applied(object) => (object, false),
                Line::Deleted(object) => (object, true),
                Line::Bookmark(bookmark) => {
                    *reached = bookmark;
                    (self.sink)(Event::Bookmark { version: version(Some(reached)) });
                    continue;
                }
                Line::Failed(error) => return Err(failure(error)),
            };
            let (version, event) = match object {
                Ok(object) if deleted => (object.resource_version(), Event::Deleted(object)),
                Ok(object) => (object.resource_version(), Event::Applied(object)),
                Err(object) => {
                    self.left_out.log(self.watch.name, &object);
                    let version = Some(object.resource_version.clone());
                    (version, Event::Unreadable(Unreadable { deleted, ..object }))
                }
            };
            *reached = version.unwrap_or_default();
            (self.sink)(event);
        }
        Ok(())
    }

    async fn no_such_kind(&mut self) {
        self.metrics.synced(true);
        if !std::mem::replace(&mut self.absent, true) {
            info!(watch = self.watch.name, "the cluster does not have this kind; checking every 30 s");
        }
        if let Some(ready) = self.ready.take() {
            ready.done();
        }
        tokio::time::sleep(ABSENT).await;
    }

    async fn pause(&mut self, error: &Error) {
        self.metrics.failed();
        (self.sink)(Event::Failed(error.into()));
        if std::mem::replace(&mut self.failing, true) || self.watch.unlisted {
            debug!(watch = self.watch.name, %error, "watch still failing");
        } else {
            warn!(watch = self.watch.name, %error, "watch failed; retrying, cached objects may be stale until then");
        }
        self.sleep().await;
    }

    /// Sleeps until the next request after a failure: longer each time, until there is none for a while.
    async fn sleep(&mut self) {
        let now = self.watch.environment.clock.now();
        if self.last_failure.is_none_or(|last| now.duration_since(last) > HEALTHY + MAX_PAUSE) {
            self.pauses = pauses(&self.watch.environment.random);
        }
        self.last_failure = Some(now);
        tokio::time::sleep(self.pauses.next().unwrap_or(MAX_PAUSE).min(MAX_PAUSE)).await;
    }
}

fn pauses(random: &Random) -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(MIN_PAUSE)
        .with_max_delay(MAX_PAUSE)
        .with_factor(2.0)
        .with_jitter()
        .with_jitter_seed(random.seed())
        .without_max_times()
        .build()
}

/// Whether a watch can continue from its resourceVersion after this error.
fn failure(error: Error) -> Failure {
    let lost = match &error {
        // 410: the resourceVersion is too old. Other errors that aren't about load or permissions: the API server doesn't accept
        // the resourceVersion, for example because it is newer than a restored storage.
        Error::Api(status) => {
            !matches!(status.code, 401 | 403 | 429 | 500 | 502 | 503) && !is_timeout(status)
        }
        // Silence: a healthy API server would have sent a bookmark. A line that is too long would be sent again from the same
        // resourceVersion, but a list can read the object in a page of its own.
        error => TimedOut::in_chain(error) == Some(TimedOut::Silence) || TooLong::is(error),
    };
    if lost { Failure::Lost(error) } else { Failure::Failed(error) }
}

/// Whether it is a timeout of the API server, which also uses the status 504 for a resourceVersion that it hasn't reached.
fn is_timeout(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 504 && !causes.into_iter().any(|cause| cause.reason == "ResourceVersionTooLarge")
}

/// Whether the API server doesn't serve the kind: only then listing all objects is not found.
fn is_no_such_kind(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 404)
}

#[cfg(test)]
mod tests;
