//! Load on the two servers, in turns.

use std::path::Path;

use outrigger_tests::cost;
use outrigger_tests::generator::{ROUND, Target, Times, closed_loop, milliseconds, open_loop};
use outrigger_tests::report::{self, Row};
use outrigger_tests::role::{Process, Roles};

use crate::cases::{Case, cases};

const ROUNDS: usize = 3;
const FLOOR_IS: &str = "no decoding";

/// Requests a second of the open loop, and its connections.
const RATE: (u32, usize) = (5_000, 64);

/// Requests a second at which the processor time of one is measured, and the rounds of it.
const IDLE: (u32, usize) = (100, 1);
const IDLE_ROUNDS: usize = 10;

fn target(process: &Process, ca: &Path, case: &Case) -> Target {
    Target::new(process.port, ca, case.path, case.body.clone())
}

/// The most memory that a process has had, MiB.
fn memory(process: &Process) -> f64 {
    cost::peak(process.id()) as f64 / f64::from(1 << 20)
}

pub(crate) async fn measure() {
    let roles = Roles::new().unwrap();
    let ca = roles.authority.file();
    let mut rows = Vec::new();
    let (floor, ours) = (roles.start("floor"), roles.start("webhook"));
    let cases = cases();
    for case in &cases {
        let targets = [&floor, &ours].map(|process| target(process, &ca, case));
        let size = case.body.len();
        for connections in [1, 16, 64] {
            let name = format!("{}, {size} B, {connections} connections", case.what);
            if report::is_wanted("webhook", &name) {
                rows.extend(throughput(&name, &targets, connections).await);
            }
        }
    }
    let by_hand = cases.first().expect("a case");
    let targets = [&floor, &ours].map(|process| target(process, &ca, by_hand));
    let name = format!("processor time of a review at {}/s", IDLE.0);
    if report::is_wanted("webhook", &name) {
        let mut rounds = Vec::new();
        for _ in 0..IDLE_ROUNDS {
            let mut pair = [0.0; 2];
            for (i, process) in [&floor, &ours].into_iter().enumerate() {
                let before = cost::processor_time(process.id());
                let count = open_loop(&targets[i], IDLE).await.len();
                let spent = cost::processor_time(process.id()).saturating_sub(before);
                pair[i] = spent.as_secs_f64() * 1000.0 / count as f64;
            }
            rounds.push((pair[1], pair[0]));
        }
        rows.push(Row::new(&name, "ms", FLOOR_IS, &rounds));
    }
    let full = roles.start("full");
    let targets = [&floor, &full].map(|process| target(process, &ca, by_hand));
    let name = format!("{}/s, 10,000 rules, 1,000 tenants, 10,000 Nodes", RATE.0);
    if report::is_wanted("webhook", &name) {
        rows.extend(latency(&name, &targets).await);
        rows.push(Row::new(&format!("memory, {name}"), "MiB", FLOOR_IS, &[(memory(&full), memory(&floor))]));
    }
    println!("{}", report::write("webhook", &rows).unwrap());
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
