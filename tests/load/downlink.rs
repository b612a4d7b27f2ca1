//! What it costs to tell workloads how their companions are: the time from a companion's readiness to the gate of its workload, the
//! time from a change of a DPU to the condition of its host's Node, and what ten thousand workloads whose companions fail at once do to the tenant's API server. Asserts only about counts.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::watcher::{Config, Event, watcher};
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::report::{self, Row, percentiles};
use outrigger_tests::shipped::kustomize;
use outrigger_tests::tenant::{Tenant, annotation, host, is_ready, rule_for};
use outrigger_tests::writes::{settled, since, writes};
use outrigger_tests::{create, eventually, holds, until};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Workloads whose gates are timed.
const SAMPLES: usize = 200;
/// Hosts whose DPUs fail and come back, one after the other.
const HOSTS: usize = 20;
/// Workloads whose companions fail at once.
const FAILING: usize = 10_000;
/// Time for which the API server is probed. An agent that is stopped for longer loses its streams and opens new ones.
const PROBE: Duration = Duration::from_secs(10);
/// Time for which nothing may be written where nothing changes.
const STEADY: Duration = Duration::from_secs(30);
/// Time without a write after which no more are expected.
const SETTLED: Duration = Duration::from_secs(3);
/// Pause between two probes.
const PAUSE: Duration = Duration::from_millis(10);
/// Writes of conditions and Events that the agent may make in that time: what it saves up, and its rate. As in `companions/board.rs` of
/// the agent.
const MAX_WRITES: u64 = 50 + 1500 / 6 + SLACK;
const MAX_EVENTS: u64 = 100 + 120 / 6 + SLACK;
/// What the counts may be read too late by: two seconds of writes.
const SLACK: u64 = 50;
/// How often the API server is probed while the agent tells and while it is stopped, in turns.
const ROUNDS: usize = 8;

/// Measures, and prints the rows.
pub(crate) async fn run() {
    let o = Outrigger::shared().await;
    let mut rows = gates(o).await;
    rows.extend(node_conditions(o).await);
    rows.extend(storm(o).await);
    report::record("downlink", &rows);
}

fn pod(name: &str, node: &str, gate: bool) -> Value {
    let gates = if gate { json!([{"conditionType": keys::COMPANIONS_GATE}]) } else { json!([]) };
    json!({"metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"nodeName": node, "readinessGates": gates, "containers": [{"name": "c", "image": "i"}]}})
}

fn has(pod: &Pod, condition: &str) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|c| c.type_ == condition && c.status == "True")
}

fn is_open(pod: &Pod) -> bool {
    has(pod, keys::COMPANIONS_GATE)
}

/// Follows Pods from now on until so many are as they should be; returns when each was seen so for the first time.
async fn follow(
    pods: Api<Pod>,
    count: usize,
    name_if: impl Fn(&Pod) -> Option<String> + Send + 'static,
) -> JoinHandle<HashMap<String, Instant>> {
    let mut events = watcher(pods, Config::default()).boxed();
    while !matches!(events.next().await, Some(Ok(Event::InitDone))) {}
    tokio::spawn(async move {
        let mut all = HashMap::new();
        while all.len() < count {
            let Some(Ok(Event::Apply(pod))) = events.next().await else { continue };
            if let Some(name) = name_if(&pod) {
                all.entry(name).or_insert_with(Instant::now);
            }
        }
        all
    })
}

/// The times from a companion's readiness to the open gate of its workload, both as watches see them; sorted.
async fn gated(t: &Tenant, prefix: &'static str, at_once: usize) -> Vec<Duration> {
    let ours = move |name: &str| name.starts_with(prefix).then(|| name.to_owned());
    let of = move |pod: &Pod| annotation(pod, "workload-name").filter(|_| is_ready(pod)).and_then(ours);
    let ready = follow(t.pods(), SAMPLES, of).await;
    let opened = follow(t.work(), SAMPLES, move |pod| ours(&pod.name_any()).filter(|_| is_open(pod))).await;
    let (work, node) = (t.work(), t.node("a"));
    let names: Vec<String> = (0..SAMPLES).map(|i| format!("{prefix}{i}")).collect();
    for group in names.chunks(at_once) {
        let pods: Vec<Value> = group.iter().map(|name| pod(name, &node, true)).collect();
        try_join_all(pods.iter().map(|pod| create(&work, pod))).await.unwrap();
        for name in group {
            until("the gate is open", &work, name, |pod| holds(is_open(&pod), "closed")).await;
        }
    }
    let (ready, opened) = (ready.await.unwrap(), opened.await.unwrap());
    // Two watches: what was first may be seen last.
    let mut times: Vec<Duration> =
        names.iter().map(|name| opened[name].saturating_duration_since(ready[name])).collect();
    times.sort_unstable();
    times
}

/// The least: a write of a Pod's condition by a client that knows it, until a watch sees it; sorted.
async fn bare(t: &Tenant, prefix: &'static str) -> Vec<Duration> {
    const CONDITION: &str = "example.com/probe";
    let ours = move |pod: &Pod| has(pod, CONDITION).then(|| pod.name_any()).filter(|n| n.starts_with(prefix));
    let seen = follow(t.work(), SAMPLES, ours).await;
    let condition = json!({"status": {"conditions": [{"type": CONDITION, "status": "True"}]}});
    let mut began = HashMap::new();
    for i in 0..SAMPLES {
        let name = format!("{prefix}{i}");
        began.insert(name.clone(), Instant::now());
        t.work().patch_status(&name, &PatchParams::default(), &Patch::Strategic(&condition)).await.unwrap();
    }
    let mut times: Vec<Duration> =
        seen.await.unwrap().iter().map(|(name, at)| at.saturating_duration_since(began[name])).collect();
    times.sort_unstable();
    times
}

async fn gates(o: &'static Outrigger) -> Vec<Row> {
    let t = Tenant::without_agent(o, "gates", &[("a", 1)]).await;
    t.start_agent(&[]);
    let mut spec = rule_for("app", "web");
    spec["ordering"] = json!("BeforeReady");
    t.own_rule("r", spec).await.unwrap();
    let (one, many) = (gated(&t, "one", 1).await, gated(&t, "many", SAMPLES / 2).await);
    let floor = bare(&t, "one").await;

    // Nothing changes from now on, so nothing is written.
    let all = async || (writes(&t.cluster, "pods").await, writes(&t.cluster, "events").await);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = all().await;
    tokio::time::sleep(STEADY).await;
    let after = all().await;
    let idle = (since(&after.0, &before.0), since(&after.1, &before.1));
    println!("  {} gated workloads, writes in {} s: {idle:?}", 2 * SAMPLES, STEADY.as_secs());
    assert!(idle.0.is_empty() && idle.1.is_empty());
    let mut rows = Vec::new();
    for (what, times) in [("one at a time", one), ("100 at once", many)] {
        let what = format!("from a companion's readiness to the gate of its workload, {what}");
        let rounds = [(times, floor.clone())];
        rows.extend(percentiles(&what, "a write of a condition by a client", &rounds, [50, 99]));
    }
    rows
}

/// The time from a change of a DPU to the condition at the Node of its host, as a watch sees it. Each DPU is cordoned and comes back;
/// a Node whose DPU changes more often is written at the agent's rate of one Node.
async fn node_conditions(o: &'static Outrigger) -> [Row; 2] {
    let hosts: Vec<String> = (0..HOSTS).map(|i| format!("h{i}")).collect();
    let of: Vec<(&str, usize)> = hosts.iter().map(|host| (host.as_str(), 1)).collect();
    let t = Tenant::without_agent(o, "dpus", &of).await;
    o.plane.tenant.apply(&kustomize("deploy/base/agent-nodes").unwrap()).unwrap();
    t.start_agent(&["--node-conditions".to_owned()]);
    let nodes: Api<Node> = Api::all(t.cluster.clone());
    let dpus: Api<Node> = Api::all(t.infra.clone());
    let says = |node: &Node, status: &str| {
        let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.any(|c| c.type_ == keys::DPU_READY && c.status == status)
    };
    let (mut times, mut floor) = (Vec::new(), Vec::new());
    for host in &hosts {
        let (name, dpu) = (t.node(host), t.node(&format!("{host}-dpu1")));
        until("the DPU is ready", &nodes, &name, |node| holds(says(&node, "True"), "not yet")).await;
        let selected = Config::default().fields(&format!("metadata.name={name}"));
        let mut events = watcher(nodes.clone(), selected).boxed();
        while !matches!(events.next().await, Some(Ok(Event::InitDone))) {}
        for (fails, status) in [(true, "False"), (false, "True")] {
            let began = Instant::now();
            let change = json!({"spec": {"unschedulable": fails}});
            dpus.patch(&dpu, &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
            floor.push(began.elapsed());
            while !matches!(events.next().await, Some(Ok(Event::Apply(node))) if says(&node, status)) {}
            times.push(began.elapsed());
        }
    }
    for all in [&mut times, &mut floor] {
        all.sort_unstable();
    }
    let what = "from a change of a DPU to the condition of its host's Node";
    percentiles(what, "the change itself", &[(times, floor)], [50, 99])
}

/// Times of small writes to the tenant's API server, one after the other for a while; sorted.
async fn probe(t: &Tenant) -> Vec<Duration> {
    let maps: Api<ConfigMap> = Api::namespaced(t.cluster.clone(), &t.source);
    let (mut times, began) = (Vec::new(), Instant::now());
    while began.elapsed() < PROBE {
        let change = json!({"data": {"count": times.len().to_string()}});
        let at = Instant::now();
        maps.patch("probe", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
        times.push(at.elapsed());
        tokio::time::sleep(PAUSE).await;
    }
    times.sort_unstable();
    times
}

/// Ten thousand workloads whose companions can't run. What their creation costs isn't measured: the API server is probed afterwards,
/// while the agent still tells, and while it is stopped.
async fn storm(o: &'static Outrigger) -> [Row; 2] {
    let t = Tenant::without_agent(o, "storm", &[("a", 1)]).await;
    t.set(json!({"limits": {"companions": 2 * FAILING}})).await.unwrap();
    t.start_agent(&["--report-companions-after=1s".to_owned()]);
    // Its DPU isn't the tenant's.
    let foreign = format!("foreign-{}", t.id);
    o.plane.tenant.apply(&[host(&foreign)]).unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(t.cluster.clone(), &t.source);
    create(&maps, &json!({"metadata": {"name": "probe"}})).await.unwrap();
    let work = t.work();
    futures::stream::iter(0..FAILING)
        .map(|i| pod(&format!("w{i}"), &foreign, false))
        .for_each_concurrent(16, async |pod| drop(create(&work, &pod).await.unwrap()))
        .await;
    let counts = async || (writes(&t.cluster, "pods").await, writes(&t.cluster, "events").await);
    // The stand-in for kubelets writes all of them too.
    settled(SETTLED, counts).await;
    t.own_rule("r", rule_for("app", "web")).await.unwrap();
    let created = async || writes(&t.infra, "pods").await.get("pods").copied().unwrap_or_default() as usize;
    eventually("companions are created", async || holds(created().await > 0, "none")).await;
    settled(SETTLED, created).await;

    let agent = |command: &str| o.plane.command(&format!("{command} agent-{}", t.id)).unwrap();
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        agent("pause");
        let before = settled(SETTLED, counts).await;
        let quiet = probe(&t).await;
        assert_eq!(counts().await, before, "somebody else writes");
        agent("resume");
        eventually("Pods say what is wrong", async || holds(counts().await != before, "no write")).await;
        let during = probe(&t).await;
        let after = counts().await;
        let (pods, events) = (since(&after.0, &before.0), since(&after.1, &before.1));
        println!("  {FAILING} workloads fail: writes in {} s: {pods:?} {events:?}", PROBE.as_secs());
        let sum = |of: &BTreeMap<String, u64>| of.values().sum::<u64>();
        assert!((1..=MAX_WRITES).contains(&sum(&pods)) && sum(&events) <= MAX_EVENTS);
        rounds.push((during, quiet));
    }
    let what = "a write to the tenant's API server while 10,000 workloads tell that companions fail";
    percentiles(what, "while the agent is stopped", &rounds, [50, 99])
}
