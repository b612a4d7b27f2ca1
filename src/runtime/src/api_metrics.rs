//! Metrics of the API server's answers: the outcome of each request, and how fresh each watch is.
//!
//! A watch without events is silent except for bookmarks, so every frame that a watch's task reads counts as received. It is
//! recorded below the clients, in [`crate::calls`]. The names of watches are constants in the code, so a process has one set of
//! these metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, LazyLock};

use http::StatusCode;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use crate::calls::Verb;
use crate::environment::Clock;
use crate::metrics;

static METRICS: LazyLock<ApiMetrics> = LazyLock::new(ApiMetrics::default);

tokio::task_local! {
    static CURRENT_WATCH: Arc<WatchState>;
}

#[derive(Debug, Default)]
struct ApiMetrics {
    /// The watches of each name. An agent has one for each namespace.
    watches: Mutex<BTreeMap<&'static str, Vec<Arc<WatchState>>>>,
    failures: Family<WatchLabel, Counter>,
    requests: Family<RequestLabels, Counter>,
}

#[derive(Debug)]
struct WatchState {
    /// All objects have been listed.
    synced: AtomicBool,
    /// When the API server sent something last, Unix time.
    last_received: AtomicI64,
}

impl WatchState {
    fn new() -> Self {
        Self { synced: AtomicBool::new(false), last_received: AtomicI64::new(now()) }
    }
}

type WatchLabel = [(&'static str, &'static str); 1];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: Verb,
    outcome: RequestOutcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
enum RequestOutcome {
    Ok,
    Refused,
    Failed,
}

fn now() -> i64 {
    Clock::system().unix()
}

pub(crate) fn register(registry: &mut Registry) {
    metrics::collect(registry, Watches);
    metrics::WATCH_FAILURES.register(registry, METRICS.failures.clone());
    metrics::API_REQUESTS.register(registry, METRICS.requests.clone());
}

/// Counts a request by its status; `None` if there was no response.
pub(crate) fn count_request(verb: Verb, status: Option<StatusCode>) {
    let outcome = match status.map(|status| status.as_u16()) {
        Some(..400) => RequestOutcome::Ok,
        Some(429 | 500..) | None => RequestOutcome::Failed,
        Some(400..) => RequestOutcome::Refused,
    };
    METRICS.requests.get_or_create(&RequestLabels { verb, outcome }).inc();
}

/// Records that the API server has sent something to the watch that this task reads, if it reads one.
pub(crate) fn received() {
    let _ = CURRENT_WATCH.try_with(|watch| watch.last_received.store(now(), Ordering::Relaxed));
}

pub(crate) fn state() -> Value {
    let names: Vec<_> = METRICS.watches.lock().keys().copied().collect();
    let states = names.into_iter().map(|name| {
        let (count, synced, last_received) = METRICS.watches_called(name);
        let age = last_received.map(|at| (now() - at).max(0));
        (name.to_owned(), json!({"watches": count, "synced": synced, "last_received_seconds_ago": age}))
    });
    states.collect::<serde_json::Map<_, _>>().into()
}

impl ApiMetrics {
    /// How many watches have this name, whether all of them are synced, and when the one that has been silent for longest
    /// received something last.
    fn watches_called(&self, name: &str) -> (usize, bool, Option<i64>) {
        let watches = self.watches.lock();
        let all = watches.get(name).map(Vec::as_slice).unwrap_or_default();
        let synced = all.iter().all(|watch| watch.synced.load(Ordering::Relaxed));
        (all.len(), synced, all.iter().map(|watch| watch.last_received.load(Ordering::Relaxed)).min())
    }
}

/// The metrics of one watch, from its start until it is dropped.
#[derive(Debug)]
pub(crate) struct WatchMetrics {
    /// `None`: it isn't exported.
    name: Option<&'static str>,
    state: Arc<WatchState>,
}

impl WatchMetrics {
    /// A watch starts: it isn't synced, and its start counts as received.
    pub(crate) fn new(name: &'static str) -> Self {
        // `rate` and `increase` count the first failure only if the counter was exported with 0 before.
        drop(METRICS.failures.get_or_create(&[("watch", name)]));
        let state = Arc::new(WatchState::new());
        METRICS.watches.lock().entry(name).or_default().push(state.clone());
        Self { name: Some(name), state }
    }

    /// Metrics that nobody sees.
    pub(crate) fn unlisted() -> Self {
        Self { name: None, state: Arc::new(WatchState::new()) }
    }

    pub(crate) fn synced(&self, synced: bool) {
        self.state.synced.store(synced, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self) {
        if let Some(name) = self.name {
            METRICS.failures.get_or_create(&[("watch", name)]).inc();
        }
    }

    /// Wraps the future that reads the watch: what it receives is recorded for this watch.
    pub(crate) fn reading<F: Future>(&self, reading: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT_WATCH.scope(self.state.clone(), reading)
    }
}

impl Drop for WatchMetrics {
    fn drop(&mut self) {
        let Some(name) = self.name else { return };
        if let Some(all) = METRICS.watches.lock().get_mut(name) {
            all.retain(|state| !Arc::ptr_eq(state, &self.state));
        }
    }
}

/// Exports, for each name, whether all watches are synced, and the time of the one that has been silent for longest.
#[derive(Debug)]
struct Watches;

impl Collector for Watches {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (synced, received) = <(Family<WatchLabel, Gauge>, Family<WatchLabel, Gauge>)>::default();
        let names: Vec<_> = METRICS.watches.lock().keys().copied().collect();
        // A process without a client has no watches.
        if names.is_empty() {
            return Ok(());
        }
        for watch in names {
            let (_, all_synced, last_received) = METRICS.watches_called(watch);
            synced.get_or_create(&[("watch", watch)]).set(i64::from(all_synced));
            if let Some(at) = last_received {
                received.get_or_create(&[("watch", watch)]).set(at);
            }
        }
        metrics::WATCH_SYNCED.show(&mut encoder, &synced)?;
        metrics::WATCH_SEEN.show(&mut encoder, &received)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http::{Request, Response};
    use http_body_util::BodyExt;
    use tower::{Service, ServiceExt};

    use super::*;

    fn last_received(name: &str) -> Option<i64> {
        METRICS.watches_called(name).2
    }

    #[tokio::test]
    async fn a_watch_is_fresh_while_it_receives_something() {
        let answer = |request: Request<()>| async move {
            let status = if request.uri().path() == "/no" { 403 } else { 200 };
            Ok::<_, std::io::Error>(Response::builder().status(status).body(Body::from("bookmark")).unwrap())
        };
        let mut service = crate::calls::limited(tower::service_fn(answer));
        let mut get = async |path: &str| {
            let request = Request::get(path).body(()).unwrap();
            service.ready().await.unwrap().call(request).await.unwrap().into_body().collect().await.unwrap();
        };
        get("/pods?watch=true").await;
        assert_eq!(last_received("test pods"), None, "the task reads no watch");
        let (own, silent) = (WatchMetrics::new("test pods"), WatchMetrics::new("test pods"));
        own.state.last_received.store(1, Ordering::Relaxed);
        silent.state.last_received.store(2, Ordering::Relaxed);
        assert_eq!(last_received("test pods"), Some(1));
        own.reading(get("/pods?watch=true")).await;
        assert!(own.state.last_received.load(Ordering::Relaxed) > 2);
        assert_eq!(last_received("test pods"), Some(2), "it doesn't hide the silent one");
        let (mut shown, mut registry) = (String::new(), Registry::default());
        register(&mut registry);
        prometheus_client::encoding::text::encode(&mut shown, &registry).unwrap();
        assert!(shown.contains("watch_last_received_timestamp_seconds{watch=\"test pods\"} 2\n"), "{shown}");
        assert!(shown.contains("watch_synced{watch=\"test pods\"} 0\n"), "{shown}");
        drop((own, silent));
        assert_eq!(last_received("test pods"), None, "watches that have ended don't count");
        get("/no").await;
        let count = |verb, outcome| METRICS.requests.get_or_create(&RequestLabels { verb, outcome }).get();
        assert!(count(Verb::Watch, RequestOutcome::Ok) >= 2);
        assert!(count(Verb::Get, RequestOutcome::Refused) >= 1);
    }

    #[test]
    fn a_name_is_synced_when_all_its_watches_are() {
        let synced = || METRICS.watches_called("test maps").1;
        let one = WatchMetrics::new("test maps");
        assert!(!synced());
        one.synced(true);
        assert!(synced());
        let two = WatchMetrics::new("test maps");
        assert!(!synced());
        drop(two);
        assert!(synced());
        one.synced(false);
        assert!(!synced());
        drop(one);
        assert_eq!(state()["test maps"]["watches"], 0);
    }
}
