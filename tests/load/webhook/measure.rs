//! Load on the two servers, in turns.

use std::path::Path;
use std::time::Duration;

use outrigger_tests::cost;
use outrigger_tests::generator::{ROUND, Target, Times, closed_loop, milliseconds, open_loop};
use outrigger_tests::report::{self, Row};
use outrigger_tests::role::{Process, Roles};

use crate::webhook::CONSTANT;
use crate::webhook::cases::{Case, cases};

const ROUNDS: usize = 3;
const FLOOR_IS: &str = "no decoding";
/// What the other floor is, for the kinds of reviews that are compared with it.
const CONSTANT_IS: &str = "the uid, and a constant patch";
const CONSTANTS: [&str; 2] = ["Pod made by hand", "companion"];

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
    cost::mebibytes(cost::peak(process.id()))
}

pub(crate) async fn measure() {
    let roles = Roles::new().unwrap();
    let ca = roles.authority.file();
    let mut rows = Vec::new();
    let (floor, ours) = (roles.start("floor"), roles.start("webhook"));
    let constant = roles.start(CONSTANT);
    let cases = cases();
    for case in &cases {
        let size = case.body.len();
        for connections in [1, 16, 64] {
            let name = format!("{}, {size} B, {connections} connections", case.what);
            if report::is_wanted("webhook", &name) {
                rows.extend(throughput(&name, case, [&ours, &floor], &ca, FLOOR_IS, connections).await);
            }
        }
    }
    for case in cases.iter().filter(|case| CONSTANTS.contains(&case.what)) {
        let name = format!("{}, {} B, 16 connections", case.what, case.body.len());
        if report::is_wanted("webhook", &name) {
            rows.extend(throughput(&name, case, [&ours, &constant], &ca, CONSTANT_IS, 16).await);
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
    report::record("webhook", &rows);
}

/// Reviews of one kind at two servers in turns, ours first.
async fn throughput(
    name: &str,
    case: &Case,
    servers: [&Process; 2],
    ca: &Path,
    floor_is: &str,
    connections: usize,
) -> [Row; 4] {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut pair = Vec::new();
        for server in servers {
            let before = cost::processor_time(server.id());
            let times = closed_loop(&target(server, ca, case), connections).await;
            let spent = cost::processor_time(server.id()).saturating_sub(before);
            pair.push((times, spent));
        }
        rounds.push(pair);
    }
    let row = |what: &str, unit: &str, of: &dyn Fn(&(Times, Duration)) -> f64| {
        let pairs: Vec<_> = rounds.iter().map(|pair| (of(&pair[0]), of(&pair[1]))).collect();
        Row::new(&format!("{name}, {what}"), unit, floor_is, &pairs)
    };
    [
        row("reviews", "/s", &|(times, _)| times.len() as f64 / ROUND.as_secs_f64()),
        row("p50", "ms", &|(times, _)| milliseconds(times, 0.5)),
        row("p99", "ms", &|(times, _)| milliseconds(times, 0.99)),
        row("processor time", "us", &|(times, spent)| spent.as_secs_f64() * 1e6 / times.len() as f64),
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
