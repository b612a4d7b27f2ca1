//! Who is connected, and who has to go where there is no room for one more.
//!
//! A connection that nothing is being answered on is worth little: its client opens another one when it has something to ask.
//! So a newcomer is never kept waiting for the sake of such: the one that has been idle longest is closed. Those that have shown
//! no certificate go before those that have, and those that have never asked anything before those that have.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{Limits, PerIdentity};
use crate::environment::Clock;

/// How often it is told that there is no room.
const TELL: Duration = Duration::from_secs(60);

/// All connections of a server.
pub(super) struct Places {
    name: &'static str,
    most: usize,
    per_address: usize,
    per_identity: Option<PerIdentity>,
    handshakes: usize,
    epoch: Instant,
    all: Mutex<All>,
    /// Handshakes under way.
    shaking: Arc<AtomicUsize>,
    freed: Notify,
}

#[derive(Default)]
struct All {
    next: u64,
    connections: HashMap<u64, Arc<Occupant>>,
    of_address: HashMap<IpAddr, usize>,
    of_identity: HashMap<String, usize>,
    told: Option<Instant>,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// The address has as many connections as one may have, and something is being answered on each.
    Address,
    /// The identity has as many.
    Identity,
    /// There are as many connections as there may be, and something is being answered on each.
    All,
}

/// A connection's place, until it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    pub(super) occupant: Arc<Occupant>,
}

/// A connection as it is seen from outside. Times are milliseconds since the server began, and one more, so that 0 is never.
pub(super) struct Occupant {
    address: Option<IpAddr>,
    identity: OnceLock<String>,
    epoch: Instant,
    /// Cancelled when it has to go.
    pub(super) cut: CancellationToken,
    shaking: AtomicBool,
    all_shaking: Arc<AtomicUsize>,
    verified: AtomicBool,
    asked: AtomicBool,
    /// Requests that have come whole and are being answered.
    answering: AtomicU32,
    /// When the last byte came, or the last answer was finished.
    since: AtomicU64,
    /// When the first byte of a request came whose headers haven't ended (HTTP/1).
    pub(super) begun: AtomicU64,
    /// Since when the client takes nothing of what it is sent.
    pub(super) stalled: AtomicU64,
    requests: Mutex<Requests>,
}

#[derive(Default)]
struct Requests {
    next: u64,
    /// Those whose answers haven't left, by number, with the time when they began.
    open: Vec<(u64, u64)>,
}

/// One request, from its headers until its answer has been handed over or its connection is gone.
pub(super) struct Asked {
    occupant: Arc<Occupant>,
    number: u64,
    received: AtomicBool,
}

impl Places {
    pub(super) fn new(name: &'static str, limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            name,
            most: limits.max_connections.max(1),
            per_address: limits.per_address.unwrap_or(usize::MAX).max(1),
            per_identity: limits.per_identity,
            handshakes: limits.handshakes.max(1),
            epoch: Clock::system().now(),
            all: Mutex::default(),
            shaking: Arc::default(),
            freed: Notify::new(),
        })
    }

    /// A place for a connection from this address; `shaking` where it begins with a handshake. Closes another connection where
    /// that is needed.
    ///
    /// # Errors
    /// Where none can be closed.
    pub(super) fn take(self: &Arc<Self>, address: Option<SocketAddr>, shaking: bool) -> Result<Place, Full> {
        let address = address.map(|address| network(address.ip()));
        let mut all = self.all.lock();
        let of_address =
            address.and_then(|address| all.of_address.get(&address)).copied().unwrap_or_default();
        if of_address >= self.per_address {
            self.evict(&mut all, |other| other.address == address).ok_or(Full::Address)?;
        }
        if all.connections.len() >= self.most {
            self.evict(&mut all, |_| true).ok_or(Full::All)?;
        }
        if shaking && self.shaking.load(Ordering::Relaxed) >= self.handshakes {
            self.evict(&mut all, |other| other.shaking.load(Ordering::Relaxed));
        }
        let number = all.next;
        all.next += 1;
        let occupant = Arc::new(Occupant {
            address,
            identity: OnceLock::new(),
            epoch: self.epoch,
            cut: CancellationToken::new(),
            shaking: AtomicBool::new(shaking),
            all_shaking: self.shaking.clone(),
            verified: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            answering: AtomicU32::new(0),
            since: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            stalled: AtomicU64::new(0),
            requests: Mutex::default(),
        });
        if shaking {
            self.shaking.fetch_add(1, Ordering::Relaxed);
        }
        occupant.touch();
        all.connections.insert(number, occupant.clone());
        if let Some(address) = address {
            *all.of_address.entry(address).or_default() += 1;
        }
        Ok(Place { places: self.clone(), number, occupant })
    }

    /// A connection has shown this certificate. Closes another one of the same identity where that is needed.
    ///
    /// # Errors
    /// Where none can be closed.
    pub(super) fn identify(&self, newcomer: &Occupant, certificate: &CertificateDer<'_>) -> Result<(), Full> {
        let Some(PerIdentity { most, identify }) = self.per_identity else { return Ok(()) };
        let identity = identify(certificate);
        let mut all = self.all.lock();
        if newcomer.cut.is_cancelled() {
            // Its place is another's already.
            return Ok(());
        }
        // The newcomer isn't counted yet, and so not one of these.
        if all.of_identity.get(&identity).is_some_and(|count| *count >= most) {
            self.evict(&mut all, |other| other.identity.get() == Some(&identity)).ok_or(Full::Identity)?;
        }
        *all.of_identity.entry(identity.clone()).or_default() += 1;
        let _ = newcomer.identity.set(identity);
        Ok(())
    }

    /// Waits until a place may have become free.
    pub(super) async fn freed(&self) {
        // A connection on which nothing is answered any more tells nobody.
        let _ = tokio::time::timeout(Duration::from_millis(100), self.freed.notified()).await;
    }

    /// Cuts the connection that has been idle longest of those that this is true of, and gives its place away.
    fn evict(&self, all: &mut All, of: impl Fn(&Occupant) -> bool) -> Option<()> {
        let idle = all
            .connections
            .iter()
            .filter(|(_, other)| other.answering.load(Ordering::Relaxed) == 0 && of(other));
        let number = *idle.min_by_key(|(number, other)| (other.worth(), **number))?.0;
        self.remove(all, number)?.cut.cancel();
        if all.told.is_none_or(|told| told.elapsed() > TELL) {
            all.told = Some(Clock::system().now());
            warn!(
                server = self.name,
                connections = all.connections.len(),
                handshakes = self.shaking.load(Ordering::Relaxed),
                "connections are closed to make room for others: those that have been idle longest"
            );
        }
        Some(())
    }

    fn remove(&self, all: &mut All, number: u64) -> Option<Arc<Occupant>> {
        let occupant = all.connections.remove(&number)?;
        occupant.shaken();
        if let Some(address) = occupant.address
            && let Some(count) = all.of_address.get_mut(&address)
        {
            *count -= 1;
            if *count == 0 {
                all.of_address.remove(&address);
            }
        }
        if let Some(identity) = occupant.identity.get()
            && let Some(count) = all.of_identity.get_mut(identity)
        {
            *count -= 1;
            if *count == 0 {
                all.of_identity.remove(identity);
            }
        }
        self.freed.notify_one();
        Some(occupant)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.remove(&mut self.places.all.lock(), self.number);
    }
}

impl Occupant {
    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    /// What it is worth to stay; the least goes first.
    fn worth(&self) -> (bool, bool, u64) {
        let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        (is(&self.verified), is(&self.asked), self.since.load(Ordering::Relaxed))
    }

    fn touch(&self) {
        self.since.store(self.now(), Ordering::Relaxed);
    }

    /// The handshake is over.
    pub(super) fn shaken(&self) {
        if self.shaking.swap(false, Ordering::Relaxed) {
            self.all_shaking.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Its client has shown a certificate that was verified.
    pub(super) fn verified(&self) {
        self.verified.store(true, Ordering::Relaxed);
    }

    /// Bytes have come.
    pub(super) fn heard(&self, http1: bool) {
        let now = self.now();
        self.since.store(now, Ordering::Relaxed);
        if http1 && self.begun.load(Ordering::Relaxed) == 0 && self.requests.lock().open.is_empty() {
            self.begun.store(now, Ordering::Relaxed);
        }
    }

    /// Whether the client takes what it is sent.
    pub(super) fn taken(&self, takes: bool) {
        if takes {
            self.stalled.store(0, Ordering::Relaxed);
        } else if self.stalled.load(Ordering::Relaxed) == 0 {
            self.stalled.store(self.now(), Ordering::Relaxed);
        }
    }

    /// The headers of a request have come: how long ago it began, and the request.
    pub(super) fn asked(self: &Arc<Self>) -> (Duration, Asked) {
        self.asked.store(true, Ordering::Relaxed);
        let now = self.now();
        let began = match self.begun.swap(0, Ordering::Relaxed) {
            0 => now,
            began => began,
        };
        let mut requests = self.requests.lock();
        let number = requests.next;
        requests.next += 1;
        requests.open.push((number, began));
        let asked = Asked { occupant: self.clone(), number, received: AtomicBool::new(false) };
        (Duration::from_millis(now.saturating_sub(began)), asked)
    }

    /// Returns when the client has taken longer than it may: for headers, to take an answer, or, where `whole` is given, for a
    /// whole request.
    pub(super) async fn overdue(
        &self,
        headers: Duration,
        taking: Duration,
        whole: Option<Duration>,
    ) -> &'static str {
        let tick = whole.unwrap_or(taking).min(headers).min(taking) / 4;
        loop {
            tokio::time::sleep(tick.max(Duration::from_millis(1))).await;
            let now = self.now();
            let beyond = |since: u64, limit: Duration| {
                since != 0 && u128::from(now.saturating_sub(since)) > limit.as_millis()
            };
            if beyond(self.begun.load(Ordering::Relaxed), headers) {
                return "the headers of a request took too long";
            }
            if beyond(self.stalled.load(Ordering::Relaxed), taking) {
                return "an answer was not taken";
            }
            let oldest = self.requests.lock().open.iter().map(|(_, began)| *began).min().unwrap_or_default();
            // Who was told so in time may still read it.
            if whole.is_some_and(|whole| beyond(oldest, whole + whole / 4)) {
                return "a request took too long";
            }
        }
    }
}

impl Asked {
    /// It has come whole, or nobody wants the rest: from here on it is ours to finish.
    pub(super) fn received(&self) {
        if !self.received.swap(true, Ordering::Relaxed) {
            self.occupant.answering.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.occupant.requests.lock().open.retain(|(number, _)| *number != self.number);
        if self.received.load(Ordering::Relaxed) {
            self.occupant.answering.fetch_sub(1, Ordering::Relaxed);
        }
        self.occupant.touch();
    }
}

/// What one client has at hand: an address, or of IPv6 a network of 64 bits.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(limits: Limits) -> Arc<Places> {
        Places::new("test", &limits)
    }

    fn from(address: &str) -> Option<SocketAddr> {
        Some(SocketAddr::new(address.parse().unwrap(), 1))
    }

    fn is_cut(place: &Place) -> bool {
        place.occupant.cut.is_cancelled()
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_that_has_been_idle_longest_makes_room() {
        let places = places(Limits { max_connections: 3, ..Limits::default() });
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(places.take(from("10.0.0.1"), false).unwrap());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        // The first has asked, the second is being answered: the third goes, though it came last.
        drop(all[0].occupant.asked());
        let (_, asked) = all[1].occupant.asked();
        asked.received();
        let fourth = places.take(from("10.0.0.2"), false).unwrap();
        assert_eq!(all.iter().map(is_cut).collect::<Vec<_>>(), [false, false, true]);
        tokio::time::sleep(Duration::from_secs(1)).await;
        fourth.occupant.heard(false);
        fourth.occupant.verified();
        let fifth = places.take(from("10.0.0.3"), false).unwrap();
        assert!(is_cut(&all[0]) && !is_cut(&fourth), "no certificate was shown there");
        let (_, of_fourth) = fourth.occupant.asked();
        let (_, of_fifth) = fifth.occupant.asked();
        of_fourth.received();
        of_fifth.received();
        assert_eq!(places.take(from("10.0.0.4"), false).err(), Some(Full::All));
        drop(asked);
        assert!(places.take(from("10.0.0.4"), false).is_ok());
        assert!(is_cut(&all[1]));
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_makes_room_for_itself_alone() {
        let places = places(Limits { max_connections: 4, per_address: Some(2), ..Limits::default() });
        let other = places.take(from("10.0.0.9"), false).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let [first, second] = [(); 2].map(|()| places.take(from("10.0.0.1"), false).unwrap());
        let third = places.take(from("10.0.0.1"), false).unwrap();
        assert!(is_cut(&first) && !is_cut(&second) && !is_cut(&other));
        let asked = [&second, &third].map(|place| place.occupant.asked().1);
        asked.iter().for_each(Asked::received);
        assert_eq!(places.take(from("10.0.0.1"), false).err(), Some(Full::Address));
        assert!(places.take(from("10.0.0.2"), false).is_ok());
        // Of IPv6 one client has a whole network.
        let _v6 = places.take(from("fd00::1"), false).unwrap();
        drop((first, second));
        let same = ["fd00::2", "fd00::3"].map(|address| places.take(from(address), false).unwrap());
        assert!(is_cut(&_v6) && !is_cut(&same[1]));
    }

    #[tokio::test(start_paused = true)]
    async fn one_identity_makes_room_for_itself_alone() {
        let identify = |certificate: &CertificateDer<'_>| String::from_utf8_lossy(certificate).into_owned();
        let per_identity = Some(PerIdentity { most: 2, identify });
        let places = places(Limits { max_connections: 9, per_identity, ..Limits::default() });
        let connect = |identity: &str| {
            let place = places.take(from("10.0.0.1"), true).unwrap();
            place.occupant.verified();
            let certificate = CertificateDer::from(identity.as_bytes().to_vec());
            places.identify(&place.occupant, &certificate).map(|()| place)
        };
        let other = connect("b").unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let [first, second, third] = [(); 3].map(|()| connect("a").unwrap());
        assert!(is_cut(&first) && !is_cut(&second) && !is_cut(&other));
        let asked = [&second, &third].map(|place| place.occupant.asked().1);
        asked.iter().for_each(Asked::received);
        assert_eq!(connect("a").err(), Some(Full::Identity));
        assert!(connect("b").is_ok());
        drop((first, second));
        assert!(connect("a").is_ok(), "one has left");
        drop((asked, third, other));
        assert!(places.all.lock().of_identity.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn handshakes_have_a_part_of_the_places() {
        let places = places(Limits { max_connections: 10, handshakes: 2, ..Limits::default() });
        let done = places.take(from("10.0.0.1"), true).unwrap();
        done.occupant.shaken();
        let hanging = [(); 2].map(|()| places.take(from("10.0.0.1"), true).unwrap());
        let _next = places.take(from("10.0.0.2"), true).unwrap();
        assert!(is_cut(&hanging[0]) && !is_cut(&hanging[1]) && !is_cut(&done));
        drop(hanging);
        let _more = places.take(from("10.0.0.2"), true).unwrap();
        assert!(!is_cut(&_next));
    }
}
