//! Makes the reservations that admitted objects need: the slots of guests, and the groups and nodes of Machines. All replicas
//! share one ledger of each, an object in the cluster that is written in the version it was read in, so that of two writers one
//! starts over.
//!
//! Only guests and Machines wait for the API server here.

mod claims;
mod live;
mod slots;
mod store;

use outrigger_core::map::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use outrigger_admission::caches::Caches;
use outrigger_admission::{Admission, GuestOutcome, Reservation};
use outrigger_core::slots::Sightings;
use outrigger_runtime::environment::Clock;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use live::Live;
use store::LedgerStore;

/// How long one call of the API server may take.
const CALL: Duration = Duration::from_secs(3);

/// How long a reservation may take. With the waits before it ([`PATIENCE`](crate::budget::PATIENCE)) it stays below the timeout of
/// the webhooks that write ([`WRITER_TIMEOUT`](outrigger_admission::webhooks::WRITER_TIMEOUT)), so that the refusal comes from the
/// webhook and says why.
pub(crate) const DEADLINE: Duration = Duration::from_secs(6);

/// How often a writer starts over because another replica has written. Each time one of them succeeds, and there are as many as
/// replicas.
const TRIES: usize = 64;

/// The ledgers of a cluster.
#[derive(Debug)]
pub struct Ledgers {
    store: LedgerStore,
    live: Live,
    caches: Arc<Caches>,
    queues: Mutex<slots::Queues>,
    /// Since when entries of each ledger have been seen, by its name.
    sightings: Mutex<HashMap<String, Sightings>>,
    /// Ledgers with a task that tidies them.
    tidying: Mutex<HashSet<String>>,
    clock: Clock,
    /// The zero of the times of sightings.
    began: Instant,
}

impl Ledgers {
    /// Ledgers in a namespace of the client's cluster.
    pub fn new(client: Client, namespace: &str, caches: Arc<Caches>, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            store: LedgerStore::new(client.clone(), namespace),
            live: Live::new(client),
            caches,
            queues: Mutex::default(),
            sightings: Mutex::default(),
            tidying: Mutex::default(),
            clock,
            began: clock.now(),
        })
    }

    /// Makes a reservation.
    pub async fn reserve(
        self: &Arc<Self>,
        reservation: &Reservation,
    ) -> Result<Option<GuestOutcome>, Admission> {
        match reservation {
            Reservation::Slot(slot) => self.take_slot(slot).await.map(|()| Some(GuestOutcome::Admitted)),
            Reservation::Machine(claim) => self.claim(claim).await.map(|()| None).map_err(Admission::from),
        }
    }

    /// Seconds since this was created, by the monotonic clock.
    fn elapsed(&self) -> u64 {
        (self.clock.now() - self.began).as_secs()
    }

    /// Seconds since 1970. They are for people: no replica compares them with its own clock.
    fn wall_seconds(&self) -> u64 {
        u64::try_from(self.clock.unix()).unwrap_or_default()
    }

    /// Takes in the present entries of a ledger, and returns since when each was seen. Empty ledgers are forgotten.
    fn saw(&self, name: &str, entries: impl Iterator<Item = String>) -> Sightings {
        let (mut all, now) = (self.sightings.lock(), self.elapsed());
        let mut entries = entries.peekable();
        if entries.peek().is_none() {
            all.remove(name);
            return Sightings::default();
        }
        let sightings = all.entry(name.to_owned()).or_default();
        sightings.saw(entries, now);
        sightings.clone()
    }
}

/// Waits for a call of the API server, at most for [`CALL`]. The error is the code of its refusal, where it has answered, and its
/// own message or the reason why there is none.
async fn answered<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, (Option<u16>, String)> {
    match timeout(CALL, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) if !status.message.is_empty() => {
            Err((Some(status.code), status.message))
        }
        Ok(Err(kube::Error::Api(status))) => Err((Some(status.code), kube::Error::Api(status).to_string())),
        Ok(Err(error)) => Err((None, error.to_string())),
        Err(_) => Err((None, "the API server doesn't answer".to_owned())),
    }
}

#[cfg(test)]
mod tests;
