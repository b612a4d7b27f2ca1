//! Replicas that are replaced one after the other while all of them are needed, as an upgrade does, or whose number changes. A control plane of its
//! own, on which webhooks and managers are reached through what a Service is.

mod clocks;
mod manager;
mod scaling;
mod soak;
mod taints;
mod upgrade;
mod watching;
mod webhook;
mod workloads;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use outrigger_tests::control_plane::ControlPlane;
use outrigger_tests::front::Front;
use outrigger_tests::outrigger::{INFRASTRUCTURE, Outrigger, ports};
use outrigger_tests::shipped;
use outrigger_tests::wrapped::wrapped;
use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// How often every replica is replaced.
const ROUNDS: usize = 2;

struct Installed {
    outrigger: Outrigger,
    webhooks: Front,
    managers: Front,
    /// Those that run now.
    replicas: Mutex<Replicas>,
}

struct Replicas {
    webhook: Deployment,
    manager: Deployment,
}

/// What is installed. Whoever has it has it alone.
async fn alone() -> (MutexGuard<'static, ()>, &'static Installed) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
    static SHARED: OnceCell<Installed> = OnceCell::const_new();
    let one = ONE_AT_A_TIME.lock().await;
    (one, SHARED.get_or_init(install).await)
}

async fn install() -> Installed {
    let (webhooks, managers) = (Front::start(), Front::start());
    let mut outrigger = Outrigger::new(ControlPlane::start().unwrap()).unwrap();
    outrigger.binary = wrapped(&outrigger).unwrap();
    outrigger.webhook_port = webhooks.port;
    outrigger.grpc_port = managers.port;
    Installed::start(outrigger, webhooks, managers).await
}

impl Installed {
    /// Installs what is shipped, and starts as many replicas of each part behind its front as its Deployment has.
    async fn start(outrigger: Outrigger, webhooks: Front, managers: Front) -> Self {
        outrigger.install().unwrap();
        let mut replicas =
            Replicas { webhook: Deployment::shipped("webhook"), manager: Deployment::shipped("manager") };
        for (deployment, front) in [(&mut replicas.webhook, &webhooks), (&mut replicas.manager, &managers)] {
            for _ in 0..deployment.replicas {
                deployment.one_more(&outrigger, front).await;
            }
        }
        Self { outrigger, webhooks, managers, replicas: Mutex::new(replicas) }
    }
}

/// The replicas of a part, the oldest first, and what its Deployment says of how they come and go.
struct Deployment {
    part: &'static str,
    replicas: u64,
    /// How long it goes on serving, and may take to finish.
    flags: Vec<String>,
    grace: Duration,
    running: VecDeque<Replica>,
    made: usize,
}

/// A process, and its ports.
struct Replica {
    name: String,
    port: u16,
    admin: u16,
}

impl Deployment {
    fn shipped(part: &'static str) -> Self {
        let objects = shipped::kustomize(INFRASTRUCTURE).unwrap();
        let name = format!("outrigger-{part}");
        let found = shipped::of_kind(&objects, "Deployment").find(|d| d["metadata"]["name"] == name.as_str());
        let spec: &Value = &found.unwrap()["spec"];
        let rolling = &spec["strategy"]["rollingUpdate"];
        assert_eq!(
            (&rolling["maxSurge"], &rolling["maxUnavailable"]),
            (&1.into(), &0.into()),
            "as is done here"
        );
        let (args, _) = shipped::container(&objects, &name).unwrap();
        let flags: Vec<String> = args
            .into_iter()
            .filter(|arg| ["--shutdown-delay=", "--drain-timeout="].iter().any(|flag| arg.starts_with(flag)))
            .collect();
        assert_eq!(flags.len(), 2, "{flags:?}");
        Self {
            part,
            replicas: spec["replicas"].as_u64().unwrap(),
            flags,
            grace: Duration::from_secs(
                spec["template"]["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap(),
            ),
            running: VecDeque::new(),
            made: 0,
        }
    }

    /// Starts one more and waits until connections go to it.
    async fn one_more(&mut self, o: &Outrigger, front: &Front) {
        let started = self.start(o);
        self.join(o, front, started).await;
    }

    fn start(&mut self, o: &Outrigger) -> Replica {
        self.made += 1;
        let name = format!("{}-{}", self.part, self.made);
        let [port, admin] = ports().unwrap();
        match self.part {
            "webhook" => o.start_webhook_replica(&name, port, admin, &self.flags).unwrap(),
            _ => o.start_replica(&name, port, admin, &self.flags).unwrap(),
        }
        Replica { name, port, admin }
    }

    /// Waits until connections go to one that has been started.
    async fn join(&mut self, o: &Outrigger, front: &Front, started: Replica) {
        front.add(started.port, started.admin);
        o.ready_at(&started.name, started.admin).await;
        front.leads_to(started.port).await;
        self.running.push_back(started);
    }

    /// Terminates the oldest. Returns how long it took to end.
    async fn end_oldest(&mut self, o: &'static Outrigger) -> Duration {
        let old = self.running.pop_front().unwrap().name;
        let (began, signal) = (Instant::now(), format!("term {old}"));
        tokio::task::spawn_blocking(move || o.plane.command(&signal)).await.unwrap().unwrap();
        let took = began.elapsed();
        let log = std::fs::read_to_string(o.plane.log(&old)).unwrap();
        assert!(
            log.contains("drained") && !log.contains("closed forcibly"),
            "requests of {old} were closed forcibly: {log}"
        );
        took
    }

    /// Replaces each replica once: a new one is ready before an old one is terminated. Returns how long each took to end.
    async fn roll(&mut self, o: &'static Outrigger, front: &Front) -> Vec<Duration> {
        let mut took = Vec::new();
        for _ in 0..self.replicas {
            self.one_more(o, front).await;
            took.push(self.end_oldest(o).await);
        }
        println!("{}s ended after {took:?}; a kubelet waits for {:?}", self.part, self.grace);
        took
    }

    /// Starts replicas, or terminates the oldest ones, until there are so many.
    async fn scale(&mut self, o: &'static Outrigger, front: &Front, count: usize) {
        while self.running.len() < count {
            self.one_more(o, front).await;
        }
        while self.running.len() > count {
            self.end_oldest(o).await;
        }
    }

    /// Kills each replica once, as a lost node does: only then a new one is started, and the others serve meanwhile.
    async fn kill(&mut self, o: &'static Outrigger, front: &Front) {
        for _ in 0..self.replicas {
            let old = self.running.pop_front().unwrap();
            front.will_be_killed(old.port);
            let signal = format!("stop {}", old.name);
            tokio::task::spawn_blocking(move || o.plane.command(&signal)).await.unwrap().unwrap();
            self.one_more(o, front).await;
        }
    }
}
