//! Many Pods that start after their companions, while parts of Outrigger are killed: the webhook that adds the claim, the devices that
//! the agent publishes, the real scheduler, a part of a kubelet and a plugin for each host. The histories of both API servers prove what
//! has started when.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use outrigger_core::keys;
use outrigger_tests::held::{self, GO};
use outrigger_tests::history::{self, Change, History, Kind, Side, kind};
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::plugin::{self, Host};
use outrigger_tests::tenant::{Tenant, is_ready, namespace, takes_pods};
use outrigger_tests::{InWords, create, dry_run, eventually, holds, within};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

/// What the part of a kubelet writes at a Pod whose containers would start now.
const STARTED: &str = "example.com/started";

const PODS: Kind = kind("", "v1", "Pod", "pods");

/// How many Pods are created at the same time.
const CREATORS: usize = 16;

/// The longest that a companion takes until it may become Ready.
const SLOWEST: u64 = 3000;

/// Each part that is killed is away for so long.
const AWAY: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_few_pods_start_after_their_companions_while_parts_are_killed() {
    run("few", 24, &["a", "b"], 4).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn five_hundred_pods_start_after_their_companions_while_parts_are_killed() {
    run("many", 500, &["a", "b", "c"], 100).await;
}

/// When a kubelet saw a Pod on its Node and when its claims were prepared, in microseconds since 1970; how often that had failed.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Start {
    seen: u64,
    prepared: u64,
    failed: u32,
}

/// When a companion was allowed to become Ready, and when it was seen Ready, by the id of its workload.
type Released = Arc<Mutex<BTreeMap<String, (u64, Option<u64>)>>>;

/// A part that was killed at a revision of the store; the Node whose Pods it concerns, or all.
struct Kill {
    process: String,
    revision: u64,
    node: Option<String>,
}

/// A creation that succeeded: when it began, and how long it took, in microseconds.
type Created = BTreeMap<String, (u64, u64)>;

fn micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_micros()).unwrap()
}

/// The tenant with an agent that publishes devices, and a host for each of these names. The agent publishes devices of all Nodes, so
/// the clusters are its own.
async fn stage(id: &str, names: &[&str]) -> (Tenant, Vec<Host>) {
    let o: &'static Outrigger = Box::leak(Box::new(Outrigger::start().await.unwrap()));
    let of: Vec<(&str, usize)> = names.iter().map(|name| (*name, 1)).collect();
    let t = Tenant::without_agent(o, id, &of).await;
    for name in names {
        plugin::can_run(&t, name, "300").await;
    }
    let agent = plugin::start_publishing_agent(&t);
    let mut hosts = Vec::new();
    for name in names {
        let host = Host::start(&t, name, agent).await;
        host.kubelet.run().await.unwrap();
        hosts.push(host);
    }
    t.own_rule("fw", held::rule("web", "BeforeStart")).await.unwrap();
    // While the agent is away, no Pod is created without the claim.
    let label = json!({"metadata": {"labels": {keys::COMPANIONS_FIRST_NAMESPACE: keys::REQUIRED}}});
    o.plane.tenant.patch(&format!("namespace/{}", t.source), &[], &label).unwrap();
    o.plane.tenant.apply(&[namespace(OUTSIDE)]).unwrap();
    takes_pods(&t.cluster, OUTSIDE).await;
    eventually("Pods get the claim, and there are devices", || async {
        let pod = dry_run(&t.work(), &pod("w", "web")).await.in_words()?;
        let pods = o.plane.tenant.get(&["resourceslices"]).in_words()?["items"].take();
        let pools: BTreeSet<&str> = pods
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|s| s["spec"]["pool"]["name"].as_str())
            .collect();
        let claims = pod.spec.and_then(|spec| spec.resource_claims).unwrap_or_default();
        holds(claims.len() == 1 && pools.len() == names.len(), format!("{claims:?} {pools:?}"))
    })
    .await;
    (t, hosts)
}

/// A namespace whose Pods the webhook doesn't see.
const OUTSIDE: &str = "outside";

fn pod(name: &str, app: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": app}}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

/// Creates a Pod as a controller does, again and again until it is there.
async fn created(pods: &Api<Pod>, name: &str, app: &str) -> (u64, u64) {
    loop {
        let began = micros();
        match create(pods, &pod(name, app)).await {
            Ok(_) => return (began, micros() - began),
            // An earlier request has been executed without an answer.
            Err(kube::Error::Api(status)) if status.code == 409 => return (began, micros() - began),
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Lets each companion become Ready a while after it exists. Every fourth waits until all parts are back.
async fn release(pods: Api<Pod>, released: Released, calm: watch::Receiver<bool>) {
    let mut seen = BTreeSet::new();
    let which = WatchParams::default().labels(keys::RULE);
    loop {
        let Ok(events) = pods.watch(&which, "0").await else { continue };
        let mut events = events.boxed();
        while let Some(Ok(event)) = events.next().await {
            let (WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = event else { continue };
            let workload = pod.labels().get(keys::WORKLOAD).cloned().unwrap();
            if is_ready(&pod)
                && let Some((_, ready)) = released.lock().get_mut(&workload)
            {
                ready.get_or_insert_with(micros);
            }
            if !seen.insert(pod.uid()) {
                continue;
            }
            let count = u64::try_from(seen.len()).unwrap();
            let (pods, released, mut calm) = (pods.clone(), released.clone(), calm.clone());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(count * 7919 % SLOWEST)).await;
                if count % 4 == 0 {
                    calm.wait_for(|calm| *calm).await.unwrap();
                }
                released.lock().entry(workload).or_insert_with(|| (micros(), None));
                let ready = json!({"status": {"conditions": [{"type": GO, "status": "True"}]}});
                let (name, params) = (pod.name_any(), PatchParams::default());
                while pods.patch_status(&name, &params, &Patch::Strategic(&ready)).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            });
        }
    }
}

/// Kills a plugin, the agent and the manager one after the other while Pods are created, and starts each again.
async fn kill(t: &Tenant, host: &str, created: &AtomicUsize, count: usize) -> Vec<Kill> {
    let plugin = (format!("host-{}-{host}", t.id), Some(t.node(host)));
    let parts = [plugin, (format!("agent-{}", t.id), None), ("manager".to_owned(), None)];
    let mut kills = Vec::new();
    for (n, (process, node)) in parts.into_iter().enumerate() {
        while created.load(Ordering::Relaxed) < count * (n + 1) / 5 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let revision = one_waits(t, node.as_deref()).await;
        t.outrigger.plane.command(&format!("stop {process}")).unwrap();
        tokio::time::sleep(AWAY).await;
        t.outrigger.plane.command(&format!("start {process}")).unwrap();
        kills.push(Kill { process, revision, node });
    }
    kills
}

/// Waits for a Pod of the rule that has a Node, this one if there is one, and hasn't started. Returns the revision of the store at which
/// that is so.
async fn one_waits(t: &Tenant, node: Option<&str>) -> u64 {
    let of = ListParams::default().labels("app=web");
    eventually("a Pod waits on the Node", || async {
        let pods = t.work().list(&of).await.in_words()?;
        let nodes = pods.items.iter().filter(|pod| start(pod).is_none());
        let mut nodes = nodes.filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref());
        let waits = nodes.any(|name| node.is_none_or(|node| name == node));
        let revision = history::number(pods.metadata.resource_version.as_deref());
        revision.filter(|_| waits).ok_or_else(|| format!("none waits on {node:?}"))
    })
    .await
}

/// Creates Pods of these names and values of the label `app`, so many at the same time, and counts them.
async fn create_all(pods: Vec<(Api<Pod>, String, &str)>, creators: usize, count: &AtomicUsize) -> Created {
    let one = async |(api, name, app): (Api<Pod>, String, &str)| {
        let of = created(&api, &name, app).await;
        count.fetch_add(1, Ordering::Relaxed);
        (name, of)
    };
    futures::stream::iter(pods).map(one).buffer_unordered(creators).collect().await
}

/// Waits until all Pods of these names have started.
async fn all_start(t: &Tenant, names: &Created) -> Vec<Pod> {
    let all: Api<Pod> = Api::all(t.cluster.clone());
    within(Instant::now(), Duration::from_secs(900), "all Pods start", || async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut all = all.list(&ListParams::default()).await.in_words()?.items;
        all.retain(|pod| names.contains_key(&pod.name_any()) && start(pod).is_some());
        if all.len() == names.len() { Ok(all) } else { Err(format!("{} of {}", all.len(), names.len())) }
    })
    .await
}

/// Starts so many Pods while parts are killed, and then, while nothing is, so many of each sort whose times are printed.
async fn run(id: &str, count: usize, hosts: &[&str], measured: usize) {
    let (t, _hosts) = stage(id, hosts).await;
    let followed = vec![(Side::Tenant, t.cluster.clone(), PODS), (Side::Infra, t.infra.clone(), PODS)];
    let history = History::follow(followed).await.unwrap();
    let (released, (calm, calmed)) = (Released::default(), watch::channel(false));
    tokio::spawn(release(t.pods(), released.clone(), calmed));
    let done = AtomicUsize::new(0);
    let pods = (0..count).map(|n| (t.work(), format!("web{n}"), "web")).collect();
    let (disturbed, kills) =
        futures::join!(create_all(pods, CREATORS, &done), kill(&t, hosts[1], &done, count));
    calm.send(true).unwrap();
    all_start(&t, &disturbed).await;
    let outside: Api<Pod> = Api::namespaced(t.cluster.clone(), OUTSIDE);
    let sorts = |n| {
        [(t.work(), "web"), (t.work(), "plain"), (outside.clone(), "outside")]
            .map(|(api, app)| (api, format!("calm-{app}{n}"), app))
    };
    let calm = create_all((0..measured).flat_map(sorts).collect(), 2, &done).await;
    let calm_pods = all_start(&t, &calm).await;
    let changes = history.changes().await.unwrap();
    let (found, proven) = examine(&changes, &t.source, &t.namespace);
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert_eq!(proven.len(), count + measured, "each Pod of the rule has started");
    let released = released.lock().clone();
    for (uid, (_, _, start)) in &proven {
        let (allowed, _) = released[uid];
        assert!(
            start.prepared > allowed,
            "the claim of {uid} was prepared before its companion could be Ready"
        );
    }
    for Kill { process, revision, node } in &kills {
        let of =
            |change: &Change| node.is_none() || change.object["spec"]["nodeName"].as_str() == node.as_deref();
        let waited = proven
            .values()
            .filter(|(first, last, _)| first < revision && last.revision > *revision && of(last));
        assert!(waited.count() > 0, "no Pod waited when {process} was killed");
    }
    let (mut calm_starts, mut others) = (Vec::new(), Vec::new());
    for (uid, (_, last, start)) in &proven {
        let ready = released[uid].1.unwrap_or_default();
        let is_calm = last.object["metadata"]["name"].as_str().is_some_and(|name| calm.contains_key(name));
        let of = if is_calm { &mut calm_starts } else { &mut others };
        of.push((start.prepared.saturating_sub(start.seen.max(ready)), start.failed));
    }
    print("while parts are killed", &others);
    print("while nothing is", &calm_starts);
    compare(&calm_pods, &calm);
}

/// When a Pod has started; `None` if it hasn't.
fn start(pod: &Pod) -> Option<Start> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let started = conditions.iter().find(|condition| condition.type_ == STARTED)?;
    serde_json::from_str(started.message.as_deref()?).ok()
}

/// What a history proves of a Pod that has started: the revision at which it was created, its start, and the kubelet's times.
type Proven<'a> = BTreeMap<String, (u64, &'a Change, Start)>;

/// Returns in words what is wrong in a history, and the Pods of the rule that have started, by their uids. A kubelet writes the start after the
/// claim is prepared, so a start that the history shows before the companion was Ready was too early.
fn examine<'a>(changes: &'a [Change], source: &str, namespace: &str) -> (Vec<String>, Proven<'a>) {
    let (mut wrong, mut first, mut proven) = (Vec::new(), BTreeMap::new(), Proven::new());
    let mut companions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut ready = BTreeSet::new();
    for change in changes {
        let Ok(pod) = serde_json::from_value::<Pod>(change.object.clone()) else { continue };
        let (uid, of) = (pod.uid().unwrap_or_default(), pod.namespace().unwrap_or_default());
        match (change.side, pod.labels().get(keys::WORKLOAD)) {
            (Side::Infra, Some(workload)) if of == namespace => {
                companions.entry(workload.clone()).or_default().insert(uid);
                if is_ready(&pod) {
                    ready.insert(workload.clone());
                }
            }
            (Side::Tenant, _) if of == source && pod.labels().get("app").is_some_and(|app| app == "web") => {
                let created = *first.entry(uid.clone()).or_insert(change.revision);
                let spec = pod.spec.as_ref();
                if spec.and_then(|spec| spec.resource_claims.as_ref()).is_none_or(|claims| claims.len() != 1)
                {
                    wrong.push(format!("{} has no claim", pod.name_any()));
                }
                let Some(start) = start(&pod).filter(|_| !proven.contains_key(&uid)) else { continue };
                if !ready.contains(&uid) {
                    wrong.push(format!(
                        "revision {}: {} has started before its companion",
                        change.revision,
                        pod.name_any()
                    ));
                }
                proven.insert(uid, (created, change, start));
            }
            _ => {}
        }
    }
    for uid in first.keys() {
        let count = companions.get(uid).map_or(0, BTreeSet::len);
        if count != 1 {
            wrong.push(format!("{uid} has {count} companions"));
        }
    }
    (wrong, proven)
}

/// Prints what the order costs: the time from the later of binding and the companion's Ready to the start, of Pods whose first call has
/// succeeded and of the others.
#[allow(clippy::print_stdout)] // Figures.
fn print(when: &str, added: &[(u64, u32)]) {
    let of = |again: bool| {
        figures(added.iter().filter(|(_, failed)| (*failed > 0) == again).map(|(added, _)| *added).collect())
    };
    println!("added between binding and start {when}, first call: {}", of(false));
    println!("added between binding and start {when}, after a call that failed: {}", of(true));
}

/// Prints what Pods cost that no rule matches, beside those that no webhook sees.
#[allow(clippy::print_stdout)] // Figures.
fn compare(pods: &[Pod], created: &Created) {
    for app in ["web", "plain", "outside"] {
        let (mut calls, mut binding, mut starting) = (Vec::new(), Vec::new(), Vec::new());
        for pod in pods.iter().filter(|pod| pod.labels().get("app").is_some_and(|of| of == app)) {
            let (Some((began, call)), Some(start)) = (created.get(&pod.name_any()), start(pod)) else {
                continue;
            };
            calls.push(*call);
            binding.push(start.seen.saturating_sub(*began));
            starting.push(start.prepared - start.seen);
        }
        println!("{app}: creation: {}", figures(calls));
        println!("{app}: creation to binding: {}", figures(binding));
        println!("{app}: binding to start: {}", figures(starting));
    }
}

/// The median and the 99th percentile of microseconds, in milliseconds.
fn figures(mut micros: Vec<u64>) -> String {
    micros.sort_unstable();
    let at = |percent: usize| {
        micros.get((micros.len().saturating_sub(1)) * percent / 100).copied().unwrap_or_default()
    };
    let shown = |micros: u64| format!("{}.{:01}", micros / 1000, micros % 1000 / 100);
    format!("p50 {} ms, p99 {} ms of {}", shown(at(50)), shown(at(99)), micros.len())
}

#[test]
fn a_history_shows_a_pod_that_starts_too_early_and_a_second_companion() {
    let change =
        |revision, side, object| Change { revision, side, kind: "Pod".to_owned(), object, gone: false };
    let condition = |kind: &str| json!({"type": kind, "status": "True", "message": r#"{"seen": 1, "prepared": 2, "failed": 0}"#});
    let workload = |revision, started: bool| {
        let conditions = if started { json!([condition(STARTED)]) } else { json!([]) };
        let object = json!({"metadata": {"name": "w", "namespace": "s", "uid": "u", "labels": {"app": "web"}},
            "spec": {"containers": [], "resourceClaims": [{"name": "c"}]}, "status": {"conditions": conditions}});
        change(revision, Side::Tenant, object)
    };
    let companion = |revision, uid: &str, ready: bool| {
        let conditions = if ready { json!([condition("Ready")]) } else { json!([]) };
        let object = json!({"metadata": {"name": uid, "namespace": "n", "uid": uid, "labels": {keys::WORKLOAD: "u"}},
            "spec": {"containers": []}, "status": {"conditions": conditions}});
        change(revision, Side::Infra, object)
    };
    let of = |changes: &[Change]| {
        let (wrong, proven) = examine(changes, "s", "n");
        (wrong, proven.len())
    };
    let good = [workload(1, false), companion(2, "c", false), companion(3, "c", true), workload(4, true)];
    assert_eq!(of(&good), (vec![], 1));
    let early = [workload(1, false), companion(2, "c", false), workload(3, true), companion(4, "c", true)];
    assert_eq!(of(&early), (vec!["revision 3: w has started before its companion".to_owned()], 1));
    let twice = [&good[..], &[companion(5, "d", true)]].concat();
    assert_eq!(of(&twice), (vec!["u has 2 companions".to_owned()], 1));
    let mut without = workload(1, false);
    without.object["spec"]["resourceClaims"].take();
    assert_eq!(of(&[without]), (vec!["w has no claim".to_owned(), "u has 0 companions".to_owned()], 0));
}
