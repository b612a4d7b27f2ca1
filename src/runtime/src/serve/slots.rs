//! The connections of a server, and which of them is closed for a new one when a limit is reached.
//!
//! Of connections without a request so far those are closed first whose address has several of them, or whose time for a request is over:
//! of the address that has most, the oldest. Then those that are idle between requests, of the client that has most connections, the
//! identity of its certificate or else its address: the one that has been idle longest, whose client can open another one for its next request.
//! The only new connection of an address is closed last. Connections with a client certificate never give way to those without one, and
//! those with a request in progress to none.
//!
//! So whoever opens many connections closes their own, a client with few keeps them, and a new one has time for its request.

use std::cmp::Reverse;
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
    address_of: fn(IpAddr) -> IpAddr,
    per_identity: Option<PerIdentity>,
    max_handshakes: usize,
    /// How long a connection is new, in milliseconds: the time for its handshake and the headers of its first request.
    newcomer: u64,
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
    /// Connections without a verified certificate: all of them, and by address.
    open: usize,
    unverified: HashMap<IpAddr, usize>,
    per_identity: HashMap<String, usize>,
    last_warning: Option<Instant>,
}

/// The limit that a new connection would exceed, where no other connection can be closed for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum LimitReached {
    #[error("connections of an address")]
    Address,
    #[error("connections of an identity")]
    Identity,
    #[error("connections of the server")]
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
    opened: u64,
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
            address_of: limits.address_of,
            per_identity: limits.per_identity,
            max_handshakes: limits.handshakes.max(1),
            newcomer: u64::try_from((limits.handshake + limits.headers).as_millis()).unwrap_or(u64::MAX),
            epoch: Clock::system().now(),
            connections: Mutex::default(),
            handshakes: Arc::default(),
            freed: Notify::new(),
        })
    }

    /// Adds a connection from this address, and closes another one if a limit is reached. Fails if no other connection can be
    /// closed. [`Self::settle`] follows when it is known whether the client has a certificate.
    pub(super) fn add(
        self: &Arc<Self>,
        address: Option<SocketAddr>,
        in_handshake: bool,
    ) -> Result<ConnectionSlot, LimitReached> {
        let address = address.map(|address| (self.address_of)(address.ip()));
        let mut connections = self.connections.lock();
        let count = address.and_then(|address| connections.per_address.get(&address).copied());
        if count.unwrap_or_default() >= self.per_address {
            self.evict(&mut connections, |other| other.address == address).ok_or(LimitReached::Address)?;
        }
        if connections.all.len() >= self.max_connections {
            // Where those with certificates have all places, some more may try to show their own.
            let may_try = in_handshake
                && connections.open < self.max_handshakes
                && connections.all.values().any(|other| is(&other.verified) && other.is_idle());
            if !may_try {
                self.evict(&mut connections, |other| !is(&other.verified)).ok_or(LimitReached::Server)?;
            }
        }
        if in_handshake && self.handshakes.load(Ordering::Relaxed) >= self.max_handshakes {
            self.evict(&mut connections, |other| is(&other.in_handshake));
        }
        let number = connections.next;
        connections.next += 1;
        let state = Arc::new(ConnectionState {
            address,
            identity: OnceLock::new(),
            epoch: self.epoch,
            opened: self.now(),
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
            *connections.unverified.entry(address).or_default() += 1;
        }
        connections.open += 1;
        Ok(ConnectionSlot { table: self.clone(), number, state })
    }

    /// Takes note that the handshake is complete, and whether the client has shown a certificate. Closes another connection of the same
    /// identity, or any other one, where a limit is exceeded. Fails if none can be closed: then this one is to be closed.
    pub(super) fn settle(
        &self,
        state: &ConnectionState,
        certificate: Option<&CertificateDer<'_>>,
    ) -> Result<(), LimitReached> {
        state.handshake_finished();
        let mut connections = self.connections.lock();
        if state.evicted.is_cancelled() {
            // It has been removed from the table, and must not be counted.
            return Ok(());
        }
        if let Some(certificate) = certificate {
            self.identify(&mut connections, state, certificate)?;
            state.verified.store(true, Ordering::Relaxed);
            connections.close(state.address.as_ref());
        }
        if connections.all.len() > self.max_connections {
            let may_close = |other: &ConnectionState| match certificate {
                Some(_) => !std::ptr::eq(other, state),
                // Those that are still in their handshake may have a certificate.
                None => !std::ptr::eq(other, state) && !is(&other.verified) && !is(&other.in_handshake),
            };
            self.evict(&mut connections, may_close).ok_or(LimitReached::Server)?;
        }
        Ok(())
    }

    /// Records the identity of a connection's certificate.
    fn identify(
        &self,
        connections: &mut Connections,
        state: &ConnectionState,
        certificate: &CertificateDer<'_>,
    ) -> Result<(), LimitReached> {
        let Some(PerIdentity { most, identify }) = self.per_identity else { return Ok(()) };
        let identity = identify(certificate);
        // This connection has no identity yet, so it can't be the one that is closed.
        if connections.per_identity.get(&identity).is_some_and(|count| *count >= most) {
            self.evict(connections, |other| other.identity.get() == Some(&identity))
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

    fn now(&self) -> u64 {
        since(self.epoch)
    }

    /// Closes and removes one of the idle connections for which the condition holds: the first in the order that the module describes.
    fn evict(&self, connections: &mut Connections, of: impl Fn(&ConnectionState) -> bool) -> Option<()> {
        let (now, waiting) = (self.now(), connections.waiting());
        let order = |(number, state): &(&u64, &Arc<ConnectionState>)| {
            let had_request = is(&state.had_request);
            let is_late = !had_request && now.saturating_sub(state.opened) >= self.newcomer;
            let others = state.address.as_ref().and_then(|address| waiting.get(address)).copied();
            let (rank, held) = match others.unwrap_or_default() {
                _ if had_request => (1, connections.held(state)),
                count if count > 1 || is_late => (0, count),
                _ => (2, 0),
            };
            (is(&state.verified), rank, Reverse(held), state.active(), **number)
        };
        let idle = connections.all.iter().filter(|(_, other)| other.is_idle() && of(other));
        let number = *idle.min_by_key(order)?.0;
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
        if !is(&state.verified) {
            connections.close(state.address.as_ref());
        }
        if let Some(identity) = state.identity.get() {
            decrement(&mut connections.per_identity, identity);
        }
        self.freed.notify_one();
        Some(state)
    }
}

impl Connections {
    /// How many connections the client of this one has.
    fn held(&self, state: &ConnectionState) -> usize {
        let of_address = |counts: &HashMap<IpAddr, usize>| counts.get(state.address.as_ref()?).copied();
        let count = match state.identity.get() {
            Some(identity) => self.per_identity.get(identity).copied(),
            None if is(&state.verified) => of_address(&self.per_address),
            None => of_address(&self.unverified),
        };
        count.unwrap_or_default()
    }

    /// How many connections of each address have had no request.
    fn waiting(&self) -> HashMap<IpAddr, usize> {
        let mut counts = HashMap::new();
        for address in
            self.all.values().filter(|state| !is(&state.had_request)).filter_map(|state| state.address)
        {
            *counts.entry(address).or_default() += 1;
        }
        counts
    }

    /// One connection less without a verified certificate.
    fn close(&mut self, address: Option<&IpAddr>) {
        self.open -= 1;
        if let Some(address) = address {
            decrement(&mut self.unverified, address);
        }
    }
}

fn is(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}

/// Milliseconds, plus one, so that 0 means never.
fn since(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
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
        since(self.epoch)
    }

    fn active(&self) -> u64 {
        self.last_active.load(Ordering::Relaxed)
    }

    /// Whether no request is in progress.
    fn is_idle(&self) -> bool {
        self.in_progress.load(Ordering::Relaxed) == 0
    }

    fn touch(&self) {
        self.last_active.store(self.now(), Ordering::Relaxed);
    }

    fn handshake_finished(&self) {
        if self.in_handshake.swap(false, Ordering::Relaxed) {
            self.handshakes.fetch_sub(1, Ordering::Relaxed);
        }
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

/// The address that counts as one client where clients are Pods: many nodes may have their Pods in one network of 64 bits.
pub fn host(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// The network that counts as one client: an IPv4 address, or the first 64 bits of an IPv6 address.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests;
