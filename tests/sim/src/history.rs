//! A history: what users do, what breaks, and what the system makes of it, all by one seed.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use outrigger_runtime::calls::SILENCE;
use outrigger_runtime::environment::Environment;
use serde_json::{Value, json};

use crate::judge::Judge;
use crate::model::Snapshot;
use crate::network::{Trouble, Wire};
use crate::process::{Replicas, Running, pick};
use crate::trace::Trace;
use crate::world::{MOVING, SHOP, TENANTS, World, cluster};

mod dpus;
mod machines;
mod offloading;
mod rules;
mod tenants;

/// Applications of workloads, one of which each rule selects.
const APPS: u64 = 3;
/// Longest time until a system without faults has come to rest. Each Tenant is looked at again every five minutes: this is shorter, so that
/// a fault that only that repairs is found unless it happens within this time.
const REST: Duration = Duration::from_secs(280);
/// Longest time until it has come to rest and no companion lingers.
const LINGERS: Duration = Duration::from_secs(900);
/// How long it has to stay at rest at the end of a history.
const CALM: Duration = Duration::from_secs(60);
/// How long it has to stay at rest in between: calls that are under way have ended by then, as their deadline is 30 s.
const PAUSE: Duration = Duration::from_secs(35);
/// How long a process may take after a silent wire to notice that a watch is lost, and to open it again. Until then it acts on what it
/// knew before, and another process that hears of everything hides that.
const HALF_OPEN: Duration = SILENCE.saturating_add(Duration::from_secs(15));
/// Time between two looks for what is being deleted.
const LOOK: Duration = Duration::from_millis(200);
/// Events between two times of rest: the least and the most. A process that does nothing more is replaced by one of the later events, and
/// one that has missed something hears of the next change: only a rest in between shows either. What builds up over many events shows
/// only without one.
const ROUND: RangeInclusive<u64> = 10..=110;

/// A history that has ended.
#[derive(Debug)]
pub struct Outcome {
    /// What was violated; empty if nothing was.
    pub violations: Vec<String>,
    /// Everything that happened.
    pub trace: String,
}

/// Runs the history of a seed with so many events, on a thread and a runtime of its own.
///
/// # Panics
/// When the runtime can't be built.
pub fn run(seed: u64, events: u64) -> Outcome {
    outrigger_core::map::set_seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let outcome = runtime.block_on(History::live(seed, events));
    // Its tasks are of processes that are gone. Dropping them one by one took a fiftieth of the time.
    std::mem::forget(runtime);
    outcome
}

struct History {
    world: Arc<World>,
    judge: Arc<Judge>,
    snapshot: Option<Snapshot>,
    /// A snapshot of a tenant's cluster.
    tenant_snapshot: Option<(&'static str, Snapshot)>,
    /// Images of rules' templates so far.
    images: u64,
    /// A wire was silent since the last rest.
    was_silent: bool,
    /// Tenants without an agent until the next rest has ended.
    away: BTreeSet<&'static str>,
}

impl History {
    async fn live(seed: u64, events: u64) -> Outcome {
        let world = World::new(seed, Trace::default());
        let judge = Judge::watch(&world);
        let mut this = Self {
            world: world.clone(),
            judge: judge.clone(),
            snapshot: None,
            tenant_snapshot: None,
            images: 0,
            was_silent: false,
            away: BTreeSet::new(),
        };
        let controllers = tokio::spawn(controllers(world.clone()));
        for _ in 0..2 + this.below(2) {
            world.start_manager();
        }
        world.start_webhook();
        world.start_webhook();
        for (tenant, _) in TENANTS {
            world.start_agent(tenant);
        }
        let mut violations = Vec::new();
        let mut round = this.between(ROUND);
        for number in 1..=events {
            this.event().await;
            let pause = [Duration::from_millis(20), Duration::from_millis(500), Duration::from_secs(5)];
            let pause = pause[usize::try_from(this.below(10)).unwrap_or_default().saturating_sub(7)];
            tokio::time::sleep(this.random().random.below(pause)).await;
            round -= 1;
            if round == 0 || number == events {
                round = this.between(ROUND);
                violations = this.rest(PAUSE, REST).await;
                if !violations.is_empty() {
                    break;
                }
                this.bring_agents_back();
            }
        }
        if violations.is_empty() {
            violations = this.rest(CALM, LINGERS).await;
        }
        violations.splice(0..0, judge.violations());
        controllers.abort();
        world.processes().iter().for_each(|process| process.end());
        Outcome { violations, trace: world.trace.text() }
    }

    fn random(&self) -> &Environment {
        &self.world.environment
    }

    /// One of several, by chance.
    fn pick<T: Clone>(&self, all: &[T]) -> Option<T> {
        pick(&self.world.environment.random, all).cloned()
    }

    fn below(&self, limit: u64) -> u64 {
        self.random().random.seed() % limit.max(1)
    }

    fn between(&self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    fn line(&self, what: std::fmt::Arguments<'_>) {
        self.world.trace.line(self.random(), what);
    }

    /// Waits until nothing is missing and nothing is written for a while. Returns what is missing after the longest time.
    async fn rest(&mut self, wanted: Duration, longest: Duration) -> Vec<String> {
        self.heal();
        let clock = self.random().clock;
        let (began, mut calm, mut writes, mut is_calm) = (clock.now(), clock.now(), 0, false);
        let least = if std::mem::take(&mut self.was_silent) { HALF_OPEN } else { Duration::ZERO };
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let written = std::mem::replace(&mut writes, self.judge.writes());
            let mut missing = Vec::new();
            if writes > written {
                missing.push(format!("{} writes in the last second", writes - written));
            }
            let ends = clock.now() - calm >= wanted && clock.now() - began >= least;
            let is_last = clock.now() - began >= longest;
            // Without a write nothing comes to be missing that isn't, but for what lingers: that shows at the end.
            if (writes == written && (!is_calm || ends)) || is_last {
                // At the end of a history nothing lingers.
                missing.extend(self.judge.missing(wanted < CALM));
            }
            is_calm = missing.is_empty();
            if !is_calm {
                calm = clock.now();
            }
            if is_calm && ends {
                self.judge.rested();
                self.line(format_args!("at rest"));
                return Vec::new();
            }
            if is_last {
                return missing
                    .into_iter()
                    .map(|what| format!("not at rest after {longest:?}: {what}"))
                    .collect();
            }
        }
    }

    /// Ends all faults, and starts what has been killed, but for agents that stay away.
    fn heal(&self) {
        self.line(format_args!("all faults end"));
        let world = &self.world;
        world.network.trouble(Trouble::default());
        world.network.thaw();
        for (one, other) in world.network.wires() {
            world.join(&one, &other);
        }
        while world.managers.lock().len() < 2 {
            world.start_manager();
        }
        while world.webhooks.lock().is_empty() {
            world.start_webhook();
        }
        for (tenant, _) in TENANTS {
            if !self.away.contains(tenant) {
                world.ensure_agent(tenant);
            }
        }
        self.create_missing_dpus();
    }

    async fn event(&mut self) {
        let tenant = TENANTS[usize::try_from(self.below(TENANTS.len() as u64)).unwrap_or_default()];
        match self.below(115) {
            0..28 => self.create_pod(tenant),
            28..42 => self.delete_pod(tenant.0),
            42..45 => self.finish_pod(tenant.0),
            45..49 => self.relabel_pod(tenant.0),
            49..59 => self.apply_rule(tenant.0),
            59..61 => self.apply_platform_rule(),
            61..64 => self.delete_rule(tenant.0),
            64 => self.delete_platform_rule(),
            65..69 => self.freeze(),
            69 => self.move_host(),
            70..75 => self.part(),
            75..80 => self.trouble(),
            80..85 => self.kill(&self.world.managers, World::start_manager),
            85..87 => self.kill(&self.world.webhooks, World::start_webhook),
            87..90 => self.kill_agent(tenant.0),
            90..92 => self.terminate_manager(),
            92..94 => self.cut_watches(),
            94..96 => self.compact(tenant.0),
            96 => self.restart_api_server(tenant.0),
            97 if self.below(2) == 0 => {
                self.tenant_snapshot = Some((tenant.0, self.world.tenants[tenant.0].snapshot()));
            }
            97 => self.snapshot = Some(self.world.infra.snapshot()),
            98 if self.below(2) == 0 => self.restore_tenant(),
            98 => self.restore(),
            99 => tokio::time::sleep(self.random().random.below(Duration::from_secs(90))).await,
            100..102 => self.change_offloading(),
            102..105 => self.change_plain_pod(),
            105..109 => self.change_guests(),
            109..111 => self.remove_dpu(),
            111..113 => self.replace_machine(),
            _ => self.delete_tenant(tenant.0),
        }
    }

    fn create_pod(&self, (tenant, hosts): (&'static str, &[&str])) {
        // Names come again, as those of StatefulSets do.
        let name = format!("web-{}", self.below(12));
        let app = format!("app-{}", self.below(APPS));
        // Pods may be on a host whose DPU is another tenant's.
        let hosts: Vec<&str> = hosts.iter().copied().filter(|host| *host != MOVING).chain([MOVING]).collect();
        let host = hosts[usize::try_from(self.below(hosts.len() as u64)).unwrap_or_default()];
        let pod = json!({"metadata": {"name": name, "namespace": SHOP, "labels": {"app": app}},
            "spec": {"nodeName": host, "containers": [{"name": "c", "image": "web"}]}});
        let _ = self.world.tenants[tenant].create("user", "pods", pod);
    }

    /// A user creates a Pod in the infrastructure cluster by a request that admission sees. Nobody waits for the answer.
    fn request_pod(&self, namespace: &str, pod: &Value) {
        let request = http::Request::post(format!("/api/v1/namespaces/{namespace}/pods"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Bytes::from(pod.to_string()));
        let Ok(request) = request else { return };
        let infra = self.world.infra.clone();
        tokio::spawn(async move {
            let _ = infra.serve("user", request).await;
        });
    }

    /// One of a tenant's objects of a kind, by chance.
    fn any(&self, tenant: &str, plural: &str) -> Option<Arc<Value>> {
        self.pick(&self.world.tenants[tenant].list(plural))
    }

    fn delete_pod(&self, tenant: &str) {
        if let Some(pod) = self.any(tenant, "pods") {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let _ = self.world.tenants[tenant].delete("user", "pods", Some(SHOP), name);
        }
    }

    fn finish_pod(&self, tenant: &str) {
        if let Some(pod) = self.any(tenant, "pods") {
            let at = (Some(SHOP), pod["metadata"]["name"].as_str().unwrap_or_default(), Some("status"));
            let _ = self.world.tenants[tenant].merge(
                "kubelet",
                "pods",
                at,
                json!({"status": {"phase": "Succeeded"}}),
            );
        }
    }

    fn relabel_pod(&self, tenant: &str) {
        if let Some(pod) = self.any(tenant, "pods") {
            let at = (Some(SHOP), pod["metadata"]["name"].as_str().unwrap_or_default(), None);
            let labels = json!({"metadata": {"labels": {"app": format!("app-{}", self.below(APPS))}}});
            let _ = self.world.tenants[tenant].merge("user", "pods", at, labels);
        }
    }

    /// A wire between two living parties is silent or down for up to a minute and a half.
    fn part(&mut self) {
        let Some((one, other)) = self.pick(&self.world.network.wires()) else { return };
        if !self.world.processes().iter().any(|process| process.name == one || process.name == other) {
            return;
        }
        let wire = if self.below(2) == 0 { Wire::Silent } else { Wire::Down };
        self.was_silent |= wire == Wire::Silent;
        self.line(format_args!("{one} and {other} are parted: {wire:?}"));
        self.world.network.set(&one, &other, wire);
        let (world, until) = (self.world.clone(), self.random().random.below(Duration::from_secs(90)));
        tokio::spawn(async move {
            tokio::time::sleep(until).await;
            if world.join(&one, &other) {
                world.trace.line(&world.environment, format_args!("{one} and {other} are joined"));
            }
        });
    }

    /// A process' watches of one kind stand still for up to a minute, while those of other kinds go on.
    fn freeze(&self) {
        const KINDS: [&str; 14] = [
            "workloadrules",
            "pods",
            "workloadrules",
            "tenants",
            "workloadrules",
            "nodes",
            "namespaces",
            "leases",
            "namespaceoffloadings",
            "resourceclaimtemplates",
            "machines",
            "machinenodepools",
            "statefulsets",
            "services",
        ];
        let Some(process) = self.pick(&self.world.processes()) else { return };
        let Some(kind) = self.pick(&KINDS) else { return };
        let name = process.name.clone();
        self.line(format_args!("the watch of {kind} by {name} stands still"));
        self.world.network.freeze(&name, kind, true);
        // Agents connect again meanwhile, perhaps to this process, which then acts on what it knows.
        let reconnect = (self.below(2) == 0).then(|| self.random().random.below(Duration::from_secs(10)));
        let (world, until) = (self.world.clone(), self.random().random.below(Duration::from_secs(60)));
        tokio::spawn(async move {
            if let Some(pause) = reconnect {
                tokio::time::sleep(pause).await;
                world.cut_streams().await;
            }
            tokio::time::sleep(until).await;
            world.trace.line(&world.environment, format_args!("the watch of {kind} by {name} goes on"));
            world.network.freeze(&name, kind, false);
        });
    }

    /// Some requests fail, or are late, for up to half a minute.
    fn trouble(&self) {
        let trouble = Trouble {
            refused: self.below(300),
            unanswered: self.below(200),
            failed: self.below(50),
            late: self.below(300),
            lag: self.random().random.below(Duration::from_secs(1)),
        };
        self.line(format_args!(
            "trouble: of 1000 requests {} are refused, {} unanswered, {} late, {} fail; lag {} ms",
            trouble.refused,
            trouble.unanswered,
            trouble.late,
            trouble.failed,
            trouble.lag.as_millis()
        ));
        self.world.network.trouble(trouble);
        let (world, until) = (self.world.clone(), self.random().random.below(Duration::from_secs(30)));
        tokio::spawn(async move {
            tokio::time::sleep(until).await;
            world.network.trouble(Trouble::default());
        });
    }

    /// One process of these is killed; another one starts later.
    fn kill(&self, processes: &Replicas, start: fn(&World)) {
        let victim: Arc<Running> = {
            let mut processes = processes.lock();
            if processes.is_empty() {
                return;
            }
            let at = usize::try_from(self.below(processes.len() as u64)).unwrap_or_default();
            processes.remove(at)
        };
        self.world.kill(&victim, self.below(2) == 0);
        let (world, until) = (self.world.clone(), self.random().random.below(Duration::from_secs(20)));
        tokio::spawn(async move {
            tokio::time::sleep(until).await;
            start(&world);
        });
    }

    /// A manager shuts down as it does after SIGTERM, and another one starts.
    fn terminate_manager(&self) {
        let mut managers = self.world.managers.lock();
        if managers.len() < 2 {
            return;
        }
        let victim = managers.remove(0);
        drop(managers);
        self.line(format_args!("{} shuts down", victim.name));
        victim.terminate();
        let world = self.world.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(3)).await;
            victim.end();
            world.start_manager();
            tokio::time::sleep(Duration::from_secs(20)).await;
            world.kill(&victim, true);
        });
    }

    fn cut_watches(&self) {
        let Some(user) = self.pick(&self.world.infra.watchers()) else { return };
        self.line(format_args!("the watches of {user} are cut"));
        self.world.infra.cut_watches(&user);
    }

    fn compact(&self, tenant: &str) {
        self.line(format_args!("etcd of infra and {} is compacted", cluster(tenant)));
        self.world.infra.compact();
        self.world.tenants[tenant].compact();
    }

    fn restart_api_server(&self, tenant: &str) {
        self.line(format_args!("the API servers of infra and {} restart", cluster(tenant)));
        self.world.infra.restart();
        self.world.tenants[tenant].restart();
    }

    /// The infrastructure cluster's etcd is restored from the last snapshot. All servers start again, as the runbook says: a
    /// resourceVersion that comes twice can't be noticed.
    fn restore(&mut self) {
        let Some(snapshot) = self.snapshot.take() else { return };
        self.line(format_args!("etcd of infra is restored from a snapshot"));
        let world = self.world.clone();
        let victims =
            [&world.managers, &world.webhooks].map(|processes| std::mem::take(&mut *processes.lock()));
        victims.iter().flatten().for_each(|victim| world.kill(victim, false));
        world.infra.restore(&snapshot);
        self.judge.restored();
        self.create_missing_tenants();
        let [managers, webhooks] = victims;
        managers.iter().for_each(|_| world.start_manager());
        webhooks.iter().for_each(|_| world.start_webhook());
    }

    /// A tenant's etcd is restored from the last snapshot, and its agent starts again. Workloads that were created since are gone,
    /// and nobody says so.
    fn restore_tenant(&mut self) {
        let Some((tenant, snapshot)) = self.tenant_snapshot.take() else { return };
        self.line(format_args!("etcd of {} is restored from a snapshot", cluster(tenant)));
        let agent = self.world.agents.lock().remove(tenant);
        if let Some(agent) = agent {
            self.world.kill(&agent, false);
        }
        self.world.tenants[tenant].restore(&snapshot);
        self.judge.restored();
        self.world.start_agent(tenant);
    }
}

/// The clusters' own controllers, at random times.
async fn controllers(world: Arc<World>) {
    let mut done = Vec::new();
    loop {
        let stirred = world.stirred();
        // Where nothing has changed, they have nothing to do.
        if stirred != done {
            world.run_controllers(&done);
            done = stirred;
        }
        let pause = Duration::from_millis(50) + world.environment.random.below(Duration::from_millis(500));
        tokio::time::sleep(pause).await;
    }
}
