//! Watches: all objects of a kind, listed and then followed for as long as the process serves.
//!
//! A list is taken in pages, consistent with the API server's storage. What is read of a page and of a line of a watch is bounded
//! in bytes, and decoded object by object ([`read`]). A watch that ends goes on from where it was. It begins
//! with a new list when the API server doesn't know that place any more, and also when it was silent for longer than
//! a healthy API server is: so a cluster whose storage was restored from an older snapshot is followed again, although its
//! resourceVersions have gone back. Between failures there are growing pauses of at most [`MAX_PAUSE`].
//!
//! This is our own loop, and not `kube::runtime::watcher`, because [`crate::cache`] has to know at which resourceVersion a list
//! was taken and which one a bookmark has reached, and the library keeps both to itself.

use std::fmt::Debug;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use kube::api::{ListParams, WatchParams};
use kube::{Api, Client, Error, Resource, ResourceExt};
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

pub use read::READ_BYTES;

use read::{Line, Pages, TooLong};

/// How long the API server keeps a watch open, in seconds. It must be less than 295 (the library refuses more).
const LASTS: u32 = 290;
/// Pause after the first failure.
const MIN_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause between two failures, jitter included.
pub const MAX_PAUSE: Duration = Duration::from_secs(15);
/// A watch that goes on for so long without a failure is healthy: its next failure counts as the first.
const HEALTHY: Duration = Duration::from_secs(60);
/// Pause between looks for a kind that the cluster doesn't have.
const ABSENT: Duration = Duration::from_secs(30);
/// How often a watch is opened in vain at one place before everything is listed again.
const OPENINGS: u32 = 5;

/// What a watch shows.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<K> {
    /// A list of all objects begins. What was known stays valid until it is complete.
    ListStarted,
    /// The list shows an object.
    Listed(K),
    /// The list is complete: what it hasn't shown is gone.
    ListCompleted {
        /// The resourceVersion at which the list was taken.
        version: u64,
    },
    /// An object was created or changed.
    Applied(K),
    /// An object was deleted, or doesn't match the watch's selector any more.
    Deleted(K),
    /// Everything up to here has been shown.
    Bookmark {
        /// The resourceVersion that the watch has reached.
        version: u64,
    },
}

/// A watch of the objects of a kind, before it starts.
#[derive(Debug, Clone)]
pub struct Watch<K> {
    api: Api<K>,
    name: &'static str,
    selection: ListParams,
    optional: bool,
    environment: Environment,
}

impl<K> Watch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// A watch of the objects that `api` shows. Metrics, readiness and logs call it `name`.
    pub fn of(api: Api<K>, name: &'static str) -> Self {
        let environment = Environment::system();
        Self { api, name, selection: ListParams::default(), optional: false, environment }
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

    /// The cluster may not have the kind. The watch is ready also when the API server says so, and looks for the kind again
    /// every half a minute.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Its times and the jitter of its pauses come from here.
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

    /// Follows the objects for ever. `ready` is released after the first complete list. `sink` sees every event, and so the
    /// beginning and the end of each list.
    pub async fn follow(self, ready: ReadyHandle, sink: impl FnMut(Event<K>)) {
        let metrics = WatchMetrics::new(self.name);
        metrics.reading(Follower::new(self, &metrics, ready, sink).run()).await;
    }
}

/// What a watch asks for: all objects, unless labels or fields are added.
pub fn watch_config() -> ListParams {
    ListParams::default()
}

/// [`Watch::follow`].
pub async fn follow<K>(
    api: Api<K>,
    config: ListParams,
    what: &'static str,
    ready: ReadyHandle,
    sink: impl FnMut(Event<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    Watch { selection: config, ..Watch::of(api, what) }.follow(ready, sink).await;
}

/// [`Watch::follow`] of an optional kind.
pub async fn follow_optional<K>(
    api: Api<K>,
    config: ListParams,
    what: &'static str,
    ready: ReadyHandle,
    sink: impl FnMut(Event<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    Watch { selection: config, ..Watch::of(api, what) }.optional().follow(ready, sink).await;
}

/// [`Watch::start`].
pub fn watch<K>(
    process: &Process,
    client: &Client,
    what: &'static str,
    config: ListParams,
    sink: impl FnMut(Event<K>) + Send + 'static,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default,
{
    Watch { selection: config, ..Watch::all(client, what) }.start(process, sink);
}

/// [`Watch::start`] of an optional kind.
pub fn watch_optional<K>(
    process: &Process,
    client: &Client,
    what: &'static str,
    config: ListParams,
    sink: impl FnMut(Event<K>) + Send + 'static,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default,
{
    Watch { selection: config, ..Watch::all(client, what) }.optional().start(process, sink);
}

/// Lists all objects once, in pages of bounded size, and shows each. The list is consistent with the API server's storage.
///
/// # Errors
/// As the API server says, or when an object is too long to be read.
pub async fn list<K>(api: &Api<K>, config: ListParams, mut show: impl FnMut(K)) -> Result<(), Error>
where
    K: Resource + Clone + DeserializeOwned,
{
    let (mut pages, mut params) = (Pages::default(), config);
    loop {
        let page = pages.next(api, &params, &mut show).await?;
        match page.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(()),
        }
    }
}

/// Why a list or a watch has ended.
#[derive(Debug)]
enum Failure {
    /// The place that the watch had reached is not known any more, or can't be trusted: everything is listed again.
    Lost(Error),
    /// The API server could not be asked; the watch goes on from where it was.
    Failed(Error),
}

/// A watch that has started.
struct Follower<'m, K, S> {
    watch: Watch<K>,
    ready: Option<ReadyHandle>,
    sink: S,
    metrics: &'m WatchMetrics,
    pages: Pages,
    pauses: ExponentialBackoff,
    last_failure: Option<Instant>,
    /// The last attempt has failed. Each failure in a row says the same; only the first is a warning.
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
            failing: false,
            absent: false,
        }
    }

    async fn run(mut self) {
        loop {
            match self.list().await {
                Ok(place) => self.watch_from(place).await,
                Err(error) if self.watch.optional && is_no_such_kind(&error) => self.no_such_kind().await,
                Err(error) => self.pause(&error).await,
            }
        }
    }

    /// Shows all objects. Returns the resourceVersion that a watch goes on from.
    async fn list(&mut self) -> Result<String, Error> {
        // Where there is no such kind there is nothing to list.
        self.metrics.synced(self.absent);
        let mut params = self.watch.selection.clone();
        (self.sink)(Event::ListStarted);
        loop {
            let sink = &mut self.sink;
            let page =
                self.pages.next(&self.watch.api, &params, |object| sink(Event::Listed(object))).await?;
            match page.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => {
                    let place = page.resource_version.unwrap_or_default();
                    (self.sink)(Event::ListCompleted { version: version(Some(&place)) });
                    self.listed();
                    return Ok(place);
                }
            }
        }
    }

    fn listed(&mut self) {
        self.metrics.synced(true);
        self.absent = false;
        if std::mem::take(&mut self.failing) {
            info!(watch = self.watch.name, "watch restored: all objects were listed");
        }
        if let Some(ready) = self.ready.take() {
            debug!(watch = self.watch.name, "all objects were listed");
            ready.done();
        }
    }

    /// Follows changes from a place on, until that place is lost.
    async fn watch_from(&mut self, mut place: String) {
        let mut openings = 0;
        loop {
            let clock = self.watch.environment.clock;
            let (began, from) = (clock.now(), place.clone());
            let ended = self.changes(&mut place).await;
            openings = if place == from { openings + 1 } else { 0 };
            match ended {
                Ok(()) => {
                    self.failing = false;
                    // The API server ends a watch after minutes. One that ends them all at once isn't asked without a pause.
                    if began.elapsed() < MIN_PAUSE {
                        tokio::time::sleep(MIN_PAUSE).await;
                    }
                    openings = if began.elapsed() > HEALTHY { 0 } else { openings };
                }
                Err(Failure::Lost(error)) => {
                    self.metrics.failed();
                    info!(watch = self.watch.name, %error, "listing all objects again: the watch can't go on from where it was");
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

    /// One watch, from its opening to its end.
    async fn changes(&mut self, place: &mut String) -> Result<(), Failure> {
        let params = WatchParams {
            label_selector: self.watch.selection.label_selector.clone(),
            field_selector: self.watch.selection.field_selector.clone(),
            timeout: Some(LASTS),
            bookmarks: true,
            send_initial_events: false,
        };
        let mut lines = read::open(&self.watch.api, &params, place).await.map_err(failure)?;
        while let Some(line) = lines.next::<K>().await.map_err(failure)? {
            self.failing &= matches!(line, Line::Failed(_));
            let (object, deleted) = match line {
                Line::Applied(object) => (object, false),
                Line::Deleted(object) => (object, true),
                Line::Bookmark(reached) => {
                    *place = reached;
                    (self.sink)(Event::Bookmark { version: version(Some(place)) });
                    continue;
                }
                Line::Failed(error) => return Err(failure(error)),
            };
            *place = object.resource_version().unwrap_or_default();
            (self.sink)(if deleted { Event::Deleted(object) } else { Event::Applied(object) });
        }
        Ok(())
    }

    async fn no_such_kind(&mut self) {
        self.metrics.synced(true);
        if !std::mem::replace(&mut self.absent, true) {
            info!(
                watch = self.watch.name,
                "the cluster does not have this kind; looking for it again every half a minute"
            );
        }
        if let Some(ready) = self.ready.take() {
            ready.done();
        }
        tokio::time::sleep(ABSENT).await;
    }

    async fn pause(&mut self, error: &Error) {
        self.metrics.failed();
        let now = self.watch.environment.clock.now();
        if self.last_failure.is_none_or(|last| now.duration_since(last) > HEALTHY + MAX_PAUSE) {
            self.pauses = pauses(&self.watch.environment.random);
        }
        self.last_failure = Some(now);
        if std::mem::replace(&mut self.failing, true) {
            debug!(watch = self.watch.name, %error, "watch still failing");
        } else {
            warn!(watch = self.watch.name, %error, "watch failed; retrying, and what is known may be out of date until then");
        }
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

/// What an error means for the place that a watch has reached.
fn failure(error: Error) -> Failure {
    let lost = match &error {
        // 410: the place is too old. Anything else that is not about load: the API server doesn't take this place, for
        // example because it is from the future of a storage that was restored.
        Error::Api(status) => {
            !matches!(status.code, 401 | 403 | 429 | 500 | 502 | 503) && !is_timeout(status)
        }
        // A healthy API server would have sent a bookmark.
        // A line that is too long would come again from the same place; a list may show the object in a page of its own.
        error => TimedOut::in_chain(error) == Some(TimedOut::Silence) || TooLong::is(error),
    };
    if lost { Failure::Lost(error) } else { Failure::Failed(error) }
}

/// Whether the API server only took too long. It says 504 also of a resourceVersion that its storage has not reached.
fn is_timeout(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 504 && !causes.into_iter().any(|cause| cause.reason == "ResourceVersionTooLarge")
}

/// A list of all objects of a kind is only ever not found when the API server doesn't serve the kind.
fn is_no_such_kind(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 404)
}

#[cfg(test)]
mod tests;
