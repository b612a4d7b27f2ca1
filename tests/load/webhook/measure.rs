//! Load on the two servers, in turns.
//!
//! The closed loop sends the next request of a connection when the last is answered: it shows throughput. The open loop sends at a
//! constant rate and counts from the time when a request was due, so that a pause of the server counts for all requests that it
//! delays: it shows latency.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use hdrhistogram::Histogram;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use outrigger_runtime::tls::ClientTls;
use outrigger_tests::cost;
use outrigger_tests::pki::Authority;
use outrigger_tests::report::{self, Row};
use tokio::time::Instant;

use crate::cases::{Case, cases};

const ROUND: Duration = Duration::from_secs(3);
const ROUNDS: usize = 3;
const FLOOR_IS: &str = "no decoding";

/// Requests a second of the open loop, and its connections.
const RATE: (u32, usize) = (5_000, 64);

/// Requests a second at which the processor time of one is measured.
const IDLE: (u32, usize) = (100, 1);

struct Process {
    child: Child,
    port: u16,
}

impl Process {
    fn start(role: &str, dir: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env("OUTRIGGER_BENCH_ROLE", role)
            .env("OUTRIGGER_BENCH_DIR", dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, port: line.trim().parse().unwrap() }
    }

    /// The most memory that it has had, MiB.
    fn memory(&self) -> f64 {
        cost::peak(self.child.id()) as f64 / f64::from(1 << 20)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server under load, and what is sent to it.
#[derive(Clone)]
struct Target {
    port: u16,
    config: Arc<tokio_rustls::rustls::ClientConfig>,
    path: String,
    body: Bytes,
}

impl Target {
    fn new(process: &Process, ca: &Path, case: &Case) -> Self {
        let config = ClientTls { ca: ca.to_owned(), identity: None }.config(&[b"http/1.1"]).unwrap();
        let path = format!("{}?timeout=10s", case.path);
        Self { port: process.port, config: Arc::new(config), path, body: case.body.clone() }
    }

    async fn connect(&self) -> SendRequest<Full<Bytes>> {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let connector = tokio_rustls::TlsConnector::from(self.config.clone());
        let stream = connector.connect("127.0.0.1".try_into().unwrap(), stream).await.unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    async fn ask(&self, sender: &mut SendRequest<Full<Bytes>>) {
        let request = http::Request::post(&self.path)
            .header("host", "webhook")
            .header("content-type", "application/json")
            .body(Full::new(self.body.clone()))
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        let answer = response.into_body().collect().await.unwrap().to_bytes();
        assert!(answer.windows(14).any(|w| w == b"\"allowed\":true"), "{answer:?}");
    }
}

/// Nanoseconds of all requests.
type Times = Histogram<u64>;

fn milliseconds(times: &Times, quantile: f64) -> f64 {
    times.value_at_quantile(quantile) as f64 / 1e6
}

async fn all(tasks: Vec<tokio::task::JoinHandle<Times>>) -> Times {
    let mut all = Times::new(3).unwrap();
    for task in tasks {
        all.add(task.await.unwrap()).unwrap();
    }
    all
}

fn record(times: &mut Times, since: Instant) {
    times.record(u64::try_from(since.elapsed().as_nanos()).unwrap()).unwrap();
}

/// The next request of a connection follows the last answer.
async fn closed_loop(target: &Target, connections: usize) -> Times {
    let end = Instant::now() + ROUND;
    let client = |target: Target| async move {
        let (mut sender, mut times) = (target.connect().await, Times::new(3).unwrap());
        while Instant::now() < end {
            let began = Instant::now();
            target.ask(&mut sender).await;
            record(&mut times, began);
        }
        times
    };
    all((0..connections).map(|_| tokio::spawn(client(target.clone()))).collect()).await
}

/// A request is due each time, whether or not the last is answered. A thread of its own says when, because tokio's timers are
/// exact to a millisecond only.
async fn open_loop(target: &Target, (rate, connections): (u32, usize)) -> Times {
    let (mut ticks, mut tasks) = (Vec::new(), Vec::new());
    for _ in 0..connections {
        let (tick, mut due) = tokio::sync::mpsc::unbounded_channel::<Instant>();
        let (target, mut sender) = (target.clone(), target.connect().await);
        ticks.push(tick);
        tasks.push(tokio::spawn(async move {
            let mut times = Times::new(3).unwrap();
            while let Some(due) = due.recv().await {
                target.ask(&mut sender).await;
                record(&mut times, due);
            }
            times
        }));
    }
    std::thread::spawn(move || {
        let (start, step) = (Instant::now(), Duration::from_secs(1) / rate);
        for (i, tick) in (0..rate * u32::try_from(ROUND.as_secs()).unwrap()).zip(ticks.iter().cycle()) {
            let due = start + step * i;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            tick.send(due).unwrap();
        }
    });
    all(tasks).await
}

pub(crate) async fn measure() {
    let dir = std::env::temp_dir().join(format!("outrigger-bench-{}", std::process::id()));
    let authority = Authority::new(&dir, "bench").unwrap();
    authority.issue("server", &["127.0.0.1"]).unwrap();
    let ca = authority.file();
    let mut rows = Vec::new();
    let (floor, ours) = (Process::start("floor", &dir), Process::start("webhook", &dir));
    let cases = cases();
    for case in &cases {
        let targets = [&floor, &ours].map(|process| Target::new(process, &ca, case));
        let size = case.body.len();
        for connections in [1, 16, 64] {
            let name = format!("{}, {size} B, {connections} connections", case.what);
            if report::is_wanted("webhook", &name) {
                rows.extend(throughput(&name, &targets, connections).await);
            }
        }
    }
    let by_hand = cases.first().expect("a case");
    let targets = [&floor, &ours].map(|process| Target::new(process, &ca, by_hand));
    let name = format!("processor time of a review at {}/s", IDLE.0);
    if report::is_wanted("webhook", &name) {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let mut pair = [0.0; 2];
            for (i, process) in [&floor, &ours].into_iter().enumerate() {
                let before = cost::processor_time(process.child.id());
                let count = open_loop(&targets[i], IDLE).await.len();
                let spent = cost::processor_time(process.child.id()).saturating_sub(before);
                pair[i] = spent.as_secs_f64() * 1000.0 / count as f64;
            }
            rounds.push((pair[1], pair[0]));
        }
        rows.push(Row::new(&name, "ms", FLOOR_IS, &rounds));
    }
    let full = Process::start("full", &dir);
    let targets = [&floor, &full].map(|process| Target::new(process, &ca, by_hand));
    let name = format!("{}/s, 10,000 rules, 1,000 tenants, 10,000 Nodes", RATE.0);
    if report::is_wanted("webhook", &name) {
        rows.extend(latency(&name, &targets).await);
        rows.push(Row::new(&format!("memory, {name}"), "MiB", FLOOR_IS, &[(full.memory(), floor.memory())]));
    }
    println!("{}", report::write("webhook", &rows).unwrap());
    let _ = std::fs::remove_dir_all(dir);
}

async fn throughput(name: &str, targets: &[Target; 2], connections: usize) -> [Row; 3] {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds
            .push((closed_loop(&targets[1], connections).await, closed_loop(&targets[0], connections).await));
    }
    let row = |what: &str, unit: &str, of: &dyn Fn(&Times) -> f64| {
        let pairs: Vec<_> = rounds.iter().map(|(ours, floor)| (of(ours), of(floor))).collect();
        Row::new(&format!("{name}, {what}"), unit, FLOOR_IS, &pairs)
    };
    [
        row("reviews", "/s", &|times| times.len() as f64 / ROUND.as_secs_f64()),
        row("p50", "ms", &|times| milliseconds(times, 0.5)),
        row("p99", "ms", &|times| milliseconds(times, 0.99)),
    ]
}

async fn latency(name: &str, targets: &[Target; 2]) -> [Row; 3] {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push((open_loop(&targets[1], RATE).await, open_loop(&targets[0], RATE).await));
    }
    [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)].map(|(what, quantile)| {
        let of = |times: &Times| milliseconds(times, quantile);
        let pairs: Vec<_> = rounds.iter().map(|(ours, floor)| (of(ours), of(floor))).collect();
        Row::new(&format!("{what}, {name}"), "ms", FLOOR_IS, &pairs)
    })
}
