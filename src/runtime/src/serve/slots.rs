//! The connections of a server, and which of them is closed for a new one when a limit is reached.
//!
//! The connection that has been idle longest is closed: its client can open another one for its next request. Connections without
//! a client certificate are closed before those with one, and connections without a request so far before those with one.
//! Connections with a request in progress are never closed for others.

use std::collections::HashMap;
use std::hash::Hash;
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

/// Minimum interval between warnings that connections are closed for others.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

pub(super) struct ConnectionTable {
    name: &'static str,
    max_connections: usize,
    per_address: usize,
    per_identity: Option<PerIdentity>,
    max_handshakes: usize,
    epoch: Instant,
    connections: Mutex<Connections>,
    handshakes: Arc<AtomicUsize>,
    freed: Notify,
}

#[derive(Default)]
struct Connections {
    next: u64,
    all: HashMap<u64, Arc<ConnectionState>>,
    per_address: HashMap<IpAddr, usize>,
    per_identity: HashMap<String, usize>,
    last_warning: Option<Instant>,
}

/// The limit that a new connection would exceed, where no other connection can be closed for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitReached {
    Address,
    Identity,
    Server,
}

/// An entry of the table. Dropping it removes the connection.
pub(super) struct ConnectionSlot {
    table: Arc<ConnectionTable>,
    number: u64,
    pub(super) state: Arc<ConnectionState>,
}

/// The activity of a connection. Times are in milliseconds since the server started, plus one, so that 0 means never.
pub(super) struct ConnectionState {
    address: Option<IpAddr>,
    identity: OnceLock<String>,
    epoch: Instant,
    /// Cancelled when the connection is closed for another one.
    pub(super) evicted: CancellationToken,
    in_handshake: AtomicBool,
    /// The table's count of handshakes in progress.
    handshakes: Arc<AtomicUsize>,
    verified: AtomicBool,
    had_request: AtomicBool,
    /// Requests that were received completely and whose response isn't complete.
    in_progress: AtomicU32,
    /// When the last byte was received or the last response completed.
    last_active: AtomicU64,
    /// When the first byte of a request was received whose headers aren't complete (HTTP/1).
    headers_since: AtomicU64,
    /// Since when the client has accepted no bytes of a response.
    stalled_since: AtomicU64,
    requests: Mutex<OpenRequests>,
}

#[derive(Default)]
struct OpenRequests {
    next: u64,
    /// Numbers and start times of requests whose responses aren't complete.
    open: Vec<(u64, u64)>,
}

/// A request, from its headers until its response is complete or its connection closed.
pub(super) struct OpenRequest {
    state: Arc<ConnectionState>,
    number: u64,
    received: AtomicBool,
}

impl ConnectionTable {
    pub(super) fn new(name: &'static str, limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            name,
            max_connections: limits.max_connections.max(1),
            per_address: limits.per_address.unwrap_or(usize::MAX).max(1),
            per_identity: limits.per_identity,
            max_handshakes: limits.handshakes.max(1),
            epoch: Clock::system().now(),
            connections: Mutex::default(),
            handshakes: Arc::default(),
            freed: Notify::new(),
        })
    }

    /// Adds a connection from this address, and closes another one if a limit is reached. Fails if no other connection can be
    /// closed.
    pub(super) fn add(
        self: &Arc<Self>,
        address: Option<SocketAddr>,
        in_handshake: bool,
    ) -> Result<ConnectionSlot, LimitReached> {
        let address = address.map(|address| network(address.ip()));
        let mut connections = self.connections.lock();
        let count = address.and_then(|address| connections.per_address.get(&address).copied());
        if count.unwrap_or_default() >= self.per_address {
            self.evict(&mut connections, |other| other.address == address).ok_or(LimitReached::Address)?;
        }
        if connections.all.len() >= self.max_connections {
            self.evict(&mut connections, |_| true).ok_or(LimitReached::Server)?;
        }
        if in_handshake && self.handshakes.load(Ordering::Relaxed) >= self.max_handshakes {
            self.evict(&mut connections, |other| other.in_handshake.load(Ordering::Relaxed));
        }
        let number = connections.next;
        connections.next += 1;
        let state = Arc::new(ConnectionState {
            address,
            identity: OnceLock::new(),
            epoch: self.epoch,
            evicted: CancellationToken::new(),
            in_handshake: AtomicBool::new(in_handshake),
            handshakes: self.handshakes.clone(),
            verified: AtomicBool::new(false),
            had_request: AtomicBool::new(false),
            in_progress: AtomicU32::new(0),
            last_active: AtomicU64::new(0),
            headers_since: AtomicU64::new(0),
            stalled_since: AtomicU64::new(0),
            requests: Mutex::default(),
        });
        if in_handshake {
            self.handshakes.fetch_add(1, Ordering::Relaxed);
        }
        state.touch();
        connections.all.insert(number, state.clone());
        if let Some(address) = address {
            *connections.per_address.entry(address).or_default() += 1;
        }
        Ok(ConnectionSlot { table: self.clone(), number, state })
    }

    /// Records the identity of a connection's certificate, and closes another connection of this identity if the limit is
    /// reached. Fails if no other connection can be closed.
    pub(super) fn identify(
        &self,
        state: &ConnectionState,
        certificate: &CertificateDer<'_>,
    ) -> Result<(), LimitReached> {
        let Some(PerIdentity { most, identify }) = self.per_identity else { return Ok(()) };
        let identity = identify(certificate);
        let mut connections = self.connections.lock();
        if state.evicted.is_cancelled() {
            // It has been removed from the table, and must not be counted.
            return Ok(());
        }
        // This connection has no identity yet, so it can't be the one that is closed.
        if connections.per_identity.get(&identity).is_some_and(|count| *count >= most) {
            self.evict(&mut connections, |other| other.identity.get() == Some(&identity))
                .ok_or(LimitReached::Identity)?;
        }
        *connections.per_identity.entry(identity.clone()).or_default() += 1;
        let _ = state.identity.set(identity);
        Ok(())
    }

    /// Waits until there may be room for a connection.
    pub(super) async fn freed(&self) {
        // There is no notification when a connection becomes idle.
        let _ = tokio::time::timeout(Duration::from_millis(100), self.freed.notified()).await;
    }

    /// Closes and removes the connection that has been idle longest of those for which the condition holds.
    fn evict(&self, connections: &mut Connections, of: impl Fn(&ConnectionState) -> bool) -> Option<()> {
        let idle = connections
            .all
            .iter()
            .filter(|(_, other)| other.in_progress.load(Ordering::Relaxed) == 0 && of(other));
        let number = *idle.min_by_key(|(number, other)| (other.eviction_order(), **number))?.0;
        self.remove(connections, number)?.evicted.cancel();
        if connections.last_warning.is_none_or(|last| last.elapsed() > WARN_INTERVAL) {
            connections.last_warning = Some(Clock::system().now());
            warn!(
                server = self.name,
                connections = connections.all.len(),
                handshakes = self.handshakes.load(Ordering::Relaxed),
                "connection limit reached: closing idle connections"
            );
        }
        Some(())
    }

    fn remove(&self, connections: &mut Connections, number: u64) -> Option<Arc<ConnectionState>> {
        let state = connections.all.remove(&number)?;
        state.handshake_finished();
        if let Some(address) = &state.address {
            decrement(&mut connections.per_address, address);
        }
        if let Some(identity) = state.identity.get() {
            decrement(&mut connections.per_identity, identity);
        }
        self.freed.notify_one();
        Some(state)
    }
}

fn decrement<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.table.remove(&mut self.table.connections.lock(), self.number);
    }
}

impl ConnectionState {
    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    /// The connection with the lowest value is closed first.
    fn eviction_order(&self) -> (bool, bool, u64) {
        let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        (is(&self.verified), is(&self.had_request), self.last_active.load(Ordering::Relaxed))
    }

    fn touch(&self) {
        self.last_active.store(self.now(), Ordering::Relaxed);
    }

    pub(super) fn handshake_finished(&self) {
        if self.in_handshake.swap(false, Ordering::Relaxed) {
            self.handshakes.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn verified(&self) {
        self.verified.store(true, Ordering::Relaxed);
    }

    pub(super) fn received(&self, http1: bool) {
        let now = self.now();
        self.last_active.store(now, Ordering::Relaxed);
        if http1 && self.headers_since.load(Ordering::Relaxed) == 0 && self.requests.lock().open.is_empty() {
            self.headers_since.store(now, Ordering::Relaxed);
        }
    }

    /// A write was attempted; `accepted`: the socket has accepted it.
    pub(super) fn write_attempted(&self, accepted: bool) {
        if accepted {
            self.stalled_since.store(0, Ordering::Relaxed);
        } else if self.stalled_since.load(Ordering::Relaxed) == 0 {
            self.stalled_since.store(self.now(), Ordering::Relaxed);
        }
    }

    /// The headers of a request are complete. Returns the time since its first byte, and the request.
    pub(super) fn request_started(self: &Arc<Self>) -> (Duration, OpenRequest) {
        self.had_request.store(true, Ordering::Relaxed);
        let now = self.now();
        let began = match self.headers_since.swap(0, Ordering::Relaxed) {
            0 => now,
            began => began,
        };
        let mut requests = self.requests.lock();
        let number = requests.next;
        requests.next += 1;
        requests.open.push((number, began));
        let request = OpenRequest { state: self.clone(), number, received: AtomicBool::new(false) };
        (Duration::from_millis(now.saturating_sub(began)), request)
    }

    /// Returns when the client has exceeded the time for headers, for accepting a response or, if `request` is given, for a whole
    /// request.
    pub(super) async fn overdue(
        &self,
        headers: Duration,
        stall: Duration,
        request: Option<Duration>,
    ) -> &'static str {
        let tick = request.unwrap_or(stall).min(headers).min(stall) / 4;
        loop {
            tokio::time::sleep(tick.max(Duration::from_millis(1))).await;
            let now = self.now();
            let beyond = |since: u64, limit: Duration| {
                since != 0 && u128::from(now.saturating_sub(since)) > limit.as_millis()
            };
            if beyond(self.headers_since.load(Ordering::Relaxed), headers) {
                return "timeout while reading the headers of a request";
            }
            if beyond(self.stalled_since.load(Ordering::Relaxed), stall) {
                return "timeout while writing a response";
            }
            let oldest = self.requests.lock().open.iter().map(|(_, began)| *began).min().unwrap_or_default();
            // The client has some time to read the response with the status 503.
            if request.is_some_and(|limit| beyond(oldest, limit + limit / 4)) {
                return "timeout of a request";
            }
        }
    }
}

impl OpenRequest {
    /// The request was received completely, or the rest of it isn't needed: from now on the server is working on it.
    pub(super) fn received(&self) {
        if !self.received.swap(true, Ordering::Relaxed) {
            self.state.in_progress.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.state.requests.lock().open.retain(|(number, _)| *number != self.number);
        if self.received.load(Ordering::Relaxed) {
            self.state.in_progress.fetch_sub(1, Ordering::Relaxed);
        }
        self.state.touch();
    }
}

/// The network that counts as one client: an IPv4 address, or the first 64 bits of an IPv6 address.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table_of(limits: Limits) -> Arc<ConnectionTable> {
        ConnectionTable::new("test", &limits)
    }

    fn from(address: &str) -> Option<SocketAddr> {
        Some(SocketAddr::new(address.parse().unwrap(), 1))
    }

    fn is_evicted(slot: &ConnectionSlot) -> bool {
        slot.state.evicted.is_cancelled()
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_was_idle_longest_is_closed() {
        let table = table_of(Limits { max_connections: 3, ..Limits::default() });
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(table.add(from("10.0.0.1"), false).unwrap());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        // The first had a request, the second has one in progress, so the third is closed.
        drop(all[0].state.request_started());
        let (_, open) = all[1].state.request_started();
        open.received();
        let fourth = table.add(from("10.0.0.2"), false).unwrap();
        assert_eq!(all.iter().map(is_evicted).collect::<Vec<_>>(), [false, false, true]);
        tokio::time::sleep(Duration::from_secs(1)).await;
        fourth.state.received(false);
        fourth.state.verified();
        let fifth = table.add(from("10.0.0.3"), false).unwrap();
        assert!(is_evicted(&all[0]) && !is_evicted(&fourth), "it has no certificate");
        let (_, of_fourth) = fourth.state.request_started();
        let (_, of_fifth) = fifth.state.request_started();
        of_fourth.received();
        of_fifth.received();
        assert_eq!(table.add(from("10.0.0.4"), false).err(), Some(LimitReached::Server));
        drop(open);
        assert!(table.add(from("10.0.0.4"), false).is_ok());
        assert!(is_evicted(&all[1]));
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_closes_only_its_own_connections() {
        let table = table_of(Limits { max_connections: 4, per_address: Some(2), ..Limits::default() });
        let other = table.add(from("10.0.0.9"), false).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let [first, second] = [(); 2].map(|()| table.add(from("10.0.0.1"), false).unwrap());
        let third = table.add(from("10.0.0.1"), false).unwrap();
        assert!(is_evicted(&first) && !is_evicted(&second) && !is_evicted(&other));
        let open = [&second, &third].map(|slot| slot.state.request_started().1);
        open.iter().for_each(OpenRequest::received);
        assert_eq!(table.add(from("10.0.0.1"), false).err(), Some(LimitReached::Address));
        assert!(table.add(from("10.0.0.2"), false).is_ok());
        // A client has a whole IPv6 network.
        let _v6 = table.add(from("fd00::1"), false).unwrap();
        drop((first, second));
        let same = ["fd00::2", "fd00::3"].map(|address| table.add(from(address), false).unwrap());
        assert!(is_evicted(&_v6) && !is_evicted(&same[1]));
    }

    #[tokio::test(start_paused = true)]
    async fn one_identity_closes_only_its_own_connections() {
        let identify = |certificate: &CertificateDer<'_>| String::from_utf8_lossy(certificate).into_owned();
        let per_identity = Some(PerIdentity { most: 2, identify });
        let table = table_of(Limits { max_connections: 9, per_identity, ..Limits::default() });
        let connect = |identity: &str| {
            let slot = table.add(from("10.0.0.1"), true).unwrap();
            slot.state.verified();
            let certificate = CertificateDer::from(identity.as_bytes().to_vec());
            table.identify(&slot.state, &certificate).map(|()| slot)
        };
        let other = connect("b").unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let [first, second, third] = [(); 3].map(|()| connect("a").unwrap());
        assert!(is_evicted(&first) && !is_evicted(&second) && !is_evicted(&other));
        let open = [&second, &third].map(|slot| slot.state.request_started().1);
        open.iter().for_each(OpenRequest::received);
        assert_eq!(connect("a").err(), Some(LimitReached::Identity));
        assert!(connect("b").is_ok());
        drop((first, second));
        assert!(connect("a").is_ok(), "one has closed");
        drop((open, third, other));
        assert!(table.connections.lock().per_identity.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn handshakes_have_a_part_of_the_places() {
        let table = table_of(Limits { max_connections: 10, handshakes: 2, ..Limits::default() });
        let done = table.add(from("10.0.0.1"), true).unwrap();
        done.state.handshake_finished();
        let hanging = [(); 2].map(|()| table.add(from("10.0.0.1"), true).unwrap());
        let _next = table.add(from("10.0.0.2"), true).unwrap();
        assert!(is_evicted(&hanging[0]) && !is_evicted(&hanging[1]) && !is_evicted(&done));
        drop(hanging);
        let _more = table.add(from("10.0.0.2"), true).unwrap();
        assert!(!is_evicted(&_next));
    }
}
