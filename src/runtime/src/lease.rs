//! One leader among replicas, by a Lease (`coordination.k8s.io/v1`).
//!
//! A Lease ends when its state has not changed for as long as it lasts, measured by the monotonic clock of the replica that
//! waits for it. The times in a Lease are written for people and other programs, and decide nothing here, so a clock that
//! differs does no harm. Every write has the resourceVersion of the state that it was decided on as its precondition, so nobody
//! takes a Lease that another replica has renewed or taken meanwhile.
//!
//! A leader stops leading as soon as an answer or the watch shows another holder, and before its Lease ends when the API server
//! doesn't answer. It gives the Lease back when the work that it had under way as a leader has finished; a watch tells the other
//! replicas, so a hand-over takes a moment and not the rest of the Lease's duration.
//!
//! This is our own election because those of the libraries compare the times in a Lease with the system's clock, and write
//! without a precondition.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use prometheus_client::metrics::gauge::Gauge;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::cache::version;
use crate::environment::Environment;
use crate::ready::Readiness;
use crate::watch::{Event, Watch};

/// How long a holder that doesn't renew keeps the Lease; client-go's default.
const DURATION: Duration = Duration::from_secs(15);
/// How often the leader renews it. client-go does so every 2 s.
const RENEW: Duration = Duration::from_secs(5);
/// How long before its end a leader stops leading: other replicas measure with other clocks.
const MARGIN: Duration = Duration::from_secs(2);
/// Longest time of a request. It leaves the leader time for two attempts before it has to stop.
const REQUEST: Duration = Duration::from_secs(4);
/// Pause after the Lease could not be read or written.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a replica that shuts down waits for its work as a leader before it gives the Lease back. What takes longer runs
/// beside the next leader's work. It does no harm, because it writes under resourceVersions, but it would be done twice.
const FINISH: Duration = Duration::from_millis(500);
/// How often a replica tries to give the Lease back while others write it.
const ATTEMPTS: usize = 5;

/// Whether this process leads, now and later. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Leadership {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    leads: AtomicBool,
    gained: Notify,
    /// What only the leader may do, as long as it is under way.
    work: TaskTracker,
    gauge: Gauge<i64, AtomicI64>,
}

impl Leadership {
    /// 1 while it leads, else 0.
    pub fn gauge(&self) -> Gauge<i64, AtomicI64> {
        self.inner.gauge.clone()
    }

    /// Whether it leads now.
    pub fn leads(&self) -> bool {
        self.inner.leads.load(Ordering::Acquire)
    }

    /// Waits until it leads.
    pub async fn gained(&self) {
        loop {
            let told = self.inner.gained.notified();
            if self.leads() {
                return;
            }
            told.await;
        }
    }

    /// Work that only the leader may do, and has begun while it led. A leader that goes waits a moment for it.
    pub fn work<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        self.inner.work.track_future(work)
    }

    /// Waits until no such work is under way.
    async fn finished(&self) {
        self.inner.work.close();
        self.inner.work.wait().await;
    }

    fn set(&self, leads: bool, name: &str) {
        if self.inner.leads.swap(leads, Ordering::AcqRel) == leads {
            return;
        }
        self.inner.gauge.set(i64::from(leads));
        if leads {
            info!(lease = name, "started leading");
            self.inner.gained.notify_waiters();
        } else {
            warn!(lease = name, "stopped leading");
        }
    }
}

/// Which lease, and who asks for it.
#[derive(Debug, Clone)]
pub struct LeaseArgs {
    /// Namespace of the lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// A name that no other replica has, nor this one's earlier life.
    pub identity: String,
    /// Field manager of the writes.
    pub field_manager: String,
}

impl LeaseArgs {
    /// Field manager of what is written in this replica's name.
    fn writer(&self) -> String {
        format!("{}-{}", self.field_manager, self.identity)
    }

    fn patch_params(&self) -> PatchParams {
        PatchParams { field_manager: Some(self.writer()), ..PatchParams::default() }
    }
}

/// The Lease as it was seen last.
#[derive(Debug, Clone)]
struct Observed {
    lease: Lease,
    /// Since when its holder and times are as they are, as far as this replica has seen.
    since: Instant,
}

impl Observed {
    fn spec(&self) -> LeaseSpec {
        self.lease.spec.clone().unwrap_or_default()
    }

    fn is_held_by(&self, identity: &str) -> bool {
        self.lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()) == Some(identity)
    }

    /// When it ends unless it is renewed; `None` where nobody holds it.
    fn end(&self) -> Option<Instant> {
        let spec = self.lease.spec.as_ref()?;
        spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())?;
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        Some(self.since + seconds.map_or(DURATION, Duration::from_secs))
    }

    fn is_newer_than(&self, lease: &Lease) -> bool {
        let (own, other) = (&self.lease.metadata, &lease.metadata);
        own.uid == other.uid
            && version(own.resource_version.as_deref()) > version(other.resource_version.as_deref())
    }
}

/// What is known of the Lease.
#[derive(Debug, Clone)]
enum LeaseState {
    /// Nothing is known that could be written over: the Lease has to be read first.
    Unknown,
    /// There is none.
    Absent,
    /// It was seen.
    Observed(Box<Observed>),
}

/// One replica's part in the election.
struct Election {
    leases: Api<Lease>,
    args: LeaseArgs,
    leadership: Leadership,
    environment: Environment,
    state: LeaseState,
    /// Until when this replica may lead.
    until: Option<Instant>,
}

/// Takes part in the election until `drain`, and gives the Lease back then.
pub async fn lead(
    client: Client,
    args: LeaseArgs,
    leadership: Leadership,
    environment: Environment,
    drain: CancellationToken,
) {
    let leases: Api<Lease> = Api::namespaced(client, &args.namespace);
    let (seen, mut shown) = watch::channel(None);
    let watching = tokio::spawn(watch_lease(leases.clone(), args.name.clone(), environment.clone(), seen));
    let mut election =
        Election { leases, args, leadership, environment, state: LeaseState::Unknown, until: None };
    while !drain.is_cancelled() {
        let mut next = election.round().await;
        while election.environment.clock.now() < next {
            let expiry = election.until.unwrap_or(next);
            tokio::select! {
                () = sleep_until(next.min(expiry)) => election.expire(),
                Ok(()) = shown.changed() => {
                    election.observe(shown.borrow_and_update().clone());
                    next = election.due();
                }
                () = drain.cancelled() => break,
            }
        }
    }
    watching.abort();
    election.end().await;
}

/// Shows each state of the Lease that the watch has seen; `None` while there is none.
async fn watch_lease(
    leases: Api<Lease>,
    name: String,
    environment: Environment,
    seen: watch::Sender<Option<Lease>>,
) {
    let ready = Readiness::default().wait_for("lease");
    let sink = |event| match event {
        Event::Listed(lease) | Event::Applied(lease) => drop(seen.send_replace(Some(lease))),
        Event::Deleted(_) => drop(seen.send_replace(None)),
        Event::ListStarted | Event::ListCompleted { .. } | Event::Bookmark { .. } => {}
    };
    let watch = Watch::of(leases, "lease").fields(&format!("metadata.name={name}"));
    watch.environment(&environment).follow(ready, sink).await;
}

impl Election {
    /// Reads or writes the Lease where it is time to. Returns when the next round is due.
    async fn round(&mut self) -> Instant {
        let began = self.environment.clock.now();
        match self.request(began).await {
            Ok(()) => self.due(),
            Err(error) => {
                // A write that has failed may have been committed.
                self.state = LeaseState::Unknown;
                warn!(lease = self.args.name, %error, "failed to read or write the lease; retrying");
                began + PAUSE
            }
        }
    }

    /// When something is to be done about the Lease: renew it, take it, or read it.
    fn due(&self) -> Instant {
        let now = self.environment.clock.now();
        match (&self.state, self.until) {
            (LeaseState::Observed(_), Some(until)) => until - (DURATION - MARGIN) + RENEW,
            (LeaseState::Observed(observed), None) if observed.is_held_by(&self.args.identity) => now,
            (LeaseState::Observed(observed), None) => observed.end().unwrap_or(now),
            (LeaseState::Unknown | LeaseState::Absent, _) => now,
        }
    }

    async fn request(&mut self, began: Instant) -> Result<(), Failure> {
        if matches!(self.state, LeaseState::Unknown) {
            let (leases, name) = (self.leases.clone(), self.args.name.clone());
            let found = self.answer(async move { leases.get_opt(&name).await }).await?;
            self.observe(found);
        }
        let due = self.due();
        if due > self.environment.clock.now() {
            return Ok(());
        }
        let leases = self.leases.clone();
        let patches = matches!(self.state, LeaseState::Observed(_));
        let written = match self.state.clone() {
            LeaseState::Observed(observed) => {
                let (patch, params) = (Patch::Merge(self.claim(Some(&observed))), self.args.patch_params());
                let name = self.args.name.clone();
                self.answer(async move { leases.patch(&name, &params, &patch).await }).await
            }
            LeaseState::Unknown | LeaseState::Absent => {
                let lease = serde_json::from_value(self.claim(None)).map_err(Error::SerdeError)?;
                let field_manager = Some(self.args.writer());
                let params = PostParams { field_manager, ..PostParams::default() };
                self.answer(async move { leases.create(&params, &lease).await }).await
            }
        };
        match written {
            Ok(lease) => {
                self.until = Some(began + DURATION - MARGIN);
                self.observe(Some(lease));
                self.expire();
                Ok(())
            }
            Err(Failure::Api(Error::Api(status)))
                if status.code == 409 || (patches && status.code == 404) =>
            {
                debug!(lease = self.args.name, "the lease was written by others; reading it again");
                self.state = LeaseState::Unknown;
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    /// Waits for an answer, and stops leading meanwhile if the Lease ends.
    async fn answer<T>(&mut self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
        let mut request = std::pin::pin!(timeout(REQUEST, request));
        if let Some(until) = self.until {
            tokio::select! {
                answer = &mut request => return Ok(answer??),
                () = sleep_until(until) => self.expire(),
            }
        }
        Ok(request.await??)
    }

    /// The Lease with this replica as its holder: all of it, or what changes of the one that was observed.
    fn claim(&self, observed: Option<&Observed>) -> Value {
        let now = json!(MicroTime(self.environment.clock.wall()));
        let mut spec = json!({
            "holderIdentity": self.args.identity,
            "leaseDurationSeconds": DURATION.as_secs(),
            "renewTime": now,
        });
        let mut metadata = json!({"name": self.args.name, "namespace": self.args.namespace});
        if let Some(observed) = observed {
            let known = &observed.lease.metadata;
            metadata = json!({"uid": known.uid, "resourceVersion": known.resource_version});
        }
        if observed.is_none_or(|observed| !observed.is_held_by(&self.args.identity)) {
            let before = observed.and_then(|observed| observed.spec().lease_transitions);
            spec["acquireTime"] = now;
            spec["leaseTransitions"] = json!(before.map_or(0, |before| before.saturating_add(1)));
        }
        json!({"metadata": metadata, "spec": spec})
    }

    /// Takes in a state of the Lease. One that is older than what is known is ignored.
    fn observe(&mut self, lease: Option<Lease>) {
        let Some(lease) = lease else {
            self.state = LeaseState::Absent;
            return;
        };
        let mut since = self.environment.clock.now();
        if let LeaseState::Observed(known) = &self.state {
            if known.is_newer_than(&lease) {
                return;
            }
            if known.lease.metadata.uid == lease.metadata.uid && known.lease.spec == lease.spec {
                since = known.since;
            }
        }
        let observed = Observed { lease, since };
        if !observed.is_held_by(&self.args.identity) {
            self.until = None;
        }
        self.state = LeaseState::Observed(Box::new(observed));
        self.expire();
    }

    /// Leads while its Lease lasts.
    fn expire(&mut self) {
        self.until = self.until.filter(|until| *until > self.environment.clock.now());
        self.leadership.set(self.until.is_some(), &self.args.name);
    }

    /// Stops leading, waits a moment for the leader's work, and gives the Lease back.
    async fn end(mut self) {
        self.until = None;
        self.expire();
        if timeout(FINISH, self.leadership.finished()).await.is_err() {
            info!(
                lease = self.args.name,
                "releasing the lease while some of the leader's work is still running"
            );
        }
        if let Err(error) = timeout(REQUEST, self.give_back()).await.map_err(Failure::from).flatten() {
            warn!(lease = self.args.name, %error, "failed to release the lease; it expires by itself");
        }
    }

    /// Gives the Lease back if this replica holds it, whatever has been heard of it. One of another holder stays as it is.
    async fn give_back(&self) -> Result<(), Failure> {
        for _ in 0..ATTEMPTS {
            let Some(lease) = self.leases.get_opt(&self.args.name).await? else { return Ok(()) };
            if lease.spec.and_then(|spec| spec.holder_identity).as_deref() != Some(&self.args.identity) {
                return Ok(());
            }
            let patch = json!({
                "metadata": {"uid": lease.metadata.uid, "resourceVersion": lease.metadata.resource_version},
                "spec": {"holderIdentity": null, "acquireTime": null, "renewTime": null, "leaseDurationSeconds": null},
            });
            match self.leases.patch(&self.args.name, &self.args.patch_params(), &Patch::Merge(&patch)).await {
                Err(Error::Api(status)) if status.code == 409 => {
                    debug!(lease = self.args.name, "the lease was written by others; reading it again");
                }
                Err(error) => return Err(error.into()),
                Ok(_) => {
                    info!(lease = self.args.name, "released the lease");
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Why a request about the Lease has failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Api(#[from] Error),
    #[error("the API server did not answer within {REQUEST:?}")]
    Timeout(#[from] tokio::time::error::Elapsed),
}
