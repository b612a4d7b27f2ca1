//! How long containers take to start, in turns: a companion's, that of the same Pod by a bare client, and a workload's with and without an
//! ordering. Each turn begins when the one before is at rest.

use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, ResourceExt};
use outrigger_core::keys;
use outrigger_tests::rack::Rack;
use outrigger_tests::rack::blue::{DPU, HOST};
use outrigger_tests::rack::workloads::ready;
use outrigger_tests::report::{Row, percentile};
use outrigger_tests::tenant::{annotation, is_ready, node_of};
use outrigger_tests::{InWords, create, dry_run, eventually, holds};
use serde_json::Value;
use tokio::time::timeout;

use super::{began, between, companions, copy, delete, gone, rule_for, workload};

/// The rows of this module: medians of rounds, and a percentile of all.
pub(super) const ROWS: [&str; 4] = [
    "from a workload's binding to its companion's container, p50",
    "from a workload's binding to its companion's container, p99",
    "from a workload's binding to its own container, BeforeStart, p50",
    "from a workload's binding to its own container, BeforeStart, p99",
];

const FLOORS: [&str; 2] = ["the same Pod, by a bare client when the workload is bound", "Parallel"];
const ROUNDS: usize = 3;
/// Turns of each kind in a round.
const SAMPLES: usize = 34;
/// When a turn that hangs ends the bench.
const DEADLINE: Duration = Duration::from_secs(120);

/// The kinds of turns: the workload's label `app`, which is also that of the Pod on the DPU.
const APPS: [&str; 3] = ["bare", "parallel", "waits"];

/// What watches of Pods say.
type Seen = Pin<Box<dyn Stream<Item = Pod> + Send>>;

/// Where turns take place.
struct Place<'a> {
    rack: &'a Rack,
    workloads: (Api<Pod>, Seen),
    companions: (Api<Pod>, Seen),
}

/// From a workload's binding to its own container, and to the container of the Pod on its DPU.
type Times = [Duration; 2];

pub(super) async fn measure(rack: &Rack) -> Vec<Row> {
    let (infra, hosts) = (&rack.plane.infra, &rack.plane.tenant);
    infra.apply(&[rule_for(&companions(), "parallel", "parallel", "Parallel")]).unwrap();
    hosts.apply(&[rule_for("universe", "waits", "waits", "BeforeStart")]).unwrap();
    let mut place = Place {
        rack,
        workloads: follow(Api::namespaced(hosts.client().await, "default")).await,
        companions: follow(Api::namespaced(infra.client().await, &companions())).await,
    };
    eventually("the agent makes Pods wait", || async {
        let pod = dry_run(&place.workloads.0, &workload("asks", "waits")).await.in_words()?;
        holds(pod.spec.is_some_and(|spec| spec.resource_claims.is_some()), "without a claim")
    })
    .await;
    // The first of each kind warms up.
    let model = create_model(&mut place).await;
    place.turn("waits", "first-waits", &model).await;
    place.turn("bare", "first-bare", &model).await;
    clear(rack).await;

    let mut rounds: Vec<[Vec<Times>; 3]> = Vec::new();
    for round in 0..ROUNDS {
        let mut times: [Vec<Times>; 3] = Default::default();
        for i in 0..SAMPLES {
            for kind in (0..3).map(|k| (k + i) % 3) {
                let name = format!("{}-{round}-{i}", APPS[kind]);
                times[kind].push(place.turn(APPS[kind], &name, &model).await);
            }
        }
        println!("round {round}: {times:?}");
        rounds.push(times);
        clear(rack).await;
    }
    rows(&rounds)
}

/// A companion, which bare clients copy.
async fn create_model(place: &mut Place<'_>) -> Value {
    place.turn("parallel", "first-parallel", &Value::Null).await;
    ready(place.rack, "infra", "parallel", 1).await.remove(0)
}

fn rows(rounds: &[[Vec<Times>; 3]]) -> Vec<Row> {
    let sorted = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times
    };
    // Which kind, and which of its times.
    let pairs = [((1, 1), (0, 1)), ((2, 0), (1, 0))];
    let mut rows = Vec::new();
    for (i, (figure, floor)) in pairs.into_iter().enumerate() {
        let of = |round: &[Vec<Times>; 3], (kind, which): (usize, usize)| {
            round[kind].iter().map(|times| times[which]).collect::<Vec<_>>()
        };
        let median = |round, what| percentile(&sorted(of(round, what)), 50);
        let medians: Vec<_> =
            rounds.iter().map(|round| (median(round, figure), median(round, floor))).collect();
        let all = |what| percentile(&sorted(rounds.iter().flat_map(|round| of(round, what)).collect()), 99);
        rows.push(Row::new(ROWS[2 * i], "ms", FLOORS[i], &medians));
        rows.push(Row::new(ROWS[2 * i + 1], "ms", FLOORS[i], &[(all(figure), all(floor))]));
    }
    rows
}

/// A watch of Pods, from now on.
async fn follow(api: Api<Pod>) -> (Api<Pod>, Seen) {
    let mut events = watcher(api.clone(), Config::default()).boxed();
    while !matches!(events.next().await, Some(Ok(Event::InitDone))) {}
    let pods = events.filter_map(async |event| match event {
        Ok(Event::Apply(pod)) => Some(pod),
        _ => None,
    });
    (api, Box::pin(pods))
}

/// The first Pod that is so.
async fn next(seen: &mut Seen, what: &str, is_so: impl Fn(&Pod) -> bool) -> Pod {
    let search = async {
        loop {
            let pod = seen.next().await.expect("a watch has no end");
            if is_so(&pod) {
                return pod;
            }
        }
    };
    timeout(DEADLINE, search).await.unwrap_or_else(|_| panic!("{what}: not after {DEADLINE:?}"))
}

impl Place<'_> {
    /// A workload of a kind comes, and all that follows.
    async fn turn(&mut self, app: &str, name: &str, model: &Value) -> Times {
        let named = |pod: &Pod| pod.name_any() == name;
        let created = create(&self.workloads.0, &workload(name, app)).await.unwrap();
        next(&mut self.workloads.1, "a workload is bound", |pod| named(pod) && !node_of(pod).is_empty())
            .await;
        let bound = Timestamp::now();
        let beside = if app == "bare" {
            create(&self.companions.0, &copy(model, name, app)).await.unwrap()
        } else {
            let of = |pod: &Pod| {
                annotation(pod, "workload-name") == Some(name) && pod.labels().contains_key(keys::RULE)
            };
            next(&mut self.companions.1, "a companion is there", of).await
        };
        let mut times = [Duration::ZERO; 2];
        for (i, (machine, pod)) in [(HOST, &created), (DPU, &beside)].into_iter().enumerate() {
            let pod = serde_json::to_value(pod).unwrap();
            let first = eventually("a container begins", || async { began(self.rack, machine, &pod) }).await;
            times[i] = between(bound, first);
        }
        let uid = beside.uid();
        next(&mut self.companions.1, "it is ready", |pod| pod.uid() == uid && is_ready(pod)).await;
        next(&mut self.workloads.1, "the workload is ready", |pod| named(pod) && is_ready(pod)).await;
        times
    }
}

/// Deletes all Pods of the turns.
async fn clear(rack: &Rack) {
    for app in APPS {
        delete(rack, "tenant", "default", app).await;
    }
    delete(rack, "infra", &companions(), "bare").await;
    for app in APPS {
        gone(rack, "infra", app).await;
    }
}
