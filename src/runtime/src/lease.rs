//! One leader among replicas, by a Lease (`coordination.k8s.io/v1`).
//!
//! The lease itself is `kube-lease-manager`'s. What is added here: a replica that waits is told when the holder gives the
//! lease back, so that a hand-over takes a moment and not the rest of the lease's life; and a holder that can't reach the
//! API server stops at once to call itself leader.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How long a holder that doesn't renew keeps the lease, in seconds; client-go's default.
const DURATION: u64 = 15;
/// How long before its end a holder renews it, in seconds. client-go renews every 2 s.
const GRACE: u64 = 10;
/// Pause after the lease could not be read or written.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether this process leads, now and later. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Leadership {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    leads: AtomicBool,
    gained: Notify,
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

/// Takes part in the election until `drain`, and gives the lease back then.
pub async fn lead(client: Client, args: LeaseArgs, leadership: Leadership, drain: CancellationToken) {
    let name = args.name.clone();
    let released = Arc::new(Notify::new());
    let watching = tokio::spawn(watch_releases(client.clone(), args.clone(), released.clone()));
    while !drain.is_cancelled() {
        let builder = LeaseManagerBuilder::new(client.clone(), &args.name)
            .with_namespace(&args.namespace)
            .with_identity(&args.identity)
            .with_field_manager(format!("{}-{}", args.field_manager, args.identity))
            .with_duration(DURATION)
            .with_grace(GRACE);
        match builder.build().await {
            Ok(manager) => hold(&manager, &name, &leadership, &released, &drain).await,
            Err(error) => warn!(lease = %name, %error, "the lease can't be read; trying on"),
        }
        leadership.set(false, &name);
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = released.notified() => {}
            () = drain.cancelled() => {}
        }
    }
    watching.abort();
}

/// Holds the lease, or waits for it, until something is wrong or the holder gives it back.
async fn hold(
    manager: &LeaseManager,
    name: &str,
    leadership: &Leadership,
    released: &Notify,
    drain: &CancellationToken,
) {
    loop {
        tokio::select! {
            changed = manager.changed() => match changed {
                Ok(leads) => leadership.set(leads, name),
                Err(error) => {
                    warn!(lease = name, %error, "the lease can't be held; trying on");
                    return;
                }
            },
            () = released.notified(), if !leadership.leads() => return,
            () = drain.cancelled() => {
                let led = leadership.leads();
                leadership.set(false, name);
                if led && let Err(error) = manager.release().await {
                    warn!(lease = name, %error, "the lease could not be given back; it ends by itself");
                }
                return;
            }
        }
    }
}

async fn watch_releases(client: Client, args: LeaseArgs, released: Arc<Notify>) {
    let leases: Api<Lease> = Api::namespaced(client, &args.namespace);
    let mut stream = std::pin::pin!(watch_object(leases, &args.name).default_backoff());
    while let Some(event) = stream.next().await {
        let held = |lease: Lease| lease.spec.and_then(|s| s.holder_identity).is_some_and(|h| !h.is_empty());
        if let Ok(lease) = event
            && !lease.is_some_and(held)
        {
            released.notify_one();
        }
    }
}
