//! What the parts of Outrigger cost on their Nodes at rest and with a hundred companions, and how long two hundred more take.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use outrigger_tests::rack::blue::{CONTROL, DPU, HOST};
use outrigger_tests::rack::workloads::{deployment, ready};
use outrigger_tests::rack::{Machine, Rack};
use outrigger_tests::report::Row;
use outrigger_tests::{cost, create};

use super::{all_began, between, companions, copy, delete, gone, rule_for};

/// The rows of this module.
pub(super) const ROWS: [&str; 5] = [
    "memory at rest",
    "processor time at rest",
    "memory with 100 companions",
    "processor time with 100 companions",
    "200 companions on a DPU that has 100, until all containers run",
];

/// Each part, and where it runs.
const PARTS: [(&str, Machine); 3] = [("agent", HOST), ("manager", CONTROL), ("webhook", CONTROL)];
/// Workloads, and so companions of a rule.
const WORKLOADS: usize = 100;
/// As many requests as the manager has under way for one tenant.
const UNDER_WAY: usize = 50;
/// After that, what went before has no more consequences.
const SETTLED: Duration = Duration::from_secs(15);
/// Time for which the processes' time is counted.
const SPAN: Duration = Duration::from_secs(30);

/// What a part and the kubelet of its Node take: the most of its replicas.
#[derive(Debug, Clone, Copy)]
struct Cost {
    /// MiB.
    memory: f64,
    /// Milliseconds of a processor in a second.
    time: f64,
    /// The same of the kubelet.
    kubelet: f64,
}

pub(super) async fn measure(rack: &Rack) -> Vec<Row> {
    let (infra, hosts) = (&rack.plane.infra, &rack.plane.tenant);
    let rest = costs(rack).await;
    infra.apply(&[rule_for(&companions(), "crowd-0", "crowd", "Parallel")]).unwrap();
    hosts.apply(&[deployment("crowd", WORKLOADS)]).unwrap();
    all_began(rack, HOST, "crowd", WORKLOADS).await;
    all_began(rack, DPU, "crowd", WORKLOADS).await;
    let crowded = costs(rack).await;
    let mut rows = cost_rows(&rest, &crowded);

    let floor = by_client(rack).await;
    let figure = by_rules(rack).await;
    rows.push(Row::new(
        ROWS[4],
        "s",
        "the same Pods, by a bare client",
        &[(figure.as_secs_f64(), floor.as_secs_f64())],
    ));
    let with_300 = costs(rack).await;
    println!("with 300 companions: {with_300:?}");

    hosts.kubectl(&["delete", "deployment", "crowd"]).unwrap();
    gone(rack, "infra", "crowd").await;
    gone(rack, "tenant", "crowd").await;
    rows
}

/// What each part costs from now on, when what is under way has ended.
async fn costs(rack: &Rack) -> [Cost; 3] {
    tokio::time::sleep(SETTLED).await;
    let times =
        || PARTS.map(|(part, machine)| (all_of(rack, machine, part), all_of(rack, machine, "kubelet")));
    let before = times();
    tokio::time::sleep(SPAN).await;
    let after = times();
    std::array::from_fn(|i| Cost {
        memory: after[i].0.iter().map(|process| process.memory).fold(0.0, f64::max),
        time: most(&before[i].0, &after[i].0),
        kubelet: most(&before[i].1, &after[i].1),
    })
}

/// A process, as it is now.
#[derive(Debug, Clone, Copy)]
struct Process {
    pid: u32,
    memory: f64,
    time: Duration,
}

fn all_of(rack: &Rack, machine: Machine, part: &str) -> Vec<Process> {
    let found = rack.processes(machine, part).unwrap();
    assert!(!found.is_empty(), "no {part} on {}", machine.name);
    let of = |pid: nix::unistd::Pid| {
        let pid = pid.as_raw().unsigned_abs();
        Process { pid, memory: cost::mebibytes(cost::resident(pid)), time: cost::processor_time(pid) }
    };
    found.into_iter().map(of).collect()
}

/// Milliseconds of processor time in a second, of the process that took most. Panics if one has ended.
fn most(before: &[Process], after: &[Process]) -> f64 {
    let of = |old: &Process| {
        let new = after.iter().find(|new| new.pid == old.pid).expect("it runs on");
        (new.time - old.time).as_secs_f64() * 1000.0 / SPAN.as_secs_f64()
    };
    before.iter().map(of).fold(0.0, f64::max)
}

fn cost_rows(rest: &[Cost; 3], crowded: &[Cost; 3]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (i, (part, _)) in PARTS.into_iter().enumerate() {
        let (rest, crowded) = (rest[i], crowded[i]);
        let limit = cost::mebibytes(cost::memory_limit(part));
        let mut row = |what: &str, unit, floor_is, pair| {
            rows.push(Row::new(&format!("{part}, {what}"), unit, floor_is, &[pair]));
        };
        row(ROWS[0], "MiB", "the limit of its Pod", (rest.memory, limit));
        row(ROWS[1], "ms a second", "its Node's kubelet", (rest.time, rest.kubelet));
        row(ROWS[2], "MiB", "at rest", (crowded.memory, rest.memory));
        row(ROWS[3], "ms a second", "its Node's kubelet", (crowded.time, crowded.kubelet));
    }
    rows
}

/// Two more rules for the same workloads.
async fn by_rules(rack: &Rack) -> Duration {
    let begin = Timestamp::now();
    let rules = ["crowd-1", "crowd-2"].map(|name| rule_for(&companions(), name, "crowd", "Parallel"));
    rack.plane.infra.apply(&rules).unwrap();
    between(begin, all_began(rack, DPU, "crowd", 3 * WORKLOADS).await)
}

/// As many Pods that are the same, which a client creates.
async fn by_client(rack: &Rack) -> Duration {
    let model = ready(rack, "infra", "crowd", WORKLOADS).await.remove(0);
    let api: Api<Pod> = Api::namespaced(rack.plane.infra.client().await, &companions());
    let begin = Timestamp::now();
    let pods = (0..2 * WORKLOADS).map(|i| copy(&model, &format!("bare-{i}"), "bare"));
    let creations = futures::stream::iter(pods.map(|pod| {
        let api = &api;
        async move { create(api, &pod).await.map(drop) }
    }));
    creations.buffer_unordered(UNDER_WAY).try_collect::<Vec<()>>().await.unwrap();
    let took = between(begin, all_began(rack, DPU, "bare", 2 * WORKLOADS).await);
    delete(rack, "infra", &companions(), "bare").await;
    took
}
