//! Light agents: a TLS connection of HTTP/2 each, with the certificate of its tenant, and one stream on it. They connect again after
//! the pauses of the real one, at a manager that is chosen by chance, as a Service would choose it.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use h2::SendStream;
use outrigger_api::workload_wire::CHUNK_WORKLOADS;
use outrigger_proto::v1::workload_chunked_stream_request::Message;
use outrigger_proto::v1::{
    WorkloadChunkedStreamRequest, WorkloadSyncBegin, WorkloadSyncChunk, WorkloadSyncEnd, WorkloadUpdate,
};
use outrigger_runtime::tls::ClientTls;
use outrigger_tests::outrigger::tenant_identity;
use outrigger_tests::pki::Authority;
use outrigger_tests::stream::{pod_of_deployment, set_label};
use parking_lot::{Mutex, RwLock};
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;

use crate::fleet::cluster::host_name;

/// Where streams of workloads are opened.
const PATH: &str = "https://127.0.0.1/universe.workload.v1.WorkloadService/WorkloadChunkedStream";
/// Smallest and largest pause between two attempts, as the agent has them.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(15));
/// How long the agent waits for a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// A stream that lasted longer resets the pauses.
const STABLE: Duration = Duration::from_secs(10);

/// What each tenant has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TenantSize {
    /// Hosts, on which its workloads take turns.
    pub(crate) hosts: usize,
    /// How many of its workloads its rule matches.
    pub(crate) matched: usize,
}

/// What all agents of a fleet share.
pub(crate) struct Shared {
    /// Ports of the managers that a Service would know.
    ports: RwLock<Vec<u16>>,
    /// Workloads of each agent.
    workloads: AtomicUsize,
    tenant: TenantSize,
    attempts: AtomicU64,
    /// Attempts that failed, by what they failed with.
    failures: Mutex<BTreeMap<String, u64>>,
    /// Whether the end of a stream is wanted, and so no failure.
    cutting: AtomicBool,
}

/// Agents of tenants, one each.
pub(crate) struct Fleet {
    pub(crate) shared: Arc<Shared>,
    agents: Vec<Handle>,
    cut: watch::Sender<()>,
    _tasks: JoinSet<()>,
}

struct Handle {
    commands: mpsc::UnboundedSender<Command>,
    /// What it connects with the next time.
    config: Config,
    /// The port that it is connected to; 0 for none.
    at: Arc<AtomicU16>,
}

type Config = Arc<Mutex<Arc<ClientConfig>>>;

/// What an agent is to send.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Command {
    /// All of its workloads.
    Sync,
    /// Updates of workloads, from this one on, so many, with this version in a label.
    Update(usize, usize, usize),
}

impl Fleet {
    /// Agents of the tenants `t0`, `t1`, and so on. They connect at once.
    pub(crate) fn start(authority: &Authority, tenants: usize, tenant: TenantSize, ports: Vec<u16>) -> Self {
        let shared = Arc::new(Shared {
            ports: RwLock::new(ports),
            workloads: AtomicUsize::new(0),
            tenant,
            attempts: AtomicU64::new(0),
            failures: Mutex::default(),
            cutting: AtomicBool::new(false),
        });
        let cut = watch::Sender::new(());
        let mut tasks = JoinSet::new();
        let ca = authority.file();
        let configs: Vec<_> = (0..tenants).map(|number| config(authority, &ca, number)).collect();
        let agents = configs.into_iter().enumerate().map(|(number, config)| {
            let (commands, receiver) = mpsc::unbounded_channel();
            let (at, config) = (Arc::new(AtomicU16::new(0)), Arc::new(Mutex::new(config)));
            let agent = Agent {
                number,
                config: config.clone(),
                shared: shared.clone(),
                at: at.clone(),
                versions: Mutex::default(),
            };
            tasks.spawn(agent.run(receiver, cut.subscribe()));
            Handle { commands, config, at }
        });
        let agents = agents.collect();
        Self { shared, agents, cut, _tasks: tasks }
    }

    /// From their next connection on, agents have certificates of this authority. The managers' are still of the one with this CA.
    pub(crate) fn identify(&self, authority: &Authority, managers_ca: &Path) {
        for (number, agent) in self.agents.iter().enumerate() {
            *agent.config.lock() = config(authority, managers_ca, number);
        }
    }

    /// How many are connected.
    pub(crate) fn connected(&self) -> usize {
        self.agents.iter().filter(|agent| agent.at.load(Ordering::Relaxed) != 0).count()
    }

    /// The managers that agents find from now on.
    pub(crate) fn find(&self, ports: Vec<u16>) {
        *self.shared.ports.write() = ports;
    }

    /// How many are connected to this port.
    pub(crate) fn connected_to(&self, port: u16) -> usize {
        self.agents.iter().filter(|agent| agent.at.load(Ordering::Relaxed) == port).count()
    }

    pub(crate) fn send(&self, command: Command) {
        self.send_to(self.agents.len(), command);
    }

    /// Sends a command to the agents of the first so many tenants.
    pub(crate) fn send_to(&self, tenants: usize, command: Command) {
        for agent in &self.agents[..tenants] {
            agent.commands.send(command).unwrap();
        }
    }

    /// Each has so many workloads from now on.
    pub(crate) fn have(&self, workloads: usize) {
        self.shared.workloads.store(workloads, Ordering::Relaxed);
    }

    /// All connections end at once, and agents connect again.
    pub(crate) fn cut(&self) {
        self.shared.cutting.store(true, Ordering::Relaxed);
        self.cut.send_replace(());
    }

    /// Attempts since the last call, and failures by their reasons.
    pub(crate) fn attempts(&self) -> (u64, BTreeMap<String, u64>) {
        self.shared.cutting.store(false, Ordering::Relaxed);
        (self.shared.attempts.swap(0, Ordering::Relaxed), std::mem::take(&mut self.shared.failures.lock()))
    }
}

/// The certificate of an agent, from this authority, and the CA of managers.
fn config(authority: &Authority, managers_ca: &Path, number: usize) -> Arc<ClientConfig> {
    let tenant = format!("t{number}");
    let pair = authority.issue(&format!("agent-{tenant}"), &[&tenant_identity(&tenant)]).unwrap();
    let tls = ClientTls { ca: managers_ca.to_owned(), identity: Some((pair.cert, pair.key)) };
    Arc::new(tls.config(&[b"h2"]).unwrap())
}

struct Agent {
    number: usize,
    config: Config,
    shared: Arc<Shared>,
    at: Arc<AtomicU16>,
    /// Versions of workloads that have changed.
    versions: Mutex<BTreeMap<usize, usize>>,
}

impl Agent {
    async fn run(self, mut commands: mpsc::UnboundedReceiver<Command>, mut cut: watch::Receiver<()>) {
        let mut failures = 0;
        loop {
            let began = tokio::time::Instant::now();
            let port = {
                let ports = self.shared.ports.read();
                ports[rand::random_range(0..ports.len())]
            };
            self.shared.attempts.fetch_add(1, Ordering::Relaxed);
            let ended = tokio::select! {
                ended = self.stream(port, &mut commands) => ended,
                _ = cut.changed() => Ok(()),
            };
            self.at.store(0, Ordering::Relaxed);
            if let Err(reason) = ended
                && !self.shared.cutting.load(Ordering::Relaxed)
            {
                *self.shared.failures.lock().entry(reason).or_default() += 1;
            }
            failures = if began.elapsed() > STABLE { 0 } else { failures + 1 };
            let pause = PAUSES.0 * 2u32.pow(failures.min(11));
            tokio::time::sleep(pause.mul_f64(rand::random_range(1.0..2.0)).min(PAUSES.1)).await;
        }
    }

    /// One stream, from its connection to its end.
    async fn stream(&self, port: u16, commands: &mut mpsc::UnboundedReceiver<Command>) -> Result<(), String> {
        let connected = tokio::time::timeout(CONNECT, async {
            let stream =
                TcpStream::connect(("127.0.0.1", port)).await.map_err(|e| format!("TCP: {}", e.kind()))?;
            let _ = stream.set_nodelay(true);
            let connector = TlsConnector::from(self.config.lock().clone());
            let name = "127.0.0.1".try_into().unwrap();
            connector.connect(name, stream).await.map_err(|e| format!("TLS: {}", e.kind()))
        });
        let stream = connected.await.map_err(|_| "no connection within 10 s".to_owned())??;
        let h2 = |error: h2::Error| {
            format!("HTTP/2: {}", if error.is_io() { "connection closed".into() } else { error.to_string() })
        };
        let (mut sender, connection) = h2::client::handshake(stream).await.map_err(h2)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = connection.await;
        });
        let request = http::Request::post(PATH)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("tenant-id", format!("t{}", self.number))
            .body(())
            .unwrap();
        let (response, mut stream) = sender.send_request(request, false).map_err(h2)?;
        let sending = async {
            self.sync(&mut stream).await.map_err(h2)?;
            self.at.store(port, Ordering::Relaxed);
            while let Some(command) = commands.recv().await {
                match command {
                    Command::Sync => self.sync(&mut stream).await,
                    Command::Update(first, count, version) => {
                        self.updates(&mut stream, first, count, version).await
                    }
                }
                .map_err(h2)?;
            }
            Ok::<_, String>(())
        };
        tokio::select! {
            biased;
            response = response => {
                let response = response.map_err(h2)?;
                let status = |map: &http::HeaderMap| {
                    let header = |name| map.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
                    format!("gRPC {}: {}", header("grpc-status"), shortened(&header("grpc-message")))
                };
                Err(status(response.headers()))
            }
            sent = sending => sent,
        }
    }

    fn workload(&self, i: usize) -> WorkloadUpdate {
        let version = self.versions.lock().get(&i).copied().unwrap_or_default();
        let mut workload = pod_of_deployment(self.number, i, version);
        let TenantSize { hosts, matched } = self.shared.tenant;
        if let Some(state) = &mut workload.workload_state {
            state.node_name = host_name(self.number, i % hosts);
        }
        if i < matched {
            set_label(&mut workload, "app", "web");
        }
        workload
    }

    async fn sync(&self, stream: &mut SendStream<Bytes>) -> Result<(), h2::Error> {
        let count = self.shared.workloads.load(Ordering::Relaxed);
        let workloads = i64::try_from(count).unwrap();
        send(stream, Message::WorkloadSyncBegin(WorkloadSyncBegin { workloads })).await?;
        for first in (0..count).step_by(CHUNK_WORKLOADS) {
            let last = count.min(first + CHUNK_WORKLOADS);
            let workload_updates = (first..last).map(|i| self.workload(i)).collect();
            send(stream, Message::WorkloadSyncChunk(WorkloadSyncChunk { workload_updates })).await?;
        }
        send(stream, Message::WorkloadSyncEnd(WorkloadSyncEnd {})).await
    }

    async fn updates(
        &self,
        stream: &mut SendStream<Bytes>,
        first: usize,
        count: usize,
        version: usize,
    ) -> Result<(), h2::Error> {
        for i in first..first + count {
            self.versions.lock().insert(i, version);
            send(stream, Message::WorkloadUpdate(self.workload(i))).await?;
        }
        Ok(())
    }
}

/// A reason without the names and numbers that differ from agent to agent.
fn shortened(reason: &str) -> String {
    reason
        .split("%20")
        .filter(|word| !word.contains(|c: char| c.is_ascii_digit()))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Sends a message as gRPC frames it, as far as the other side takes it.
async fn send(stream: &mut SendStream<Bytes>, message: Message) -> Result<(), h2::Error> {
    let message = WorkloadChunkedStreamRequest { message: Some(message) };
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.encoded_len()).unwrap());
    message.encode(&mut frame).unwrap();
    let mut frame = frame.freeze();
    while !frame.is_empty() {
        stream.reserve_capacity(frame.len());
        let closed = || h2::Error::from(h2::Reason::STREAM_CLOSED);
        let granted = poll_fn(|cx| stream.poll_capacity(cx)).await.ok_or_else(closed)??;
        stream.send_data(frame.split_to(granted.min(frame.len())), false)?;
    }
    Ok(())
}
