//! One leader among replicas, by a Lease (`coordination.k8s.io/v1`).
//!
//! A Lease expires when it has not changed for its duration, measured by the monotonic clock of the replica that waits for it.
//! The times in a Lease are informational, so clock skew does no harm. Every write has the resourceVersion that was read as its
//! precondition, so no replica takes a Lease that another one has renewed or acquired in the meantime.
//!
//! A leader stops leading as soon as a response or the watch shows another holder, and before its Lease expires when the API
//! server doesn't respond. It releases the Lease when its work as a leader has finished. Other replicas see that by their watch,
//! so a hand-over doesn't take the rest of the Lease's duration.
//!
//! Outrigger has its own implementation because those of the libraries compare the times in a Lease with the system's clock, and
//! write without a precondition.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use outrigger_core::fault;
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

/// How long a holder that doesn't renew keeps the Lease: the default of client-go.
const DURATION: Duration = Duration::from_secs(15);
/// How often the leader renews it. client-go does so every 2 s.
const RENEW: Duration = Duration::from_secs(5);
/// How long before its end a leader stops leading: other replicas measure with other clocks.
const MARGIN: Duration = Duration::from_secs(2);
/// Timeout of a request. It leaves the leader time for two attempts before it has to stop.
const REQUEST: Duration = Duration::from_secs(4);
/// Pause after the Lease could not be read or written.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a replica that shuts down waits for its work as a leader before it releases the Lease. Work that takes longer runs
/// concurrently with the next leader's. That is safe because writes have resourceVersions, but the work would be done twice.
const FINISH: Duration = Duration::from_millis(500);
/// Attempts to release the Lease while others write it.
const ATTEMPTS: usize = 5;

/// Whether this process leads, now and later. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Leadership {
    shared: Arc<SharedLeadership>,
}

/// A time in which a replica leads without a break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term(u64);

#[derive(Debug, Default)]
struct SharedLeadership {
    /// How often it has begun and stopped to lead: odd while it leads.
    changes: AtomicU64,
    /// Whether the election has had an outcome.
    settled: AtomicBool,
    changed: Notify,
    /// Work of the leader that is still running.
    work: TaskTracker,
    gauge: Gauge<i64, AtomicI64>,
}

impl Leadership {
    /// 1 while it leads, else 0.
    pub fn gauge(&self) -> Gauge<i64, AtomicI64> {
        self.shared.gauge.clone()
    }

    /// Whether it leads now.
    pub fn leads(&self) -> bool {
        self.shared.changes.load(Ordering::Acquire) % 2 == 1
    }

    /// Leads from now on, without a Lease.
    #[cfg(any(test, feature = "testing"))]
    pub fn lead_without_lease(&self) {
        self.set(true, "none");
        self.settle();
    }

    /// As after an election in which another replica leads.
    #[cfg(any(test, feature = "testing"))]
    pub fn follow_without_lease(&self) {
        self.set(false, "none");
        self.settle();
    }

    /// Waits until the election has had its first outcome: this replica leads, another one does, or the Lease can't be read or written.
    /// Returns the term if this replica leads.
    pub async fn settled(&self) -> Option<Term> {
        loop {
            let changed = self.shared.changed.notified();
            if self.shared.settled.load(Ordering::Acquire) {
                let changes = self.shared.changes.load(Ordering::Acquire);
                return (changes % 2 == 1).then_some(Term(changes));
            }
            changed.await;
        }
    }

    /// Waits until it leads. Returns the term, which no later one is equal to.
    pub async fn gained(&self) -> Term {
        self.until(|changes| changes % 2 == 1).await
    }

    /// Waits until a term is over, also if another one has begun.
    pub async fn ended(&self, term: Term) {
        self.until(|changes| changes != term.0).await;
    }

    async fn until(&self, is_wanted: impl Fn(u64) -> bool) -> Term {
        loop {
            let changed = self.shared.changed.notified();
            let changes = self.shared.changes.load(Ordering::Acquire);
            if is_wanted(changes) {
                return Term(changes);
            }
            changed.await;
        }
    }

    /// Tracks work that was started while this replica led. A leader that shuts down waits a moment for it.
    pub fn work<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        self.shared.work.track_future(work)
    }

    /// Waits until all of this work has finished.
    async fn finished(&self) {
        self.shared.work.close();
        self.shared.work.wait().await;
    }

    fn settle(&self) {
        if !self.shared.settled.swap(true, Ordering::AcqRel) {
            self.shared.changed.notify_waiters();
        }
    }

    fn set(&self, leads: bool, name: &str) {
        if self.leads() == leads {
            return;
        }
        // Only the election calls this.
        self.shared.changes.fetch_add(1, Ordering::AcqRel);
        self.shared.changed.notify_waiters();
        self.shared.gauge.set(i64::from(leads));
        if leads {
            info!(lease = name, "started leading");
        } else {
            warn!(lease = name, "stopped leading");
        }
    }
}

/// The Lease of an election, and the identity of this replica.
#[derive(Debug, Clone)]
pub struct LeaseArgs {
    /// Namespace of the lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// A name that is unique among all replicas and restarts.
    pub identity: String,
    /// Field manager of the writes.
    pub field_manager: String,
}

impl LeaseArgs {
    /// Field manager of this replica's writes.
    fn writer(&self) -> String {
        format!("{}-{}", self.field_manager, self.identity)
    }

    fn patch_params(&self) -> PatchParams {
        PatchParams { field_manager: Some(self.writer()), ..PatchParams::default() }
    }
}

/// The Lease as it was observed last.
#[derive(Debug, Clone)]
struct Observed {
    lease: Lease,
    /// When this replica first observed its current spec.
    since: Instant,
}

impl Observed {
    fn spec(&self) -> LeaseSpec {
        self.lease.spec.clone().unwrap_or_default()
    }

    fn is_held_by(&self, identity: &str) -> bool {
        self.lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()) == Some(identity)
    }

    /// When it expires unless it is renewed; `None` if it has no holder.
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

/// The state of the Lease as this replica knows it.
#[derive(Debug, Clone)]
enum LeaseState {
    /// The Lease has to be read before it can be written.
    Unknown,
    Absent,
    Observed(Box<Observed>),
}

/// The election from the view of one replica.
struct Election {
    leases: Api<Lease>,
    args: LeaseArgs,
    leadership: Leadership,
    environment: Environment,
    state: LeaseState,
    /// Until when this replica may lead.
    until: Option<Instant>,
}

/// Takes part in the election until `drain` is cancelled, and then releases the Lease.
pub async fn lead(
    client: Client,
    args: LeaseArgs,
    leadership: Leadership,
    environment: Environment,
    drain: CancellationToken,
) {
    let leases: Api<Lease> = Api::namespaced(client, &args.namespace);
    let (observed, mut observations) = watch::channel(None);
    let watching =
        tokio::spawn(watch_lease(leases.clone(), args.name.clone(), environment.clone(), observed));
    let mut election =
        Election { leases, args, leadership, environment, state: LeaseState::Unknown, until: None };
    while !drain.is_cancelled() {
        let mut next = election.round().await;
        while election.environment.clock.now() < next {
            let expiry = election.until.unwrap_or(next);
            tokio::select! {
                biased;
                () = drain.cancelled() => break,
                () = sleep_until(next.min(expiry)) => election.expire(),
                Ok(()) = observations.changed() => {
                    election.observe(observations.borrow_and_update().clone());
                    next = election.due();
                }
            }
        }
    }
    watching.abort();
    election.end().await;
}

/// Sends each state of the Lease that the watch shows; `None` while there is no Lease.
async fn watch_lease(
    leases: Api<Lease>,
    name: String,
    environment: Environment,
    observed: watch::Sender<Option<Lease>>,
) {
    let ready = Readiness::default().wait_for("lease");
    let sink = |event| match event {
        Event::Listed(lease) | Event::Applied(lease) => drop(observed.send_replace(Some(lease))),
        Event::Deleted(_) => drop(observed.send_replace(None)),
        // The election reads the Lease itself when its time is over.
        Event::Unreadable(_) | Event::Failed(_) => {}
        Event::ListStarted | Event::ListCompleted { .. } | Event::Bookmark { .. } => {}
    };
    let watch = Watch::of(leases, "lease").fields(&format!("metadata.name={name}"));
    watch.environment(&environment).follow(ready, sink).await;
}

impl Election {
    /// Reads or writes the Lease if that is due. Returns when the next round is due.
    async fn round(&mut self) -> Instant {
        let began = self.environment.clock.now();
        match self.request(began).await {
            Ok(()) => {
                if !matches!(self.state, LeaseState::Unknown) {
                    self.leadership.settle();
                }
                self.due()
            }
            Err(error) => {
                self.leadership.settle();
                // A failed write may have been committed.
                self.state = LeaseState::Unknown;
                warn!(lease = self.args.name, %error, "failed to read or write the lease; retrying");
                began + PAUSE
            }
        }
    }

    /// When the Lease is to be renewed, acquired or read.
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
                debug!(lease = self.args.name, "lease was written by others; reading it again");
                self.state = LeaseState::Unknown;
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    /// Waits for a response, and stops leading if the Lease expires in the meantime.
    async fn answer<T>(&mut self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
        let mut request = std::pin::pin!(timeout(REQUEST, request));
        if let Some(until) = self.until {
            tokio::select! {
                biased;
                answer = &mut request => return Ok(answer??),
                () = sleep_until(until) => self.expire(),
            }
        }
        Ok(request.await??)
    }

    /// The Lease with this replica as its holder: the whole object, or a patch of the observed one.
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

    /// Records a state of the Lease. A state that is older than the known one is ignored.
    fn observe(&mut self, lease: Option<Lease>) {
        let Some(lease) = lease else {
            self.state = LeaseState::Absent;
            // Somebody has deleted it: whoever creates it leads.
            self.until = None;
            self.expire();
            return;
        };
        let mut since = self.environment.clock.now();
        if let LeaseState::Observed(known) = &self.state {
            if known.is_newer_than(&lease) {
                return;
            }
            let same = known.lease.spec == lease.spec || fault("renewed-lease-expires");
            if known.lease.metadata.uid == lease.metadata.uid && same {
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

    /// Updates whether this replica leads: until its Lease expires.
    fn expire(&mut self) {
        self.until = self.until.filter(|until| *until > self.environment.clock.now());
        self.leadership.set(self.until.is_some(), &self.args.name);
    }

    /// Stops leading, waits a moment for the leader's work, and releases the Lease.
    async fn end(mut self) {
        self.until = None;
        self.expire();
        if timeout(FINISH, self.leadership.finished()).await.is_err() {
            info!(
                lease = self.args.name,
                "releasing the lease while some of the leader's work is still running"
            );
        }
        if let Err(error) = timeout(REQUEST, self.release()).await.map_err(Failure::from).flatten() {
            warn!(lease = self.args.name, %error, "failed to release the lease; it expires by itself");
        }
    }

    /// Reads the Lease, and releases it if this replica holds it.
    async fn release(&self) -> Result<(), Failure> {
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
                    debug!(lease = self.args.name, "lease was written by others; reading it again");
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
