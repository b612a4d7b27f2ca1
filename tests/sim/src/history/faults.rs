//! What breaks in a history: wires, watches, requests, processes and servers.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::History;
use crate::judge::Judge;
use crate::model::Verb;
use crate::network::{Trouble, Wire};
use crate::older::Side;
use crate::process::{Replicas, Running, pick};
use crate::world::{INFRA, TENANTS, World, cluster};

/// Of so many companions that managers delete, the manager is killed immediately after one.
const CRASHES: u64 = 24;
/// The same of those that they resize, which are fewer.
const CRASHES_OF_RESIZES: u64 = 6;

/// The kinds whose watches stand still, the more often the more depends on them.
const KINDS: &[&str] = &[
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

/// How long the longer freezes last, in seconds.
const LONG: RangeInclusive<u64> = 50..=120;

/// The kinds that a process watches, by its name: those of managers and webhooks are in the infrastructure cluster, those of agents in their
/// tenant's.
fn watched_by(process: &str) -> &'static [&'static str] {
    if process.starts_with("manager") {
        &[
            "workloadrules",
            "adminworkloadrules",
            "pods",
            "tenants",
            "nodes",
            "namespaces",
            "resourceclaims",
            "resourceclaimtemplates",
            "resourcequotas",
            "namespaceoffloadings",
            "machines",
            "machinenodepools",
            "statefulsets",
            "services",
        ]
    } else if process.starts_with("webhook") {
        &[
            "workloadrules",
            "adminworkloadrules",
            "tenants",
            "nodes",
            "namespaces",
            "pods",
            "resourceclaims",
            "deviceclasses",
            "priorityclasses",
            "namespaceoffloadings",
            "machines",
        ]
    } else {
        &[
            "workloadrules",
            "pods",
            "poddisruptionbudgets",
            "nodes",
            "namespaces",
            "resourceclaims",
            "resourceclaimtemplates",
            "resourceslices",
        ]
    }
}

/// Kills managers immediately after they have deleted or resized a companion, before they can do anything about it. Others start within
/// 20 s.
pub(super) fn crash_managers(world: &Arc<World>, judge: &Arc<Judge>) {
    let (weak, judge) = (Arc::downgrade(world), judge.clone());
    world.infra.on_commit(move |commit| {
        let is_deletion = commit.kind.plural == "pods" && commit.verb == Verb::Delete;
        let image = |pod: &Option<Arc<serde_json::Value>>| {
            pod.as_ref().map(|pod| pod["spec"]["containers"][0]["image"].clone())
        };
        let is_update = commit.kind.plural == "pods" && image(&commit.old) != image(&commit.new);
        let is_update = is_update && commit.old.is_some() && commit.new.is_some();
        let is_resize = is_update || commit.subresource.as_deref() == Some("resize");
        let Some(world) = weak.upgrade().filter(|_| is_deletion || is_resize) else { return };
        if is_deletion && !world.scope.crashes {
            return;
        }
        let random = &world.environment.random;
        let mut managers = world.managers.lock();
        let Some(at) = managers.iter().position(|manager| manager.name == commit.client) else { return };
        if !random.seed().is_multiple_of(if is_resize { CRASHES_OF_RESIZES } else { CRASHES }) {
            return;
        }
        let victim = managers.remove(at);
        drop(managers);
        judge.disturbed(false);
        let (silently, until) = (random.seed().is_multiple_of(2), random.below(Duration::from_secs(20)));
        world.kill(&victim, silently);
        tokio::spawn(async move {
            tokio::time::sleep(until).await;
            world.start_manager();
        });
    });
}

impl History {
    /// A wire between two living parties is silent or down for up to a minute and a half.
    pub(super) fn part(&mut self) {
        let Some((one, other)) = self.pick(&self.world.network.wires()) else { return };
        if !self.world.processes().iter().any(|process| process.name == one || process.name == other) {
            return;
        }
        let is_silent = self.below(2) == 0 && !self.may_write_late(&one, &other);
        let wire = if is_silent { Wire::Silent } else { Wire::Down };
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

    /// Whether a manager may go on to write a rule for an agent that has written it by another manager since: where the wire between them is
    /// silent, neither notices for a while that the call is lost, and with older peers no version of the rule (`etag`) goes with it.
    fn may_write_late(&self, one: &str, other: &str) -> bool {
        self.world.scope.older.is_some() && one.starts_with("agent-") && other.starts_with("manager-")
    }

    /// After a rest, perhaps the side of the release before is upgraded: agents at once, while none of them writes; managers one after the
    /// other, as each that starts from now on is of the present release.
    pub(super) fn upgrade(&self) {
        let Some(side) = self.world.older().filter(|_| self.below(3) == 0) else { return };
        self.line(format_args!("{side:?} are upgraded"));
        self.judge.disturbed(false);
        self.world.upgrade();
        if side == Side::Managers {
            return self.kill(&self.world.managers, World::start_manager);
        }
        for (tenant, _) in TENANTS {
            let agent = self.world.agents.lock().remove(tenant);
            if let Some(agent) = agent {
                self.world.kill(&agent, false);
            }
            self.world.start_agent(tenant);
        }
    }

    /// The agent of a tenant reaches no manager for up to a minute.
    pub(super) fn cut_off(&self, tenant: &'static str) {
        let Some(agent) = self.world.agents.lock().get(tenant).map(|agent| agent.name.clone()) else {
            return;
        };
        self.line(format_args!("{agent} is cut off from all managers"));
        self.judge.disturbed(true);
        let managers = self.world.managers.lock();
        let managers: Vec<String> = managers.iter().map(|manager| manager.name.clone()).collect();
        managers.iter().for_each(|manager| self.world.network.set(&agent, manager, Wire::Down));
        let (world, until) = (self.world.clone(), self.random().random.below(Duration::from_secs(60)));
        tokio::spawn(async move {
            tokio::time::sleep(until).await;
            for manager in managers {
                world.join(&agent, &manager);
            }
        });
    }

    /// A process' watches of one kind stand still for up to a minute, while those of other kinds go on. Where the history has longer ones, half
    /// of them last longer than a grant of a slot counts, and some than a watch may be silent.
    pub(super) fn freeze(&mut self) {
        let Some(process) = self.pick(&self.world.processes()) else { return };
        let freezes = self.world.scope.freezes;
        let kinds = if freezes { watched_by(&process.name) } else { KINDS };
        let Some(kind) = self.pick(kinds) else { return };
        let name = process.name.clone();
        self.line(format_args!("the watch of {kind} by {name} stands still"));
        self.world.network.freeze(&name, kind, true);
        // Agents connect again meanwhile, perhaps to this process, which then acts on what it knows.
        let reconnect = (self.below(2) == 0).then(|| self.random().random.below(Duration::from_secs(10)));
        let world = self.world.clone();
        let until = if freezes && self.below(2) == 0 {
            let until = Duration::from_secs(self.between(LONG));
            self.slow_until = Some(self.random().clock.now() + until);
            until
        } else {
            self.random().random.below(Duration::from_secs(60))
        };
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

    /// How long nothing happens after an event. Most rounds take less time than a long freeze, so there is more of it while one lasts.
    pub(super) fn pause(&self) -> Duration {
        let pauses = if self.slow_until.is_some_and(|until| self.random().clock.now() < until) {
            [Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(20)]
        } else {
            [Duration::from_millis(20), Duration::from_millis(500), Duration::from_secs(5)]
        };
        let pause = pauses[usize::try_from(self.below(10)).unwrap_or_default().saturating_sub(7)];
        self.random().random.below(pause)
    }

    /// Some requests fail, or are late, for up to half a minute.
    pub(super) fn trouble(&self) {
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
    pub(super) fn kill(&self, processes: &Replicas, start: fn(&World)) {
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
    pub(super) fn terminate_manager(&self) {
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

    pub(super) fn cut_watches(&self) {
        let Some(user) = self.pick(&self.world.infra.watchers()) else { return };
        self.line(format_args!("the watches of {user} are cut"));
        self.world.infra.cut_watches(&user);
    }

    /// One of a cluster's two API servers is behind for up to a minute. Half of the time the watches of a user are opened again while it is:
    /// what one server has shown already, the other one hasn't.
    pub(super) fn lag(&self, tenant: &'static str) {
        let of_tenant = self.below(4) == 0;
        let name = if of_tenant { cluster(tenant) } else { INFRA.to_owned() };
        let model = if of_tenant { &self.world.tenants[tenant] } else { &self.world.infra };
        let lag = self.random().random.below(Duration::from_secs(30));
        self.line(format_args!("an API server of {name} lags by {} ms", lag.as_millis()));
        model.lag(lag);
        let reconnect = (self.below(2) == 0).then(|| self.random().random.below(Duration::from_secs(10)));
        let (model, world) = (model.clone(), self.world.clone());
        let until = self.random().random.below(Duration::from_secs(60));
        tokio::spawn(async move {
            if let Some(pause) = reconnect {
                tokio::time::sleep(pause).await;
                if let Some(user) = pick(&world.environment.random, &model.watchers()) {
                    world
                        .trace
                        .line(&world.environment, format_args!("the watches of {user} change servers"));
                    model.cut_watches(user);
                }
            }
            tokio::time::sleep(until).await;
            model.lag(Duration::ZERO);
        });
    }

    pub(super) fn compact(&self, tenant: &str) {
        self.line(format_args!("etcd of infra and {} is compacted", cluster(tenant)));
        self.world.infra.compact();
        self.world.tenants[tenant].compact();
    }

    pub(super) fn restart_api_server(&self, tenant: &str) {
        self.line(format_args!("the API servers of infra and {} restart", cluster(tenant)));
        self.world.infra.restart();
        self.world.tenants[tenant].restart();
    }

    /// The infrastructure cluster's etcd is restored from the last snapshot. All servers start again, as the runbook says: a
    /// resourceVersion that comes twice can't be noticed.
    pub(super) fn restore(&mut self) {
        let Some(snapshot) = self.snapshot.take() else { return };
        self.line(format_args!("etcd of infra is restored from a snapshot"));
        let world = self.world.clone();
        let victims =
            [&world.managers, &world.webhooks].map(|processes| std::mem::take(&mut *processes.lock()));
        victims.iter().flatten().for_each(|victim| world.kill(victim, false));
        world.infra.restore(&snapshot);
        self.judge.restored();
        world.recover();
        self.create_missing_tenants();
        let [managers, webhooks] = victims;
        managers.iter().for_each(|_| world.start_manager());
        webhooks.iter().for_each(|_| world.start_webhook());
    }

    /// A tenant's etcd is restored from the last snapshot, and its agent starts again. Workloads that were created since are gone,
    /// and nobody says so.
    pub(super) fn restore_tenant(&mut self) {
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
