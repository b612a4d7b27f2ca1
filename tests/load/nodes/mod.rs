//! Outrigger on real Nodes: how long containers take to start, what its parts cost there, and three hundred Pods on one DPU. Kubelets, their
//! containers and the control plane share the machine's processors.

mod crowd;
mod starts;

use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use outrigger_tests::rack::blue::{BLUE, DPU, HOST};
use outrigger_tests::rack::workloads::{deployment, pods, runs, spec};
use outrigger_tests::rack::{Machine, Rack};
use outrigger_tests::report;
use outrigger_tests::tenant::rule;
use outrigger_tests::{InWords, eventually, holds, within};
use serde_json::{Value, json};

/// The bench's name in the report.
const BENCH: &str = "nodes";
/// Pods that a Node may have; a kubelet's default is 110.
const MAX_PODS: u32 = 500;

/// How long hundreds of containers may take on a busy machine. Not a measure of anything: it ends a bench that would never end.
const LONG: Duration = Duration::from_secs(900);

/// Measures, and prints the rows.
pub(crate) async fn run() {
    let rack = Rack::with_blue().await;
    for machine in [DPU, HOST] {
        rack.configure_kubelet(machine, Some(&json!({"maxPods": MAX_PODS}))).unwrap();
    }
    for machine in [DPU, HOST] {
        eventually("the kubelet takes more Pods", || async {
            let node = rack.cluster(machine.cluster).get(&["node", machine.name]).in_words()?;
            let pods = node["status"]["allocatable"]["pods"].as_str();
            holds(pods == Some(&MAX_PODS.to_string()), format!("{pods:?}"))
        })
        .await;
    }
    if report::is_any_wanted(BENCH, &crowd::ROWS) {
        report::record(BENCH, &crowd::measure(&rack).await);
    }
    if report::is_any_wanted(BENCH, &starts::ROWS) {
        report::record(BENCH, &starts::measure(&rack).await);
    }
}

/// The namespace of companions.
fn companions() -> String {
    format!("tenant-{BLUE}")
}

/// A rule with this name for workloads with the label `app`.
fn rule_for(namespace: &str, name: &str, app: &str, ordering: &str) -> Value {
    let mut spec = spec(app, &runs("echo here"));
    spec["ordering"] = json!(ordering);
    rule(namespace, name, spec)
}

/// A workload, which no controller has made.
fn workload(name: &str, app: &str) -> Value {
    let spec = deployment(app, 1)["spec"]["template"]["spec"].take();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": app}}, "spec": spec})
}

/// The same Pod as a companion, with another name and another label `app`, for a client that creates it itself.
fn copy(companion: &Value, name: &str, app: &str) -> Value {
    let mut spec = companion["spec"].clone();
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("nodeName");
    }
    let facts = ["workload-name", "version"]
        .map(|key| (key.to_owned(), companion["metadata"]["annotations"][key].clone()));
    let facts: serde_json::Map<_, _> = facts.into_iter().filter(|(_, value)| value.is_string()).collect();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": app}, "annotations": facts}, "spec": spec})
}

/// When the container of a Pod wrote its first line, which is the first that it does, by the log of its Node's runtime. A Pod's status has
/// whole seconds, and its kubelet writes it up to a second later.
fn began(rack: &Rack, machine: Machine, pod: &Value) -> Result<Timestamp, String> {
    let metadata = &pod["metadata"];
    let of = |key: &str| metadata[key].as_str().ok_or_else(|| format!("no {key}: {metadata}"));
    let file = format!("log/pods/{}_{}_{}/c/0.log", of("namespace")?, of("name")?, of("uid")?);
    let text = std::fs::read_to_string(rack.disk(machine).join(file)).in_words()?;
    text.split_once(' ').ok_or("no line")?.0.parse().in_words()
}

/// The time from one moment to a later one.
fn between(begin: Timestamp, end: Timestamp) -> Duration {
    end.duration_since(begin).try_into().unwrap_or_default()
}

/// Waits until there are exactly so many Pods with the label `app` in a cluster, whose containers have begun, and returns when the last one did.
async fn all_began(rack: &Rack, machine: Machine, app: &str, count: usize) -> Timestamp {
    let what = format!("{count} containers of {app} run");
    within(Instant::now(), LONG, &what, || async {
        // A list of hundreds of Pods costs time that their kubelets need.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let found = pods(rack, machine.cluster, app)?;
        holds(found.len() == count, format!("{} Pods", found.len()))?;
        let begun = found.iter().map(|pod| began(rack, machine, pod)).collect::<Result<Vec<_>, _>>()?;
        begun.into_iter().max().ok_or_else(|| "none".to_owned())
    })
    .await
}

/// Waits until no Pod with the label `app` is left in a cluster.
async fn gone(rack: &Rack, cluster: &str, app: &str) {
    let what = format!("Pods of {app} are gone");
    within(Instant::now(), LONG, &what, || async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let left = pods(rack, cluster, app)?;
        holds(left.is_empty(), format!("{} are left", left.len()))
    })
    .await;
}

/// Deletes Pods with the label `app`, which have no controller, and waits until they are gone.
async fn delete(rack: &Rack, cluster: &str, namespace: &str, app: &str) {
    let args = ["delete", "pods", "-n", namespace, "-l", &format!("app={app}"), "--wait=false"];
    rack.cluster(cluster).kubectl(&args).unwrap();
    gone(rack, cluster, app).await;
}
