//! What a Service does, on loopback: a port whose connections go to replicas that are ready. As in a cluster, those who
//! route learn late that one is no longer ready.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::seq::IndexedRandom;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::DropGuard;

use crate::faults::serve_on_thread;
use crate::outrigger::get;
use crate::{eventually, holds};

/// How long connections still come after a replica has said that it isn't ready: until the endpoints have changed, and
/// the proxies of all nodes have followed.
const LAG: Duration = Duration::from_secs(3);

/// How often replicas are asked whether they are ready.
const PERIOD: Duration = Duration::from_millis(100);

/// The port, and where it leads. It ends when this is dropped, and serves on a thread of its own.
#[derive(Debug)]
pub struct Front {
    /// Its port.
    pub port: u16,
    state: Arc<State>,
    handle: Handle,
    /// Ends its thread.
    _end: DropGuard,
}

#[derive(Debug, Default)]
struct State {
    routed: Mutex<Vec<Replica>>,
    connections: AtomicU64,
    late: AtomicU64,
    /// The replica of each connection, by the port of the client.
    led: Mutex<BTreeMap<u16, u16>>,
    /// Replicas that have been killed.
    killed: Mutex<BTreeSet<u16>>,
}

#[derive(Debug, Clone, Copy)]
struct Replica {
    port: u16,
    unready: Option<Instant>,
}

impl Front {
    /// A front that leads nowhere yet.
    pub fn start() -> Self {
        let state = Arc::<State>::default();
        let serving = state.clone();
        let thread = serve_on_thread(move |client| {
            tokio::spawn(serving.clone().connection(client));
        });
        let (port, handle, _end) = thread.expect("a port");
        Self { port, state, handle, _end }
    }

    /// Leads to one more replica from when it is ready until it no longer is.
    pub fn add(&self, port: u16, admin: u16) {
        self.handle.spawn(self.state.clone().follow(port, admin));
    }

    /// Waits until connections go to a replica.
    pub async fn leads_to(&self, port: u16) {
        eventually("connections go to it", || async {
            let routed = self.state.routed.lock();
            holds(routed.iter().any(|r| r.port == port), format!("{routed:?}"))
        })
        .await;
    }

    /// Says that a replica is about to be killed. As in a cluster, connections still go there for a while.
    pub fn will_be_killed(&self, port: u16) {
        self.state.killed.lock().insert(port);
    }

    /// Whether any replica has been killed.
    pub fn has_killed(&self) -> bool {
        !self.state.killed.lock().is_empty()
    }

    /// Whether the connection that comes from this port of a client leads to a replica that has been killed.
    pub fn led_to_killed(&self, client: u16) -> bool {
        let replica = self.state.led.lock().get(&client).copied();
        replica.is_some_and(|replica| self.state.killed.lock().contains(&replica))
    }

    /// Connections so far, and those of them that went to a replica after it had said that it was no longer ready.
    pub fn connections(&self) -> (u64, u64) {
        (self.state.connections.load(Ordering::Relaxed), self.state.late.load(Ordering::Relaxed))
    }
}

impl State {
    async fn follow(self: Arc<Self>, port: u16, admin: u16) {
        while !is_ready(admin).await {
            sleep(PERIOD).await;
        }
        self.routed.lock().push(Replica { port, unready: None });
        while is_ready(admin).await {
            sleep(PERIOD).await;
        }
        for replica in self.routed.lock().iter_mut().filter(|r| r.port == port) {
            replica.unready = Some(Instant::now());
        }
        sleep(LAG).await;
        self.routed.lock().retain(|r| r.port != port);
    }

    async fn connection(self: Arc<Self>, mut client: TcpStream) {
        let chosen = self.routed.lock().choose(&mut rand::rng()).copied();
        // Without anybody to lead to, or anybody there, the client finds its connection closed.
        let Some(replica) = chosen else { return };
        if let Ok(from) = client.peer_addr() {
            self.led.lock().insert(from.port(), replica.port);
        }
        let Ok(mut server) = TcpStream::connect(("127.0.0.1", replica.port)).await else { return };
        self.connections.fetch_add(1, Ordering::Relaxed);
        if replica.unready.is_some() {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}

async fn is_ready(admin: u16) -> bool {
    get(admin, "/readyz").await.is_ok_and(|(status, _)| status == 200)
}
