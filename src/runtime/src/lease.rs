//! One leader among replicas, by a Lease (`coordination.k8s.io/v1`).
//!
//! The lease itself is `kube-lease-manager`'s. What is added here: a replica that waits is told when the holder gives the
//! lease back, so that a hand-over takes a moment and not the rest of the lease's life; a holder that can't reach the API
//! server stops to call itself leader, at once when it is told and before the lease ends when nobody answers at all; the
//! lease is given back by whoever holds it, when the work that a leader had under way is over; and nobody takes a lease that
//! has changed since it was read, or that only a clock that differs shows as ended.

mod requests;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder};
use prometheus_client::metrics::gauge::Gauge;
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use self::requests::Requests;

/// How long a holder that doesn't renew keeps the lease, in seconds; client-go's default.
const DURATION: u64 = 15;
/// How long before its end a holder renews it, in seconds. client-go renews every 2 s.
const GRACE: u64 = 10;
/// Pause after the lease could not be read or written.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a leader that goes waits for its own work before it gives the lease back. What takes longer goes on beside the
/// next leader's, and does no harm: it writes by resourceVersion. But it would be done twice.
const FINISH: Duration = Duration::from_millis(500);
/// How often giving back is tried while others write the lease.
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
            info!(lease = name, "leading");
            self.inner.gained.notify_waiters();
        } else {
            warn!(lease = name, "not leading any more");
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
}

/// Takes part in the election until `drain`, and gives the lease back then.
pub async fn lead(client: Client, args: LeaseArgs, leadership: Leadership, drain: CancellationToken) {
    let name = args.name.as_str();
    let released = Arc::new(Notify::new());
    let requests = Requests::new(client.clone(), &args.identity);
    let watching = tokio::spawn(watch_releases(client, args.clone(), released.clone(), requests.clone()));
    while !drain.is_cancelled() {
        let builder = LeaseManagerBuilder::new(requests.client(), name)
            .with_namespace(&args.namespace)
            .with_identity(&args.identity)
            .with_field_manager(args.writer())
            .with_duration(DURATION)
            .with_grace(GRACE);
        let manager = tokio::select! {
            manager = builder.build() => manager,
            () = drain.cancelled() => break,
        };
        let free = match manager {
            Ok(manager) => hold(&manager, name, &leadership, requests.until(), &released, &drain).await,
            Err(error) => {
                warn!(lease = name, %error, "the lease can't be read; trying on");
                false
            }
        };
        leadership.set(false, name);
        if free {
            continue;
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = released.notified() => {}
            () = drain.cancelled() => {}
        }
    }
    watching.abort();
    if tokio::time::timeout(FINISH, leadership.finished()).await.is_err() {
        info!(
            lease = name,
            "some of a leader's work is still under way; the lease is given back all the same"
        );
    }
    // An election that was broken off may have asked for the lease.
    requests.finished().await;
    if let Err(error) = give_back(requests.client(), &args).await {
        warn!(lease = name, %error, "the lease could not be given back; it ends by itself");
    }
}

/// Holds the lease, or waits for it, until something is wrong or the holder gives it back. Whether it is free now.
async fn hold(
    manager: &LeaseManager,
    name: &str,
    leadership: &Leadership,
    mut until: watch::Receiver<Option<Instant>>,
    released: &Notify,
    drain: &CancellationToken,
) -> bool {
    let mut held = false;
    // One election from its beginning to its end: broken off halfway it would begin anew with what it knew before.
    let mut changed = std::pin::pin!(manager.changed());
    loop {
        let end = (*until.borrow_and_update()).filter(|end| held && *end > Instant::now());
        leadership.set(end.is_some(), name);
        tokio::select! {
            result = &mut changed => match result {
                Ok(leads) => {
                    held = leads;
                    changed.set(manager.changed());
                }
                Err(error) => {
                    warn!(lease = name, %error, "the lease can't be held; trying on");
                    return false;
                }
            },
            // It has been renewed, or nobody has said so in time.
            Ok(()) = until.changed() => {}
            () = at(end), if end.is_some() => {}
            () = released.notified(), if end.is_none() => return true,
            () = drain.cancelled() => return false,
        }
    }
}

async fn at(end: Option<Instant>) {
    if let Some(end) = end {
        tokio::time::sleep_until(end).await;
    }
}

/// Gives the lease back if it is ours, whatever has been heard of it. Nobody else's is touched.
async fn give_back(client: Client, args: &LeaseArgs) -> kube::Result<()> {
    let leases: Api<Lease> = Api::namespaced(client, &args.namespace);
    let params = PatchParams { field_manager: Some(args.writer()), ..PatchParams::default() };
    for _ in 0..ATTEMPTS {
        let Some(lease) = leases.get_opt(&args.name).await? else { return Ok(()) };
        if lease.spec.and_then(|spec| spec.holder_identity).as_deref() != Some(&args.identity) {
            return Ok(());
        }
        let patch = json!({
            "metadata": {"uid": lease.metadata.uid, "resourceVersion": lease.metadata.resource_version},
            "spec": {"holderIdentity": null, "acquireTime": null, "renewTime": null, "leaseDurationSeconds": null},
        });
        match leases.patch(&args.name, &params, &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                debug!(lease = args.name, "written meanwhile; looking again");
            }
            Err(error) => return Err(error),
            Ok(_) => {
                info!(lease = args.name, "given back");
                return Ok(());
            }
        }
    }
    Ok(())
}

async fn watch_releases(client: Client, args: LeaseArgs, released: Arc<Notify>, requests: Requests) {
    let leases: Api<Lease> = Api::namespaced(client, &args.namespace);
    let mut stream = std::pin::pin!(watch_object(leases, &args.name).default_backoff());
    while let Some(event) = stream.next().await {
        if let Ok(Some(lease)) = &event {
            requests.observe(lease);
        }
        let held = |lease: Lease| lease.spec.and_then(|s| s.holder_identity).is_some_and(|h| !h.is_empty());
        if let Ok(lease) = event
            && !lease.is_some_and(held)
        {
            released.notify_one();
        }
    }
}
