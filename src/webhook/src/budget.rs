//! The memory that all requests together may use: bytes of bodies, and the weight of their value trees.
//!
//! A body takes its part of the budget while its bytes arrive, whatever length it announces. A tree takes its part before it is
//! built, and a guest that waits for its slot gives it back. A request that waits for a tree holds a body, and a request with a tree waits
//! for neither, so there is no deadlock. Where bodies have used up the budget, the one that has been arriving longest is aborted: the
//! bodies of an API server arrive in milliseconds.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body_util::BodyExt;
use outrigger_admission::review::BOUNDS;
use outrigger_core::bounds::Measured;
use outrigger_runtime::environment::Clock;
use outrigger_runtime::serve::network;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

mod bodies;

pub use bodies::{BODIES, FIRSTS, of_one};
use bodies::{Bodies, Key, Room};

/// Default of `--max-connections`.
pub const CONNECTIONS: usize = 512;

/// Bytes of an HTTP/2 stream that may be in flight. A connection may have four times as many.
pub const STREAM_WINDOW: u32 = 16 << 10;

/// Total weight of the trees of large reviews. A review that weighs more takes all of it.
pub const LARGE_TREES: usize = 96 << 20;

/// Total weight of the trees of all other reviews: some 300 concurrent Pods.
pub const TREES: usize = 32 << 20;

/// Total weight of the trees of reviews that wait for a stale cache. They may wait for two seconds, and whoever can cause that must not keep
/// all others from the budget.
pub const WAITING_TREES: usize = 8 << 20;

/// A review with more bytes is large. Large reviews wait for each other, and no other review waits for them.
const LARGE: usize = 256 << 10;

/// A review with more values is large.
const LARGE_VALUES: usize = 8_000;

/// How long a request waits in all: for its part of the budget, and then for a stale cache. It counts from the headers, and leaves
/// a second of the shortest timeout of the configurations ([`TIMEOUT`](outrigger_admission::webhooks::TIMEOUT)) for the network and
/// the decision: so the API server gets a refusal that says why, and not a timeout.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// How often a waiting request looks for a body to abort.
const LOOK: Duration = Duration::from_millis(50);

/// Bytes of one semaphore permit.
const UNIT: usize = 4 << 10;

/// How much of a body that is too large is read and dropped: a client that is still sending doesn't read the answer.
const MOST_READ: usize = 64 << 20;

/// How much of the beginning of such a body is kept, to read its uid.
const BEGINNING: usize = 4 << 10;

/// The budget.
#[derive(Debug)]
pub struct Budget {
    bodies: Mutex<Bodies>,
    released: Notify,
    trees: Arc<Semaphore>,
    large: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    /// Limits how many large reviews are processed at once.
    hands: Arc<Semaphore>,
    clock: Clock,
}

/// A body, and its part of the budget.
#[derive(Debug)]
pub struct Held {
    /// The body.
    pub bytes: Bytes,
    _part: Part,
}

/// Why a body could not be received.
#[derive(Debug)]
pub enum NoBody {
    /// It exceeds the size of a review: its beginning, and the number of bytes.
    TooLarge(Vec<u8>, usize),
    /// The budget was used up: its beginning.
    Crowded(Vec<u8>),
    /// The connection failed, and how.
    Broken(String),
}

/// Why a body is no longer collected.
#[derive(Debug)]
enum Stop {
    TooLarge,
    Crowded,
    Broken(String),
}

/// The received part of a body. Most bodies arrive in one piece, which isn't copied.
#[derive(Debug, Default)]
struct Kept {
    first: Bytes,
    all: Vec<u8>,
    /// Bytes of the received piece that isn't kept yet.
    more: usize,
}

impl Kept {
    fn length(&self) -> usize {
        self.first.len().max(self.all.len()) + self.more
    }

    fn whole(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.into() }
    }

    fn beginning(self) -> Vec<u8> {
        let all = self.whole();
        all.get(..BEGINNING).unwrap_or(&all).to_vec()
    }
}

/// A part of the budget of trees.
#[derive(Debug)]
pub struct Tree {
    /// The permit to process a large review on its own thread; `None` for other reviews.
    pub large: Option<OwnedSemaphorePermit>,
    weight: OwnedSemaphorePermit,
}

impl Tree {
    /// Gives back all but the part of so many bytes: no more is left of what the part is for.
    pub fn shrink(&mut self, bytes: usize) {
        let rest = self.weight.num_permits().saturating_sub(bytes.div_ceil(UNIT));
        drop(self.weight.split(rest));
        self.large = None;
    }
}

/// A part of the budget of bodies, until it is dropped.
#[derive(Debug)]
struct Part {
    budget: Arc<Budget>,
    from: Option<IpAddr>,
    held: usize,
    /// Its key among the arriving bodies.
    key: Key,
    cut: CancellationToken,
    /// How long it waits for room.
    until: Instant,
}

impl Budget {
    /// A budget of which nothing is used.
    pub fn new(clock: Clock) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            bodies: Mutex::default(),
            released: Notify::new(),
            trees: Arc::new(Semaphore::new(TREES / UNIT)),
            large: Arc::new(Semaphore::new(LARGE_TREES / UNIT)),
            waiting: Arc::new(Semaphore::new(WAITING_TREES / UNIT)),
            hands: Arc::new(Semaphore::new((cores / 2).max(1))),
            clock,
        }
    }

    /// Reads a body from this address. It waits for room until this time.
    ///
    /// # Errors
    /// When it is too large, when there is no room for it in time, or when the connection fails.
    pub async fn read(
        self: &Arc<Self>,
        mut body: Body,
        from: Option<IpAddr>,
        until: Instant,
    ) -> Result<Held, NoBody> {
        let mut part = self.part(from.map(network), until);
        let mut kept = Kept::default();
        let stop = match part.collect(&mut body, &mut kept).await {
            Ok(()) => return Ok(part.arrived(kept.whole())),
            Err(Stop::Broken(why)) => return Err(NoBody::Broken(why)),
            Err(stop) => stop,
        };
        let length = kept.length();
        let beginning = kept.beginning();
        drop(part);
        let length = forget(body, length).await;
        Err(match stop {
            Stop::TooLarge => NoBody::TooLarge(beginning, length),
            _ => NoBody::Crowded(beginning),
        })
    }

    fn part(self: &Arc<Self>, from: Option<IpAddr>, until: Instant) -> Part {
        let cut = CancellationToken::new();
        let key = self.bodies.lock().begin(from, cut.clone(), self.clock.now());
        Part { budget: self.clone(), from, held: 0, key, cut, until }
    }

    /// Takes the part of a tree of this size, with this many copies. `None` where there is no room until this time.
    pub async fn tree(&self, measured: Measured, copies: usize, until: Instant) -> Option<Tree> {
        let large = measured.bytes > LARGE || measured.values > LARGE_VALUES;
        let (pool, most) = if large { (&self.large, LARGE_TREES) } else { (&self.trees, TREES) };
        let units = measured.weight().saturating_mul(copies).min(most).div_ceil(UNIT);
        let units = u32::try_from(units).ok()?;
        let weight = match pool.clone().try_acquire_many_owned(units) {
            Ok(weight) => weight,
            Err(_) => timeout_at(until, pool.clone().acquire_many_owned(units)).await.ok()?.ok()?,
        };
        if !large {
            return Some(Tree { large: None, weight });
        }
        let hand = timeout_at(until, self.hands.clone().acquire_owned()).await.ok()?.ok()?;
        Some(Tree { large: Some(hand), weight })
    }

    /// Gives the part of a tree back to all others, because its review waits for a stale cache. Returns whether it may wait: a large review may
    /// not, nor one for which there is no room beside those that wait already.
    pub fn wait(&self, tree: &mut Tree) -> bool {
        let units = u32::try_from(tree.weight.num_permits()).unwrap_or(u32::MAX);
        match self.waiting.clone().try_acquire_many_owned(units) {
            Ok(weight) if tree.large.is_none() => tree.weight = weight,
            _ => return false,
        }
        true
    }
}

impl Part {
    /// Reads a body to its end, or until it may not be kept any longer.
    async fn collect(&mut self, body: &mut Body, kept: &mut Kept) -> Result<(), Stop> {
        kept.first = self.next(body).await?.unwrap_or_default();
        self.grow(kept.first.len()).await?;
        while let Some(data) = self.next(body).await? {
            if kept.all.is_empty() {
                kept.all = kept.first.to_vec();
                kept.first = Bytes::new();
            }
            kept.more = data.len();
            let length = kept.length();
            if length > BOUNDS.bytes {
                return Err(Stop::TooLarge);
            }
            if length > kept.all.capacity() {
                let capacity = length.next_power_of_two();
                self.grow(capacity).await?;
                kept.all.reserve_exact(capacity - kept.all.len());
            }
            kept.all.extend_from_slice(&data);
            kept.more = 0;
        }
        Ok(())
    }

    async fn next(&self, body: &mut Body) -> Result<Option<Bytes>, Stop> {
        loop {
            let frame = tokio::select! {
                biased;
                frame = body.frame() => frame,
                () = self.cut.cancelled() => return Err(Stop::Crowded),
            };
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(Stop::Broken(error.to_string())),
                Some(Ok(frame)) => {
                    // Trailers are ignored.
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// Takes what is missing for this many bytes.
    async fn grow(&mut self, bytes: usize) -> Result<(), Stop> {
        for room in Room::ALL {
            let more = room.part_of(bytes).saturating_sub(room.part_of(self.held));
            if more > 0 {
                self.take(room, more).await?;
                self.held += more;
            }
        }
        Ok(())
    }

    async fn take(&self, room: Room, more: usize) -> Result<(), Stop> {
        let clock = self.budget.clock;
        loop {
            let released = self.budget.released.notified();
            if self.budget.bodies.lock().take(room, &self.key, self.from, more, clock.now()) {
                return Ok(());
            }
            tokio::select! {
                () = released => {}
                () = sleep(LOOK) => {}
                () = self.cut.cancelled() => return Err(Stop::Crowded),
            }
            if clock.now() >= self.until {
                return Err(Stop::Crowded);
            }
        }
    }

    fn arrived(self, bytes: Bytes) -> Held {
        self.budget.bodies.lock().end(&self.key);
        Held { bytes, _part: self }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut bodies = self.budget.bodies.lock();
        bodies.end(&self.key);
        Room::ALL.into_iter().for_each(|room| bodies.give(room, self.from, room.part_of(self.held)));
        drop(bodies);
        self.budget.released.notify_waiters();
    }
}

/// Reads and drops the rest of a body, and returns the size of the whole body.
async fn forget(mut body: Body, mut length: usize) -> usize {
    while length <= MOST_READ {
        match body.frame().await {
            Some(Ok(frame)) => length += frame.data_ref().map_or(0, Bytes::len),
            Some(Err(_)) | None => break,
        }
    }
    length
}

#[cfg(test)]
mod tests;
