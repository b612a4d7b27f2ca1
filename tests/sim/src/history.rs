//! A history: what users do, what breaks, and what the system makes of it, all by one seed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use outrigger_runtime::calls::SILENCE;
use outrigger_runtime::environment::Environment;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::judge::Judge;
use crate::model::Snapshot;
use crate::network::Trouble;
use crate::process::pick;
use crate::trace::Trace;
use crate::world::{SHOP, TENANTS, World};

mod changes;
mod dpus;
mod drains;
mod faults;
mod machines;
mod mix;
mod nodes;
mod numbers;
mod offloading;
mod rules;
mod tenants;
mod wide;

use mix::{Happening, Mix};

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
    mix: Mix,
    judge: Arc<Judge>,
    snapshot: Option<Snapshot>,
    /// A snapshot of a tenant's cluster.
    tenant_snapshot: Option<(&'static str, Snapshot)>,
    /// A snapshot of a tenant's cluster, or of the infrastructure cluster, to be restored with later revisions.
    later: Option<(Option<&'static str>, Snapshot)>,
    /// How often companions were evicted, by namespace and name.
    failed: BTreeMap<(String, String), u64>,
    /// Images of rules' templates so far.
    images: u64,
    /// Amounts of memory of rules' templates so far: each is more than those before.
    memory: u64,
    /// A wire was silent since the last rest.
    was_silent: bool,
    /// Events are fewer until then.
    slow_until: Option<Instant>,
    /// Tenants without an agent until the next rest has ended.
    away: BTreeSet<&'static str>,
    /// Tenants that aren't created again until then.
    deleted: BTreeSet<&'static str>,
}

impl History {
    async fn live(seed: u64, events: u64) -> Outcome {
        let world = World::new(seed, Trace::default());
        let judge = Judge::watch(&world);
        let mut this = Self {
            mix: Mix::new(&world.environment.random, &world.scope),
            world: world.clone(),
            judge: judge.clone(),
            snapshot: None,
            tenant_snapshot: None,
            later: None,
            failed: BTreeMap::new(),
            images: 0,
            memory: 0,
            was_silent: false,
            slow_until: None,
            away: BTreeSet::new(),
            deleted: BTreeSet::new(),
        };
        if world.scope.crashes || world.scope.resizes || world.scope.updates {
            faults::crash_managers(&world, &judge);
        }
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
            tokio::time::sleep(this.pause()).await;
            round -= 1;
            if round == 0 || number == events {
                round = this.between(ROUND);
                violations = this.rest(PAUSE, REST).await;
                if !violations.is_empty() {
                    break;
                }
                this.bring_back();
                this.upgrade();
                this.change_in_calm().await;
            }
            if judge.has_found() {
                break;
            }
        }
        if violations.is_empty() && !judge.has_found() {
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
        self.slow_until = None;
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
        std::iter::once(&world.infra)
            .chain(world.tenants.values())
            .for_each(|model| model.lag(Duration::ZERO));
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
        world.recover_nodes();
    }

    async fn event(&mut self) {
        let tenant = TENANTS[usize::try_from(self.below(TENANTS.len() as u64)).unwrap_or_default()];
        if self.world.scope.is_wide() && self.wide_event(tenant) {
            return;
        }
        let happening = self.mix.next(&self.random().random);
        if let Some(blind) = happening.disturbs() {
            self.judge.disturbed(blind);
        }
        match happening {
            Happening::CreatePod => self.create_pod(tenant.0),
            Happening::DeletePod => self.delete_pod(tenant.0),
            Happening::FinishPod => self.finish_pod(tenant.0),
            Happening::RelabelPod => self.relabel_pod(tenant.0),
            Happening::ApplyRule => self.apply_rule(tenant.0),
            Happening::ApplyPlatformRule => self.apply_platform_rule(),
            Happening::DeleteRule => self.delete_rule(tenant.0),
            Happening::DeletePlatformRule => self.delete_platform_rule(),
            Happening::Freeze => self.freeze(),
            Happening::MoveHost => self.move_host(),
            Happening::Part => self.part(),
            Happening::Trouble => self.trouble(),
            Happening::KillManager => self.kill(&self.world.managers, World::start_manager),
            Happening::KillWebhook => self.kill(&self.world.webhooks, World::start_webhook),
            Happening::KillAgent => self.kill_agent(tenant.0),
            Happening::TerminateManager => self.terminate_manager(),
            Happening::CutWatches => self.cut_watches(),
            Happening::Lag => self.lag(tenant.0),
            Happening::Compact => self.compact(tenant.0),
            Happening::RestartApiServer => self.restart_api_server(tenant.0),
            Happening::Snapshot if self.below(2) == 0 => {
                self.tenant_snapshot = Some((tenant.0, self.world.tenants[tenant.0].snapshot()));
            }
            Happening::Snapshot => self.snapshot = Some(self.world.infra.snapshot()),
            Happening::Restore if self.below(2) == 0 => self.restore_tenant(),
            Happening::Restore => self.restore(),
            Happening::Pause => {
                tokio::time::sleep(self.random().random.below(Duration::from_secs(90))).await;
            }
            Happening::ChangeOffloading => self.change_offloading(),
            Happening::ChangePlainPod => self.change_plain_pod(),
            Happening::ChangeGuests => self.change_guests(),
            Happening::RemoveDpu => self.remove_dpu(),
            Happening::ReplaceMachine => self.replace_machine(),
            Happening::DeleteTenant => self.delete_tenant(tenant.0),
        }
    }

    fn create_pod(&self, tenant: &'static str) {
        // Names come again, as those of StatefulSets do.
        let name = format!("web-{}", self.below(12));
        let app = format!("app-{}", self.below(APPS));
        // Pods may be on a host whose DPU is another tenant's.
        let hosts = self.world.nodes(tenant);
        let host = hosts[usize::try_from(self.below(hosts.len() as u64)).unwrap_or_default()];
        let pod = json!({"metadata": {"name": name, "namespace": SHOP, "labels": {"app": app}},
            "spec": {"nodeName": host, "containers": [{"name": "c", "image": "web"}]}});
        if self.world.scope.is_wide() {
            return self.create_wide_pod(tenant, pod);
        }
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
