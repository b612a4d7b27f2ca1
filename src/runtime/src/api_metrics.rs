//! How fresh each watch is, and what the API server is asked: counted below the clients, where bookmarks can be seen too.
//!
//! A watch that nothing happens on is silent but for bookmarks, and its own library keeps these to itself. So whatever a
//! watch's task reads from the API server counts as a sign of life, byte by byte. Watches are named in the code, so there is
//! one set of them in a process.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use pin_project_lite::pin_project;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tower::{Layer, Service};

use crate::calls::Verb;
use crate::environment::Clock;
use crate::metrics;

type Seconds = Gauge<i64, AtomicI64>;

/// When a watch was last heard of, Unix time.
type Seen = Arc<AtomicI64>;

/// What is known of this process' watches and calls.
static WATCHED: LazyLock<Watched> = LazyLock::new(Watched::default);

tokio::task_local! {
    /// The watch that this task is, by what tells of its last sign of life.
    static CURRENT: Seen;
}

#[derive(Debug, Default)]
struct Watched {
    synced: Family<WatchLabels, Gauge<i64, AtomicI64>>,
    /// Of each name, when each of its watches was heard of last. One that hangs isn't hidden by its neighbours.
    seen: Mutex<BTreeMap<&'static str, Vec<Seen>>>,
    failures: Family<WatchLabels, Counter>,
    requests: Family<RequestLabels, Counter>,
    /// Of each name, how many watches there are and how many of them don't have everything. An agent has one for each namespace.
    watches: Mutex<BTreeMap<&'static str, (i64, i64)>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WatchLabels {
    watch: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: Verb,
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
enum Outcome {
    Ok,
    Refused,
    Failed,
}

fn now() -> i64 {
    Clock::system().unix()
}

/// Has a registry show all of it.
pub(crate) fn register(registry: &mut Registry) {
    metrics::WATCH_SYNCED.register(registry, WATCHED.synced.clone());
    metrics::collect(registry, Oldest);
    metrics::WATCH_FAILURES.register(registry, WATCHED.failures.clone());
    metrics::API_REQUESTS.register(registry, WATCHED.requests.clone());
}

/// The watches for people: whether each has everything, and seconds since its last sign of life.
pub(crate) fn state() -> Value {
    let watches = WATCHED.watches.lock().clone();
    let age = |watch| WATCHED.seen(watch).map(|seen| (now() - seen).max(0));
    watches
        .into_iter()
        .map(|(watch, (count, behind))| {
            let state =
                json!({"watches": count, "synced": behind == 0, "last_received_seconds_ago": age(watch)});
            (watch.to_owned(), state)
        })
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// What is known of one watch, from its beginning to its end.
#[derive(Debug)]
pub(crate) struct Progress {
    name: &'static str,
    synced: bool,
}

impl Progress {
    /// A watch begins, and has nothing yet.
    pub(crate) fn new(name: &'static str) -> Self {
        // A counter that begins at 0 shows its first step too.
        drop(WATCHED.failures.get_or_create(&WatchLabels { watch: name }));
        WATCHED.count(name, 1, 1);
        Self { name, synced: false }
    }

    /// Whether it has everything now.
    pub(crate) fn synced(&mut self, synced: bool) {
        if std::mem::replace(&mut self.synced, synced) != synced {
            WATCHED.count(self.name, 0, if synced { -1 } else { 1 });
        }
    }

    /// A list or watch has failed.
    pub(crate) fn failed(&self) {
        WATCHED.failures.get_or_create(&WatchLabels { watch: self.name }).inc();
    }

    /// Runs what reads the watch.
    pub(crate) async fn follow<T>(name: &'static str, reading: impl Future<Output = T>) -> T {
        let heard = Heard::new(name);
        CURRENT.scope(heard.seen.clone(), reading).await
    }
}

/// One watch's entry among those of its name.
struct Heard {
    name: &'static str,
    seen: Seen,
}

impl Heard {
    /// Its beginning counts as a sign of life: what is silent from then on is as silent as any.
    fn new(name: &'static str) -> Self {
        let seen = Seen::new(AtomicI64::new(now()));
        WATCHED.seen.lock().entry(name).or_default().push(seen.clone());
        Self { name, seen }
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        if let Some(all) = WATCHED.seen.lock().get_mut(self.name) {
            all.retain(|seen| !Arc::ptr_eq(seen, &self.seen));
        }
    }
}

/// Shows of each name the watch that has been silent for longest.
#[derive(Debug)]
struct Oldest;

impl Collector for Oldest {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let shown = Family::<WatchLabels, Seconds>::default();
        let names: Vec<&'static str> = WATCHED.seen.lock().keys().copied().collect();
        for watch in names {
            if let Some(seen) = WATCHED.seen(watch) {
                shown.get_or_create(&WatchLabels { watch }).set(seen);
            }
        }
        metrics::WATCH_SEEN.show(&mut encoder, &shown)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        WATCHED.count(self.name, -1, if self.synced { 0 } else { -1 });
    }
}

impl Watched {
    /// When the watch of this name that has been silent for longest was heard of; `None` when there is none.
    fn seen(&self, watch: &'static str) -> Option<i64> {
        self.seen.lock().get(watch)?.iter().map(|seen| seen.load(Ordering::Relaxed)).min()
    }

    fn count(&self, watch: &'static str, more: i64, behind: i64) {
        let mut watches = self.watches.lock();
        let counts = watches.entry(watch).or_default();
        counts.0 += more;
        counts.1 += behind;
        self.synced.get_or_create(&WatchLabels { watch }).set(i64::from(counts.1 == 0));
    }
}

/// Puts the counting below a client.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CountingLayer;

/// Counts calls and signs of life.
#[derive(Debug, Clone)]
pub(crate) struct Counting<S> {
    inner: S,
}

impl<S> Layer<S> for CountingLayer {
    type Service = Counting<S>;

    fn layer(&self, inner: S) -> Counting<S> {
        Counting { inner }
    }
}

impl<S, A, B> Service<Request<A>> for Counting<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    B: 'static,
{
    type Response = Response<Noticed<B>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let verb = Verb::of(&request);
        let answer = self.inner.call(request);
        async move {
            let answer = answer.await;
            let outcome = match answer.as_ref().map(|answer| answer.status().as_u16()) {
                Ok(..400) => Outcome::Ok,
                Ok(429 | 500..) | Err(_) => Outcome::Failed,
                Ok(400..) => Outcome::Refused,
            };
            WATCHED.requests.get_or_create(&RequestLabels { verb, outcome }).inc();
            answer.map(|answer| answer.map(|body| Noticed { body }))
        }
        .boxed()
    }
}

pin_project! {
    /// An answer's body. Whoever reads it, if it is a watch, is alive.
    #[derive(Debug)]
    pub(crate) struct Noticed<B> {
        #[pin]
        body: B,
    }
}

impl<B: Body> Body for Noticed<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = self.project().body.poll_frame(cx);
        if let Poll::Ready(Some(Ok(_))) = &frame {
            let _ = CURRENT.try_with(|seen| seen.store(now(), Ordering::Relaxed));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body as Bytes;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    fn synced(watch: &'static str) -> i64 {
        WATCHED.synced.get_or_create(&WatchLabels { watch }).get()
    }

    #[tokio::test]
    async fn a_watch_is_alive_while_something_comes_in() {
        let answer = |request: Request<()>| async move {
            let status = if request.uri().path() == "/no" { 403 } else { 200 };
            Ok::<_, std::io::Error>(Response::builder().status(status).body(Bytes::from("bookmark")).unwrap())
        };
        let mut service = CountingLayer.layer(tower::service_fn(answer));
        let mut get = async |path: &str| {
            let request = Request::get(path).body(()).unwrap();
            service.ready().await.unwrap().call(request).await.unwrap().into_body().collect().await.unwrap();
        };
        get("/pods?watch=true").await;
        assert_eq!(WATCHED.seen("test pods"), None, "nobody's");
        Progress::follow("test pods", async {
            let silent = Heard::new("test pods");
            let own = CURRENT.with(Arc::clone);
            own.store(1, Ordering::Relaxed);
            silent.seen.store(2, Ordering::Relaxed);
            assert_eq!(WATCHED.seen("test pods"), Some(1));
            get("/pods?watch=true").await;
            assert!(own.load(Ordering::Relaxed) > 2, "it is alive");
            assert_eq!(WATCHED.seen("test pods"), Some(2), "and doesn't hide the other");
            let mut shown = String::new();
            let mut registry = Registry::default();
            register(&mut registry);
            prometheus_client::encoding::text::encode(&mut shown, &registry).unwrap();
            let line = "watch_last_received_timestamp_seconds{watch=\"test pods\"} 2\n";
            assert!(shown.contains(line), "{shown}");
        })
        .await;
        assert_eq!(WATCHED.seen("test pods"), None, "those that have ended are silent for ever");
        get("/no").await;
        let count = |verb, outcome| WATCHED.requests.get_or_create(&RequestLabels { verb, outcome }).get();
        assert!(count(Verb::Watch, Outcome::Ok) >= 2);
        assert!(count(Verb::Get, Outcome::Refused) >= 1);
    }

    #[test]
    fn a_name_is_synced_when_all_its_watches_are() {
        let mut one = Progress::new("test maps");
        assert_eq!(synced("test maps"), 0);
        one.synced(true);
        assert_eq!(synced("test maps"), 1);
        let two = Progress::new("test maps");
        assert_eq!(synced("test maps"), 0);
        drop(two);
        assert_eq!(synced("test maps"), 1);
        one.synced(false);
        one.synced(false);
        assert_eq!(synced("test maps"), 0);
        drop(one);
        assert_eq!(state()["test maps"]["watches"], 0);
    }
}
