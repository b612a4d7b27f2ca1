//! What an election asks of the API server.
//!
//! A request that hangs may not keep a leader that has lost its Lease, nor may one that was sent and then forgotten take
//! the Lease after it was given back. So each ends in time, whole answer included; each is finished also when nobody waits
//! for it any more; and from each answer is read until when the Lease is ours.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{Request, Response};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::client::Body;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tower::{BoxError, service_fn};

/// Longest time for a request. The Lease is renewed 10 s before its end, by a write and a read.
const MOST: Duration = Duration::from_secs(4);
/// How long before its end a Lease counts as lost: clocks of machines differ, and others take it by theirs.
const MARGIN: Duration = Duration::from_secs(2);

/// Requests about a Lease in one replica's name. Cheap to clone; all clones are one.
#[derive(Clone)]
pub(super) struct Requests {
    client: Client,
    identity: Arc<str>,
    under_way: TaskTracker,
    until: watch::Sender<Option<Instant>>,
}

impl Requests {
    /// By this client, in the name of `identity`.
    pub(super) fn new(client: Client, identity: &str) -> Self {
        let under_way = TaskTracker::new();
        under_way.close();
        Self { client, identity: identity.into(), under_way, until: watch::Sender::new(None) }
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
        let (parts, body) = self.client.send(request).await?.into_parts();
        let body = body.collect_bytes().await?;
        if parts.status.is_success()
            && let Ok(lease) = serde_json::from_slice::<Lease>(&body)
            && let Some(until) = self.ours_until(lease)
        {
            self.until.send_replace(Some(until));
        }
        Ok(Response::from_parts(parts, Body::from(body)))
    }

    /// Until when a Lease is ours; `None` when it isn't. Its times are by this machine's clock then.
    fn ours_until(&self, lease: Lease) -> Option<Instant> {
        let spec = lease.spec.filter(|spec| spec.holder_identity.as_deref() == Some(&*self.identity))?;
        let renewed = SystemTime::from(spec.renew_time?.0);
        let lasts = Duration::from_secs(u64::try_from(spec.lease_duration_seconds?).ok()?);
        let age = SystemTime::now().duration_since(renewed).unwrap_or_default();
        Some(Instant::now() + lasts.saturating_sub(MARGIN).saturating_sub(age))
    }
}
