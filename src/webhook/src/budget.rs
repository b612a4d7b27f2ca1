//! What all requests together may hold: bytes of bodies, and what their trees weigh.
//!
//! A body takes its part of the budget as its bytes come, whatever it announces; a tree takes its part before it is made. Who
//! waits for a tree holds a body, and who holds a tree waits for none of both, so it always goes on. Where bodies have taken
//! all, the one that has been coming longest is given up: those of an API server are there in milliseconds.

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
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

mod bodies;

pub use bodies::{BODIES, FIRSTS, of_one};
use bodies::{Bodies, Key, Room};

/// Connections at once, unless `--max-connections` says otherwise.
pub const CONNECTIONS: usize = 512;

/// Bytes of a stream of HTTP/2 that may be under way unread. A connection may have four times as many.
pub const STREAM_WINDOW: u32 = 16 << 10;

/// What the trees of large reviews may weigh at once. One that weighs more has all of it.
pub const LARGE_TREES: usize = 96 << 20;

/// What the trees of all other reviews may weigh at once: some 300 Pods that are being admitted.
pub const TREES: usize = 32 << 20;

/// Bytes of a review from which on it is a large one. Those wait for each other, and for nobody else.
const LARGE: usize = 256 << 10;

/// Values of a review from which on it is a large one.
const LARGE_VALUES: usize = 8_000;

/// How long room is waited for. The configuration's timeoutSeconds is 10.
const PATIENCE: Duration = Duration::from_secs(4);

/// How often it is looked for one to give up.
const LOOK: Duration = Duration::from_millis(50);

/// A permit of a semaphore is for so many bytes.
const UNIT: usize = 4 << 10;

/// How much is read, and forgotten, of a body that is too large: who is still sending doesn't read an answer.
const MOST_READ: usize = 64 << 20;

/// How much of the beginning of such a body is kept, for its uid.
const BEGINNING: usize = 4 << 10;

/// The budget.
#[derive(Debug)]
pub struct Budget {
    bodies: Mutex<Bodies>,
    released: Notify,
    trees: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// Large reviews that are worked on at once.
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

/// Why a body isn't there.
#[derive(Debug)]
pub enum NoBody {
    /// It has more bytes than a review may have: its beginning, and how many were counted.
    TooLarge(Vec<u8>, usize),
    /// There was no room for it: its beginning.
    Crowded(Vec<u8>),
    /// It broke off, and how.
    Broken(String),
}

/// Why no more of a body is kept.
#[derive(Debug)]
enum Stop {
    TooLarge,
    Crowded,
    Broken(String),
}

/// What has come of a body. Most come in one piece, which isn't copied.
#[derive(Debug, Default)]
struct Kept {
    first: Bytes,
    all: Vec<u8>,
    /// Bytes of the piece that has come and isn't kept yet.
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
    /// The right to work on a large review, apart from all others; `None` for other reviews.
    pub large: Option<OwnedSemaphorePermit>,
    _weight: OwnedSemaphorePermit,
}

/// A part of the budget of bodies, until it is dropped.
#[derive(Debug)]
struct Part {
    budget: Arc<Budget>,
    from: Option<IpAddr>,
    held: usize,
    /// Where it stands among those that are coming.
    key: Key,
    cut: CancellationToken,
}

impl Budget {
    /// A budget that nothing is taken of yet.
    pub fn new(clock: Clock) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            bodies: Mutex::default(),
            released: Notify::new(),
            trees: Arc::new(Semaphore::new(TREES / UNIT)),
            large: Arc::new(Semaphore::new(LARGE_TREES / UNIT)),
            hands: Arc::new(Semaphore::new((cores / 2).max(1))),
            clock,
        }
    }

    /// Reads a body that comes from this address.
    ///
    /// # Errors
    /// Where it is too large, or there is no room for it in time, or it breaks off.
    pub async fn read(self: &Arc<Self>, mut body: Body, from: Option<IpAddr>) -> Result<Held, NoBody> {
        let mut part = self.part(from.map(network));
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

    fn part(self: &Arc<Self>, from: Option<IpAddr>) -> Part {
        let cut = CancellationToken::new();
        let key = self.bodies.lock().begin(from, cut.clone(), self.clock.now());
        Part { budget: self.clone(), from, held: 0, key, cut }
    }

    /// A part of the budget for a tree of this size, of which there will be so many copies at most. `None` where there is none in
    /// time.
    pub async fn tree(&self, measured: Measured, copies: usize) -> Option<Tree> {
        let large = measured.bytes > LARGE || measured.values > LARGE_VALUES;
        let (pool, most) = if large { (&self.large, LARGE_TREES) } else { (&self.trees, TREES) };
        let units = measured.weight().saturating_mul(copies).min(most).div_ceil(UNIT);
        let units = u32::try_from(units).ok()?;
        let weight = match pool.clone().try_acquire_many_owned(units) {
            Ok(weight) => weight,
            Err(_) => timeout(PATIENCE, pool.clone().acquire_many_owned(units)).await.ok()?.ok()?,
        };
        if !large {
            return Some(Tree { large: None, _weight: weight });
        }
        let hand = timeout(PATIENCE, self.hands.clone().acquire_owned()).await.ok()?.ok()?;
        Some(Tree { large: Some(hand), _weight: weight })
    }
}

impl Part {
    /// Reads a body to its end, or as far as it may be kept.
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

    /// The next bytes of the body.
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
                    // Trailers say nothing.
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// Takes what is missing for so many bytes.
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
        let until = clock.now() + PATIENCE;
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
            if clock.now() >= until {
                return Err(Stop::Crowded);
            }
        }
    }

    /// All of it is there.
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

/// Reads the rest of a body and keeps nothing of it. How many bytes it has, those before included.
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
