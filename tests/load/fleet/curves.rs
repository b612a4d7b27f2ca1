//! What one event costs a manager, and what it keeps, as one number after the other grows: tenants with a constant number of workloads
//! in all, DPUs, rules, workloads. The events are always about the same ten tenants, so that the same work follows from them.

use std::time::{Duration, Instant};

use outrigger_sim::model::Model;
use outrigger_sim::world::ADMIN;
use outrigger_tests::cost;
use outrigger_tests::report::{self, Row};
use serde_json::{Value, json};

use crate::fleet::BENCH;
use crate::fleet::agents::{Command, Fleet, TenantSize};
use crate::fleet::cluster::Cluster;
use crate::fleet::managers::{Manager, processor_time, quiet};

/// A fleet with one manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    tenants: usize,
    /// Beside one for each tenant.
    nodes: usize,
    /// Of each tenant; the first matches one of its workloads.
    rules: usize,
    /// Of each tenant.
    workloads: usize,
}

const LEAST: Size = Size { tenants: 10, nodes: 100, rules: 1, workloads: 100 };

/// What grows, in which unit, and the sizes with the number that it has in each. The first is the floor of the others.
const CURVES: [(&str, [(usize, Size); 3]); 4] = [
    (
        "tenants with 100,000 workloads in all",
        [
            (10, Size { workloads: 10_000, ..LEAST }),
            (100, Size { tenants: 100, workloads: 1_000, ..LEAST }),
            (1_000, Size { tenants: 1_000, workloads: 100, ..LEAST }),
        ],
    ),
    (
        "Nodes",
        [(100, LEAST), (1_000, Size { nodes: 1_000, ..LEAST }), (10_000, Size { nodes: 10_000, ..LEAST })],
    ),
    ("rules a tenant", [(1, LEAST), (10, Size { rules: 10, ..LEAST }), (100, Size { rules: 100, ..LEAST })]),
    (
        "workloads a tenant",
        [
            (100, LEAST),
            (1_000, Size { workloads: 1_000, ..LEAST }),
            (10_000, Size { workloads: 10_000, ..LEAST }),
        ],
    ),
];

/// Tenants that events are about.
const CONCERNED: usize = 10;
/// How long the manager is watched while nothing happens.
const REST: Duration = Duration::from_secs(10);

/// Hosts of each tenant.
const HOSTS: usize = 1;

/// Each event and its processor time in microseconds, and memory in MiB.
type Costs = Vec<(&'static str, &'static str, f64)>;

/// Measures all curves, prints them, and records the rows.
pub(crate) async fn measure() {
    let mut known: Vec<(Size, Costs)> = Vec::new();
    let mut rows = Vec::new();
    for (axis, points) in CURVES {
        let mut curve: Vec<(usize, Costs)> = Vec::new();
        for (number, size) in points {
            let found = known.iter().find(|(other, _)| *other == size).map(|(_, costs)| costs.clone());
            let costs = match found {
                Some(costs) => costs,
                None => costs(size).await,
            };
            println!("{number} {axis}: {costs:.1?}");
            known.push((size, costs.clone()));
            curve.push((number, costs));
        }
        let (least, smallest) = curve.remove(0);
        for (number, costs) in curve {
            for ((event, unit, cost), (_, _, floor)) in costs.into_iter().zip(&smallest) {
                let what = format!("curve: {event}, {number} {axis}");
                rows.push(Row::new(&what, unit, &least.to_string(), &[(cost, floor.max(0.1))]));
            }
        }
    }
    report::record(BENCH, &rows);
}

async fn costs(size: Size) -> Costs {
    let Size { tenants, nodes, rules, workloads } = size;
    let cluster = Cluster::model().await;
    let manager = [cluster.manager("curve", &[]).await];
    cluster.spare_dpus(nodes);
    cluster.tenants(tenants, HOSTS);
    while cluster.served().await < tenants {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    cluster.rules(tenants, 0..rules);
    let tenant = TenantSize { hosts: HOSTS, matched: 1 };
    let fleet = Fleet::start(&cluster.authority, tenants, tenant, vec![manager[0].port]);
    fleet.have(workloads);
    while cluster.synced.count() < tenants {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    fleet.send(Command::Sync);
    while manager[0].metric("outrigger_companions_ready").await < tenants {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    quiet(&manager).await;
    let memory = cost::mebibytes(cost::resident(manager[0].process()));
    let before = processor_time(&manager);
    tokio::time::sleep(REST).await;
    let rest = (processor_time(&manager) - before).as_secs_f64() / REST.as_secs_f64();
    let (model, meter) = (&cluster.as_model().model, Meter { manager, rest });
    vec![
        ("an update of a workload without companion", "us", updates(&meter, &fleet, workloads).await),
        ("a heartbeat of a Node", "us", heartbeats(&meter, model, nodes).await),
        ("a change of a companion's status", "us", statuses(&meter, model).await),
        ("a change of a Tenant's stream", "us", streams(&meter, model).await),
        ("a change of a Tenant's spec", "us", specs(&meter, model).await),
        ("a second without events", "ms", rest * 1e3),
        ("memory of the manager", "MiB", memory),
    ]
}

/// What is left of a manager's processor time when that of a second without events is subtracted: pings of connections.
struct Meter {
    manager: [Manager; 1],
    /// Seconds of processor time in a second without events.
    rest: f64,
}

impl Meter {
    /// The manager's processor time of each of so many events, in microseconds.
    async fn each(&self, count: usize, work: impl Future<Output = ()>) -> f64 {
        quiet(&self.manager).await;
        let (before, began) = (processor_time(&self.manager), Instant::now());
        work.await;
        quiet(&self.manager).await;
        let time = (processor_time(&self.manager) - before).as_secs_f64();
        (time - self.rest * began.elapsed().as_secs_f64()).max(0.0) * 1e6 / count as f64
    }
}

async fn updates(meter: &Meter, fleet: &Fleet, workloads: usize) -> f64 {
    const COUNT: usize = 50_000;
    let once = workloads.min(COUNT / CONCERNED) - 1;
    let rounds = COUNT / CONCERNED / once;
    let update = async {
        for version in 1..=rounds {
            fleet.send_to(CONCERNED, Command::Update(1, once, version));
        }
    };
    meter.each(rounds * once * CONCERNED, update).await
}

async fn heartbeats(meter: &Meter, model: &Model, nodes: usize) -> f64 {
    const COUNT: usize = 5_000;
    let beat = async {
        for i in 0..COUNT {
            let status =
                json!({"conditions": [{"type": "Ready", "status": "True", "message": i.to_string()}]});
            merge(model, "nodes", (None, &format!("spare{}", i % nodes)), json!({"status": status}));
            pause(i).await;
        }
    };
    meter.each(COUNT, beat).await
}

async fn statuses(meter: &Meter, model: &Model) -> f64 {
    const COUNT: usize = 5_000;
    let pods = model.list("pods");
    let name = |pod: &Value, field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
    let concerned: Vec<(String, String)> = pods
        .iter()
        .map(|pod| (name(pod, "namespace"), name(pod, "name")))
        .filter(|(namespace, _)| (0..CONCERNED).any(|i| *namespace == format!("tenant-t{i}")))
        .collect();
    let change = async {
        for i in 0..COUNT {
            let (namespace, name) = &concerned[i % concerned.len()];
            let status = json!({"message": i.to_string()});
            merge(model, "pods", (Some(namespace), name), json!({"status": status}));
            pause(i).await;
        }
    };
    meter.each(COUNT, change).await
}

async fn streams(meter: &Meter, model: &Model) -> f64 {
    const COUNT: usize = 5_000;
    let change = async {
        for i in 0..COUNT {
            let status = json!({"stream": {"workloads": i}});
            merge(model, "tenants", (None, &format!("t{}", i % CONCERNED)), json!({"status": status}));
            pause(i).await;
        }
    };
    meter.each(COUNT, change).await
}

/// Each is followed by a look at the tenant's namespace, as few at a time that none is left out.
async fn specs(meter: &Meter, model: &Model) -> f64 {
    const COUNT: usize = 500;
    let change = async {
        for i in 0..COUNT {
            let spec = json!({"limits": {"workloads": 100_000 + i}});
            let name = format!("t{}", i % CONCERNED);
            model.merge(ADMIN, "tenants", (None, &name, None), json!({"spec": spec})).unwrap();
            if i % CONCERNED == CONCERNED - 1 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    };
    meter.each(COUNT, change).await
}

/// Writes an object's status.
fn merge(model: &Model, plural: &str, (namespace, name): (Option<&str>, &str), patch: Value) {
    model.merge(ADMIN, plural, (namespace, name, Some("status")), patch).unwrap();
}

/// Events come as fast as a manager can take them, and not all at once.
async fn pause(i: usize) {
    if i.is_multiple_of(50) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
