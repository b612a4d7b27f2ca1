//! What an election asks of the API server.
//!
//! A request that hangs may not keep a leader that has lost its Lease, nor may one that was sent and then forgotten take
//! the Lease after it was given back. So each ends in time, whole answer included; each is finished also when nobody waits
//! for it any more; and from each answer is read until when the Lease is ours.
//!
//! The election's library writes without a precondition, and compares the times in a Lease with its own clock. Both is mended
//! here. A write is only carried out over the Lease that was read before it: otherwise a Lease that has ended, and that
//! another replica has taken since, would be taken from that one. And the time of another's renewal is told as the time at
//! which it was first seen here: so a Lease ends when it has not been renewed for as long as it lasts by this machine's clock,
//! whatever the holder's clock says.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Bytes;
use http::header::ACCEPT;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, response};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tower::{BoxError, service_fn};

/// Longest time for a request. The Lease is renewed 10 s before its end, by a write and a read.
const MOST: Duration = Duration::from_secs(4);
/// How long before its end a Lease counts as lost: clocks of machines differ, and others take it by theirs.
const MARGIN: Duration = Duration::from_secs(2);

/// How often a write is made again because something about the Lease has changed that is not its state.
const ATTEMPTS: usize = 3;

/// Requests about a Lease in one replica's name. Cheap to clone; all clones are one.
#[derive(Clone)]
pub(super) struct Requests {
    client: Client,
    identity: Arc<str>,
    under_way: TaskTracker,
    until: watch::Sender<Option<Instant>>,
    /// The Lease as the election knows it.
    known: Arc<Mutex<Option<Lease>>>,
    /// What was seen last of another's renewals, and since when.
    seen: Arc<Mutex<Option<(LeaseSpec, Instant)>>>,
}

impl Requests {
    /// By this client, in the name of `identity`.
    pub(super) fn new(client: Client, identity: &str) -> Self {
        let under_way = TaskTracker::new();
        under_way.close();
        let until = watch::Sender::new(None);
        let (known, seen) = (Arc::default(), Arc::default());
        Self { client, identity: identity.into(), under_way, until, known, seen }
    }

    /// A client that asks in this way.
    pub(super) fn client(&self) -> Client {
        let this = self.clone();
        let namespace = this.client.default_namespace().to_owned();
        Client::new(service_fn(move |request| this.clone().finish(request)), namespace)
    }

    /// Until when the Lease is ours, as far as answers have said: not before the first has.
    pub(super) fn until(&self) -> watch::Receiver<Option<Instant>> {
        self.until.subscribe()
    }

    /// Waits until nothing is under way.
    pub(super) async fn finished(&self) {
        self.under_way.wait().await;
    }

    async fn finish(self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let tracker = self.under_way.clone();
        tracker.spawn(tokio::time::timeout(MOST, self.ask(request))).await??
    }

    async fn ask(self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        let (answer, text) = if parts.method == Method::PATCH {
            self.write(parts, &body).await?
        } else {
            self.send(parts, body).await?
        };
        let lease = answer.status.is_success().then(|| serde_json::from_slice::<Lease>(&text).ok()).flatten();
        // Watches and lists are not answered with a Lease.
        let Some(lease) = lease.filter(|lease| lease.metadata.name.is_some()) else {
            return Ok(Response::from_parts(answer, Body::from(text)));
        };
        if let Some(until) = self.ours_until(&lease) {
            self.until.send_replace(Some(until));
        }
        let told = self.by_own_clock(lease.clone());
        *self.known.lock() = Some(lease);
        Ok(Response::from_parts(answer, Body::from(serde_json::to_vec(&told)?)))
    }

    async fn send(&self, parts: Parts, body: Bytes) -> Result<(response::Parts, Bytes), BoxError> {
        let request = Request::from_parts(parts, Body::from(body.to_vec()));
        let (answer, body) = self.client.send(request).await?.into_parts();
        Ok((answer, body.collect_bytes().await?))
    }

    /// Carries a patch out over the Lease as the election knows it: also where somebody has written something else about it
    /// since, a label, say.
    async fn write(&self, parts: Parts, body: &[u8]) -> Result<(response::Parts, Bytes), BoxError> {
        let mut patch: Value = serde_json::from_slice(body)?;
        let known = self.known.lock().clone();
        let Some(mut known) = known.filter(|_| patch.pointer("/metadata/resourceVersion").is_none()) else {
            return self.send(parts, Bytes::copy_from_slice(body)).await;
        };
        let mut attempt = 1;
        loop {
            patch["metadata"]["resourceVersion"] = json!(known.metadata.resource_version);
            let body = Bytes::from(serde_json::to_vec(&patch)?);
            let (answer, text) = self.send(parts.clone(), body).await?;
            if answer.status != StatusCode::CONFLICT || attempt == ATTEMPTS {
                return Ok((answer, text));
            }
            let mut read = Request::get(parts.uri.path()).body(())?.into_parts().0;
            read.headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
            let (_, found) = self.send(read, Bytes::new()).await?;
            let Ok(found) = serde_json::from_slice::<Lease>(&found) else { return Ok((answer, text)) };
            self.observe(&found);
            if found.metadata.uid != known.metadata.uid || found.spec != known.spec {
                if self.ours_until(&found).is_none() {
                    // The Lease has no holder or another one, so this replica has lost it.
                    self.until.send_replace(None);
                }
                return Ok((answer, text));
            }
            known = found;
            attempt += 1;
        }
    }

    /// Takes in what somebody has seen of the Lease: the sooner another's renewal is seen, the sooner its end is.
    pub(super) fn observe(&self, lease: &Lease) {
        self.first_seen(lease);
    }

    /// Since when another's Lease is as it is, as far as was seen here; `None` for one that isn't another's.
    fn first_seen(&self, lease: &Lease) -> Option<Instant> {
        let spec = lease.spec.as_ref()?;
        let mut seen = self.seen.lock();
        if spec.renew_time.is_none() || spec.holder_identity.as_deref() == Some(&*self.identity) {
            *seen = None;
            return None;
        }
        match &*seen {
            Some((known, since)) if known == spec => Some(*since),
            _ => {
                let now = Instant::now();
                *seen = Some((spec.clone(), now));
                Some(now)
            }
        }
    }

    /// A Lease with the time of another's renewal by this machine's clock.
    fn by_own_clock(&self, mut lease: Lease) -> Lease {
        if let Some(since) = self.first_seen(&lease)
            && let Some(spec) = &mut lease.spec
            && let Some(renewed) = SystemTime::now().checked_sub(since.elapsed())
        {
            spec.renew_time = Timestamp::try_from(renewed).ok().map(MicroTime);
        }
        lease
    }

    /// Until when a Lease is ours; `None` when it isn't. Its times are by this machine's clock then.
    fn ours_until(&self, lease: &Lease) -> Option<Instant> {
        let spec =
            lease.spec.as_ref().filter(|spec| spec.holder_identity.as_deref() == Some(&*self.identity))?;
        let renewed = SystemTime::from(spec.renew_time.as_ref()?.0);
        let lasts = Duration::from_secs(u64::try_from(spec.lease_duration_seconds?).ok()?);
        let age = SystemTime::now().duration_since(renewed).unwrap_or_default();
        Some(Instant::now() + lasts.saturating_sub(MARGIN).saturating_sub(age))
    }
}
