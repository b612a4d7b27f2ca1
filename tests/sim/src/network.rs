//! The network between the processes of a simulation: wires that are up, silent or down, with delays, and connections in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use outrigger_runtime::environment::Random;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::model::{Link, Passage, RequestInfo};

/// The state of the wire between two parties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Everything arrives.
    Up,
    /// Nothing arrives, and no error is reported: a partition, or a peer that has stopped.
    Silent,
    /// Connections are refused, and open ones are closed.
    Down,
}

/// What happens to single requests while the API server is in trouble, in requests of a thousand each.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trouble {
    /// The response is 429, 503 or 504, and the request has no effect.
    pub refused: u64,
    /// The request has its effect, and the connection fails before the response.
    pub unanswered: u64,
    /// The connection fails before the request arrives, or a watch is cut.
    pub failed: u64,
    /// The request or the response is late by up to [`LATE`], and others overtake it.
    pub late: u64,
    /// Longest delay of each message.
    pub lag: Duration,
}

/// How late requests and responses may be. A client waits 30 s for the response.
const LATE: Duration = Duration::from_secs(25);

/// The wires by the two parties that they connect, in alphabetical order, and since when they are as they are.
type Wires = BTreeMap<(String, String), (watch::Sender<Wire>, Instant)>;

/// After so long on a silent wire a connection has ended: its keep-alive has failed.
const NOTICED: Duration = Duration::from_secs(45);

/// The network of a simulation. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Network {
    random: Random,
    wires: Arc<Mutex<Wires>>,
    trouble: Arc<Mutex<Trouble>>,
    /// The watches that stand still, by their process and the plural name of their kind.
    frozen: watch::Sender<BTreeSet<(String, String)>>,
}

impl Network {
    /// A network whose wires are up.
    pub fn new(random: Random) -> Self {
        Self { random, wires: Arc::default(), trouble: Arc::default(), frozen: watch::Sender::default() }
    }

    /// Sets the state of the wire between two parties, in both directions.
    pub fn set(&self, one: &str, other: &str, wire: Wire) {
        self.sender(one, other).send_replace(wire);
        if let Some((_, since)) = self.wires.lock().get_mut(&ordered(one, other)) {
            *since = Instant::now();
        }
    }

    /// For how long a party has had no connection to those whose names begin so; `None` where it may have one.
    pub fn cut_off(&self, party: &str, from: &str) -> Option<Duration> {
        let of_both = |(one, other): &(String, String)| {
            one == party && other.starts_with(from) || other == party && one.starts_with(from)
        };
        let wires = self.wires.lock();
        let lasts =
            wires.iter().filter(|(pair, _)| of_both(pair)).map(|(_, (wire, since))| match *wire.borrow() {
                Wire::Up => None,
                Wire::Down => Some(since.elapsed()),
                Wire::Silent => since.elapsed().checked_sub(NOTICED),
            });
        lasts.min().flatten()
    }

    /// Whether everything arrives between two parties.
    pub fn is_up(&self, one: &str, other: &str) -> bool {
        *self.sender(one, other).borrow() == Wire::Up
    }

    /// Sets what happens to single requests and messages.
    pub fn trouble(&self, trouble: Trouble) {
        *self.trouble.lock() = trouble;
    }

    /// A process' watches of a kind stand still, or go on: their events are held back, and those of other kinds aren't.
    pub fn freeze(&self, process: &str, plural: &str, frozen: bool) {
        let watched = (process.to_owned(), plural.to_owned());
        self.frozen.send_modify(|all| {
            if frozen {
                all.insert(watched);
            } else {
                all.remove(&watched);
            }
        });
    }

    /// All watches go on.
    pub fn thaw(&self) {
        self.frozen.send_modify(BTreeSet::clear);
    }

    /// The wires that have been used, as pairs of parties.
    pub fn wires(&self) -> Vec<(String, String)> {
        self.wires.lock().keys().cloned().collect()
    }

    /// The way of one party to another.
    pub fn way(&self, from: &str, to: &str) -> Way {
        Way { network: self.clone(), from: from.to_owned(), wire: self.sender(from, to).subscribe() }
    }

    fn sender(&self, one: &str, other: &str) -> watch::Sender<Wire> {
        let new = || (watch::channel(Wire::Up).0, Instant::now());
        self.wires.lock().entry(ordered(one, other)).or_insert_with(new).0.clone()
    }

    /// Whether something happens that happens to so many of a thousand.
    fn happens(&self, of_a_thousand: u64) -> bool {
        of_a_thousand > 0 && self.random.seed() % 1000 < of_a_thousand
    }

    /// Waits where a message is late.
    pub async fn delay(&self) {
        let late = self.trouble.lock().late;
        if self.happens(late) {
            tokio::time::sleep(self.random.below(LATE)).await;
        }
    }

    fn status(&self) -> u16 {
        [429, 503, 504][usize::try_from(self.random.seed() % 3).unwrap_or_default()]
    }
}

/// Two parties in alphabetical order.
fn ordered(one: &str, other: &str) -> (String, String) {
    let (one, other) = if one < other { (one, other) } else { (other, one) };
    (one.to_owned(), other.to_owned())
}

/// The way of one party to another.
#[derive(Clone)]
pub struct Way {
    network: Network,
    from: String,
    wire: watch::Receiver<Wire>,
}

impl Way {
    /// Waits until a message arrives. Returns whether it does: not when the wire is down.
    pub async fn pass(&self) -> bool {
        let lag = self.network.trouble.lock().lag;
        let delay = Duration::from_micros(100) + self.network.random.below(Duration::from_millis(1).max(lag));
        tokio::time::sleep(delay).await;
        let mut wire = self.wire.clone();
        let was_silent = *wire.borrow() == Wire::Silent;
        // The sender lives as long as the network.
        let arrives = matches!(wire.wait_for(|wire| *wire != Wire::Silent).await.as_deref(), Ok(Wire::Up));
        if was_silent && self.network.happens(500) {
            // The connection is lost, for example because an address translation has forgotten it, and nobody says so.
            std::future::pending::<()>().await;
        }
        arrives
    }

    /// Waits until the wire is down.
    async fn down(&self) {
        let mut wire = self.wire.clone();
        let _ = wire.wait_for(|wire| *wire == Wire::Down).await;
    }

    /// A connection on this way: the end of the client, and that of the server. It is closed when the wire goes down, or when one
    /// of its ends is.
    pub fn connection(&self) -> (DuplexStream, DuplexStream) {
        const BUFFER: usize = 16 << 10;
        let (client, near) = tokio::io::duplex(BUFFER);
        let (far, server) = tokio::io::duplex(BUFFER);
        let way = self.clone();
        tokio::spawn(async move {
            let (near_read, near_write) = tokio::io::split(near);
            let (far_read, far_write) = tokio::io::split(far);
            // What one end has closed, the other may still answer, but nothing here does: both are dropped.
            tokio::select! {
                biased;
                () = way.down() => {}
                () = carry(&way, near_read, far_write) => {}
                () = carry(&way, far_read, near_write) => {}
            }
        });
        (client, server)
    }
}

/// Carries bytes in one direction, in their order, until the connection ends.
async fn carry(way: &Way, mut from: ReadHalf<DuplexStream>, mut to: WriteHalf<DuplexStream>) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else { return };
        let Some(bytes) = buffer.get(..read) else { return };
        if !way.pass().await || to.write_all(bytes).await.is_err() {
            return;
        }
    }
}

impl Link for Way {
    fn client(&self) -> &str {
        &self.from
    }

    async fn request(&self, _: &RequestInfo) -> Passage {
        if !self.pass().await {
            return Passage::Fail;
        }
        self.network.delay().await;
        let Trouble { refused, failed, .. } = *self.network.trouble.lock();
        if self.network.happens(refused) {
            Passage::Status(self.network.status())
        } else if self.network.happens(failed) {
            Passage::Fail
        } else {
            Passage::Deliver
        }
    }

    async fn response(&self, _: &RequestInfo, _: u16) -> Passage {
        self.network.delay().await;
        let unanswered = self.network.trouble.lock().unanswered;
        if self.pass().await && !self.network.happens(unanswered) { Passage::Deliver } else { Passage::Fail }
    }

    async fn event(&self, info: &RequestInfo) -> Passage {
        let failed = self.network.trouble.lock().failed;
        let watched = (self.from.clone(), info.plural.clone());
        let _ = self.network.frozen.subscribe().wait_for(|frozen| !frozen.contains(&watched)).await;
        if self.pass().await && !self.network.happens(failed) { Passage::Deliver } else { Passage::Fail }
    }
}
