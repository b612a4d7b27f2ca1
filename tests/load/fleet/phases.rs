//! What a fleet goes through: its tenants come, agents connect and sync, companions are created, workloads change, all agents
//! reconnect at once, and one of the three managers is lost. Each phase stands beside that of a fleet of a tenth of the tenants.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use outrigger_tests::cost;
use outrigger_tests::report::{self, Row};

use crate::fleet::BENCH;
use crate::fleet::agents::{Command, Fleet, TenantSize};
use crate::fleet::cluster::Cluster;
use crate::fleet::managers::{Manager, idle, processor_time};

/// Fleets of one kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Series {
    pub(crate) name: &'static str,
    /// Whether it is on the real control plane.
    real: bool,
    tenants: usize,
    /// Of each tenant, with a DPU in each.
    hosts: usize,
    /// Of each tenant.
    workloads: usize,
    /// How many of these the tenant's rule matches.
    matched: usize,
}

pub(crate) const SERIES: [Series; 3] = [
    Series { name: "real", real: true, tenants: 50, hosts: 2, workloads: 200, matched: 100 },
    Series { name: "model", real: false, tenants: 1_000, hosts: 10, workloads: 1_000, matched: 10 },
    Series { name: "storm", real: false, tenants: 9_000, hosts: 1, workloads: 10, matched: 0 },
];

/// Most connections that a manager takes by default.
const CONNECTIONS: usize = 1_024;
const MANAGERS: usize = 3;
/// How often managers look for new certificates, by default.
const RELOAD: Duration = Duration::from_secs(5);

/// What a phase took.
#[derive(Debug, Clone)]
struct Phase {
    name: &'static str,
    /// What it is counted by, and how many of these there were.
    of: &'static str,
    count: usize,
    seconds: f64,
    /// Of all managers that lasted through it; of the API server; of this process, which is agents and model.
    managers: f64,
    api_server: Option<f64>,
    here: f64,
    /// The most that one manager had: memory in MiB, and cores over a quarter of a second.
    memory: f64,
    cores: f64,
    failures: BTreeMap<String, u64>,
}

impl Series {
    /// Measures a small fleet and a large one, prints what each phase took, and records the rows.
    pub(crate) async fn measure(&self) {
        let small = Self { tenants: self.tenants / 10, ..*self };
        let (before, after) = (small.run().await, self.run().await);
        let mut rows = Vec::new();
        let floor = format!("{} tenants", small.tenants);
        for (small, large) in before.iter().zip(&after) {
            let what =
                |what: &str| format!("{}: {}, {what}, {} tenants", self.name, large.name, self.tenants);
            let cost = |phase: &Phase| phase.managers.max(0.01) * 1e6 / phase.count as f64;
            let time = format!("managers' processor time of {}", large.of);
            rows.push(Row::new(&what(&time), "us", &floor, &[(cost(large), cost(small))]));
            rows.push(Row::new(&what("until done"), "s", &floor, &[(large.seconds, small.seconds)]));
            rows.push(Row::new(
                &what("memory of a manager, peak"),
                "MiB",
                &floor,
                &[(large.memory, small.memory)],
            ));
            if large.name.contains("connect") || large.name.contains("lost") {
                let failed = large.failures.values().sum::<u64>() as f64;
                let agents = large.count as f64;
                rows.push(Row::new(
                    &what("failed attempts"),
                    "attempts",
                    "one for each agent",
                    &[(failed, agents)],
                ));
            }
        }
        report::record(BENCH, &rows);
    }

    async fn run(&self) -> Vec<Phase> {
        let Self { tenants, hosts, workloads, matched, .. } = *self;
        println!(
            "{}: {tenants} tenants of {workloads} workloads and {hosts} DPUs, {MANAGERS} managers",
            self.name
        );
        let cluster = if self.real { Cluster::real().await } else { Cluster::model().await };
        let mut managers = Vec::new();
        for i in 0..MANAGERS {
            managers.push(cluster.manager(&format!("fleet{i}"), &self.flags()).await);
        }
        let meter = Meter { api_server: cluster.api_server() };
        let mut phases = Vec::new();
        let come = async {
            cluster.tenants(tenants, hosts);
            until("tenants are served", async || cluster.served().await >= tenants).await;
        };
        phases.push(meter.phase("tenants come", "a tenant", tenants, &managers, come).await);
        if self.real {
            // A namespace takes Pods only with its service account, which a controller makes.
            idle(&managers).await;
        }
        let ports: Vec<u16> = managers.iter().map(|manager| manager.port).collect();
        let mut fleet = None;
        let connect = async {
            let tenant = TenantSize { hosts, matched };
            fleet = Some(Fleet::start(&cluster.authority, tenants, tenant, ports.clone()));
            until("all are served", async || cluster.synced.count() >= tenants).await;
        };
        let connected = meter.phase("agents connect", "an agent", tenants, &managers, connect).await;
        let fleet = fleet.unwrap();
        phases.push(connected.with(&fleet));
        phases.extend(self.work(&meter, &cluster, &managers, &fleet).await);
        phases.extend(self.reconnect(&meter, &cluster, managers, &fleet, ports).await);
        phases
    }

    /// Settings that a fleet of this size needs beside the shipped ones: while one manager is down, two have all connections.
    fn flags(&self) -> Vec<String> {
        let most = self.tenants + self.tenants / 4;
        let flag = (most > CONNECTIONS).then(|| format!("--max-connections={most}"));
        flag.into_iter().collect()
    }

    /// Workloads come, get companions, and change.
    async fn work(
        &self,
        meter: &Meter,
        cluster: &Cluster,
        managers: &[Manager],
        fleet: &Fleet,
    ) -> Vec<Phase> {
        let Self { tenants, workloads, matched, .. } = *self;
        let sum = async |family: &str| {
            let mut sum = 0;
            for manager in managers {
                sum += manager.metric(family).await;
            }
            sum
        };
        let mut phases = Vec::new();
        let all = tenants * workloads;
        let sync = async {
            fleet.have(workloads);
            fleet.send(Command::Sync);
            until("all workloads are known", async || sum("outrigger_workloads").await >= all).await;
        };
        phases.push(meter.phase("workloads are synced", "a workload", all, managers, sync).await);
        if matched == 0 {
            return phases;
        }
        let wanted = tenants * matched;
        let create = async {
            cluster.rules(tenants, 0..1);
            until("all companions are ready", async || sum("outrigger_companions_ready").await >= wanted)
                .await;
        };
        phases.push(meter.phase("companions are created", "a companion", wanted, managers, create).await);
        let changed = workloads / 10;
        let companions = tenants * changed.min(matched);
        let churn = async {
            let annotated = async || {
                let mut sum = 0;
                for manager in managers {
                    sum += manager.annotated().await;
                }
                sum
            };
            let before = annotated().await;
            fleet.send(Command::Update(0, changed, 1));
            until("all companions show it", async || annotated().await >= before + companions).await;
        };
        let updates = tenants * changed;
        phases.push(meter.phase("workloads change", "an update", updates, managers, churn).await);
        phases
    }

    /// All agents reconnect at once; then one manager is killed.
    async fn reconnect(
        &self,
        meter: &Meter,
        cluster: &Cluster,
        mut managers: Vec<Manager>,
        fleet: &Fleet,
        mut ports: Vec<u16>,
    ) -> Vec<Phase> {
        let tenants = self.tenants;
        rest(cluster, &managers, fleet).await;
        let began = Instant::now();
        let all = async {
            fleet.cut();
            until("all are served", async || cluster.synced.count() >= tenants).await;
        };
        let all = meter.phase("all agents reconnect", "an agent", tenants, &managers, all).await.with(fleet);
        let [half, most] = [0.5, 0.99].map(|share| cluster.synced.seconds(began, share));
        println!("  half of the agents are served again after {half:.1} s, 99 % after {most:.1} s");
        let withdrawn = self.change_authority(meter, cluster, &managers, fleet).await;

        rest(cluster, &managers, fleet).await;
        let lost = managers.pop().unwrap();
        ports.retain(|port| *port != lost.port);
        let concerned = fleet.connected_to(lost.port).max(1);
        let lose = async {
            drop(lost);
            // So long a Service may still name it.
            tokio::time::sleep(Duration::from_secs(1)).await;
            fleet.find(ports);
            until("all are served", async || cluster.synced.count() >= concerned).await;
        };
        let lost = meter.phase("a manager is lost", "an agent", concerned, &managers, lose).await.with(fleet);
        vec![all, withdrawn, lost]
    }

    /// The managers' certificates change, and agents get those of another CA, which is trusted beside the first one. No stream ends by
    /// that. Then the first CA is withdrawn.
    async fn change_authority(
        &self,
        meter: &Meter,
        cluster: &Cluster,
        managers: &[Manager],
        fleet: &Fleet,
    ) -> Phase {
        let Self { tenants, .. } = *self;
        rest(cluster, managers, fleet).await;
        let other = cluster.another_authority("other");
        managers.iter().for_each(|manager| manager.renew(&cluster.authority));
        cluster.trust_clients_of(&[&cluster.authority, &other]);
        fleet.identify(&other, &cluster.authority.file());
        tokio::time::sleep(2 * RELOAD).await;
        let (attempts, _) = fleet.attempts();
        assert_eq!((attempts, fleet.connected()), (0, tenants), "streams ended by new certificates alone");
        let withdraw = async {
            cluster.trust_clients_of(&[&other]);
            until("all are served", async || cluster.synced.count() >= tenants).await;
        };
        let phase =
            meter.phase("a CA is withdrawn, agents reconnect", "an agent", tenants, managers, withdraw).await;
        phase.with(fleet)
    }
}

/// Waits until the managers have nothing more to do, and forgets what was before.
async fn rest(cluster: &Cluster, managers: &[Manager], fleet: &Fleet) {
    // The time of a sync is shown to the second, and at most every five seconds.
    tokio::time::sleep(Duration::from_secs(6)).await;
    idle(managers).await;
    fleet.attempts();
    cluster.synced.forget();
}

impl Phase {
    /// With the attempts to connect that there were since the last phase.
    fn with(self, fleet: &Fleet) -> Self {
        let (attempts, failures) = fleet.attempts();
        println!("    {attempts} attempts to connect, failed: {failures:?}");
        Self { failures, ..self }
    }

    fn print(&self) {
        let Self { name, of, count, seconds, managers, here, memory, cores, .. } = self;
        let api_server = self.api_server.map_or_else(|| "none".into(), |time| format!("{time:.1} s"));
        println!(
            "  {name}: {count} in {seconds:.1} s, {:.0}/s; processor time of managers {managers:.1} s ({:.0} us of {of}), \
             of the API server {api_server}, here {here:.1} s; most of one manager: {memory:.0} MiB, {cores:.2} cores",
            *count as f64 / seconds,
            managers * 1e6 / *count as f64,
        );
    }
}

/// Measures phases.
struct Meter {
    api_server: Option<u32>,
}

impl Meter {
    async fn phase(
        &self,
        name: &'static str,
        of: &'static str,
        count: usize,
        managers: &[Manager],
        work: impl Future<Output = ()>,
    ) -> Phase {
        let here = || cost::processor_time(std::process::id()).as_secs_f64();
        let api_server = || self.api_server.map(|process| cost::processor_time(process).as_secs_f64());
        for manager in managers {
            cost::forget_peak(manager.process());
        }
        let before = (processor_time(managers), here(), api_server());
        let began = Instant::now();
        let mut seconds = 0.0;
        let work = async {
            work.await;
            seconds = began.elapsed().as_secs_f64();
            // What follows from it belongs to its cost: statuses of rules and tenants.
            idle(managers).await;
        };
        let mut cores = 0.0;
        tokio::select! {
            () = most_cores(managers, &mut cores) => {}
            () = work => {}
        }
        let memory = managers.iter().map(|manager| cost::peak(manager.process())).max().unwrap_or_default();
        let phase = Phase {
            name,
            of,
            count,
            seconds,
            managers: (processor_time(managers) - before.0).as_secs_f64(),
            api_server: api_server().zip(before.2).map(|(now, before)| now - before),
            here: here() - before.1,
            memory: cost::mebibytes(memory),
            cores,
            failures: BTreeMap::new(),
        };
        phase.print();
        phase
    }
}

/// Follows how many cores one manager uses at most, for as long as it is polled.
async fn most_cores(managers: &[Manager], most: &mut f64) {
    const PERIOD: Duration = Duration::from_millis(250);
    let times = || managers.iter().map(|manager| cost::processor_time(manager.process()));
    let mut last: Vec<Duration> = times().collect();
    loop {
        let began = Instant::now();
        tokio::time::sleep(PERIOD).await;
        let elapsed = began.elapsed().as_secs_f64();
        for (now, last) in times().zip(&mut last) {
            *most = most.max((now - *last).as_secs_f64() / elapsed);
            *last = now;
        }
    }
}

/// Waits until something holds, for as long as a busy machine may take for a large fleet. To look costs processor time of managers and
/// of this process, so what takes long is looked at less often: the time that a phase takes is right to a twentieth.
async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !holds().await {
        let elapsed = began.elapsed();
        assert!(elapsed < Duration::from_secs(1_800), "{what}: not after half an hour");
        tokio::time::sleep((elapsed / 20).max(Duration::from_millis(100))).await;
    }
}
