//! Outrigger's webhook beside those of other projects that can do the same to a Pod: Liqo's for Pods in offloaded namespaces, and
//! Kyverno's with equivalent policies.
//!
//! Each is a process of its own on the same control plane, from which it fills its caches. The same reviews go to both in turns,
//! over the same number of connections, and the order changes with each round. What a server answers is checked before it is
//! measured. Only one of the others runs at a time.

mod case;
mod kyverno;
mod liqo;

use outrigger_tests::control_plane::{ControlPlane, tool};
use outrigger_tests::generator::{ROUND, Target, Times, closed_loop, milliseconds};
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::report::{self, Row};
use outrigger_tests::{cost, eventually, root};

use case::Case;

const ROUNDS: usize = 5;
const CONNECTIONS: [usize; 3] = [1, 16, 64];

/// Where Outrigger's webhook is asked.
const OURS: &str = "/mutate/pods";

/// Another project's server.
struct Peer {
    name: &'static str,
    /// Its directory in `tests/peers`, and its process.
    dir: &'static str,
    /// Its Go module, whose version `go.mod` says.
    module: &'static str,
    cases: fn() -> Vec<Case>,
    /// Starts the program, which is built already, with what it needs in the cluster.
    start: fn(&Outrigger, String) -> anyhow::Result<Started>,
}

/// A server that was started: its port, and the argument by which its process is found.
struct Started {
    port: u16,
    argument: String,
}

/// One of the two servers.
struct Server {
    port: u16,
    pid: u32,
}

/// What a round shows.
struct Round {
    times: Times,
    /// Milliseconds of processor time a review.
    cpu: f64,
    /// MiB, at its end.
    memory: f64,
}

/// Measures, and prints the rows.
pub(crate) async fn run() {
    let wanted = |peer: &Peer| (peer.cases)().iter().any(|case| !wanted(peer, case).is_empty());
    let peers: Vec<_> = [liqo::PEER, kyverno::PEER].into_iter().filter(wanted).collect();
    assert!(!peers.is_empty(), "no row is called so");
    // Before anything runs beside it.
    let programs: Vec<_> = peers.iter().map(|peer| tool(&format!("peers/{}", peer.dir)).unwrap()).collect();
    let o = Outrigger::new(ControlPlane::start().unwrap()).unwrap();
    o.define().unwrap();
    o.start_webhook().unwrap();
    o.ready_at("webhook", o.webhook_admin).await;
    let own = format!("--bind-address=127.0.0.1:{}", o.webhook_port);
    let ours = Server { port: o.webhook_port, pid: cost::process(&own) };
    let mut rows = Vec::new();
    for (peer, program) in peers.iter().zip(programs) {
        let Started { port, argument } = (peer.start)(&o, program.display().to_string()).unwrap();
        let runs = || async { cost::find(&argument).ok_or("not yet") };
        let theirs = Server { port, pid: eventually("its process runs", runs).await };
        rows.extend(measure(&o, peer, [&ours, &theirs]).await);
        o.plane.command(&format!("stop {}", peer.dir)).unwrap();
    }
    report::record("peers", &rows);
}

/// The rows of a case that are to be measured: their connections, and how their names begin.
fn wanted(peer: &Peer, case: &Case) -> Vec<(usize, String)> {
    let begins = |n| format!("{}, {}, {} B, {n} connections", peer.name, case.what, case.review.body.len());
    let named = CONNECTIONS.into_iter().map(|n| (n, begins(n)));
    named.filter(|(_, name)| report::is_wanted("peers", name)).collect()
}

async fn measure(o: &Outrigger, peer: &Peer, [ours, theirs]: [&Server; 2]) -> Vec<Row> {
    let floor_is = format!("{} {}", peer.name, version(peer));
    let mut rows = Vec::new();
    for case in (peer.cases)() {
        let wanted = wanted(peer, &case);
        if wanted.is_empty() {
            continue;
        }
        for (who, server, path) in [("Outrigger", ours, OURS), (peer.name, theirs, case.path)] {
            eventually(&format!("{who} answers: {}", case.what), || case.check(o, server, path)).await;
        }
        for (connections, name) in wanted {
            let mut rounds = Vec::new();
            for i in 0..=ROUNDS {
                rounds.push(if i % 2 == 0 {
                    let first = round(o, ours, OURS, &case, connections).await;
                    (first, round(o, theirs, case.path, &case, connections).await)
                } else {
                    let first = round(o, theirs, case.path, &case, connections).await;
                    (round(o, ours, OURS, &case, connections).await, first)
                });
            }
            // The first warms up.
            rows.extend(rows_of(&name, &floor_is, &rounds[1..]));
        }
    }
    rows
}

/// The version that its `go.mod` requires.
fn version(peer: &Peer) -> String {
    let file = std::fs::read_to_string(root().join("tests/peers").join(peer.dir).join("go.mod")).unwrap();
    let mut words = file.split_whitespace().skip_while(|word| *word != peer.module);
    words.nth(1).expect("a version").to_owned()
}

async fn round(o: &Outrigger, server: &Server, path: &str, case: &Case, connections: usize) -> Round {
    let target = Target::new(server.port, &o.authority.file(), path, case.review.body.clone());
    let before = cost::processor_time(server.pid);
    let times = closed_loop(&target, connections).await;
    let spent = cost::processor_time(server.pid).saturating_sub(before);
    let cpu = spent.as_secs_f64() * 1000.0 / times.len() as f64;
    Round { times, cpu, memory: cost::mebibytes(cost::resident(server.pid)) }
}

fn rows_of(name: &str, floor_is: &str, rounds: &[(Round, Round)]) -> [Row; 5] {
    let row = |what: &str, unit: &str, of: &dyn Fn(&Round) -> f64| {
        let pairs: Vec<_> = rounds.iter().map(|(ours, theirs)| (of(ours), of(theirs))).collect();
        Row::new(&format!("{name}, {what}"), unit, floor_is, &pairs)
    };
    [
        row("reviews", "/s", &|round| round.times.len() as f64 / ROUND.as_secs_f64()),
        row("p50", "ms", &|round| milliseconds(&round.times, 0.5)),
        row("p99", "ms", &|round| milliseconds(&round.times, 0.99)),
        row("processor time of a review", "ms", &|round| round.cpu),
        row("memory", "MiB", &|round| round.memory),
    ]
}
