//! What admission costs: mutating and validating a Pod, and merging selectors into one, against a floor.
//!
//! The floor is the same server (accept loop, TLS, axum) with a handler that reads the body and answers "allowed" without
//! looking at it. Both run as processes of their own; load comes from this process over HTTP/1.1 with TLS keep-alive, as
//! an API server's does, on the same machine. Rounds alternate, and the median of the rounds counts.

mod cases;
mod measure;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::post;
use outrigger_admission::caches::Caches;
use outrigger_admission::webhooks::endpoint;
use outrigger_admission::{Context, Decision, Settings, StepObserver, review};
use outrigger_core::keys;
use outrigger_runtime::cache::Change;
use outrigger_runtime::environment::Environment;
use outrigger_runtime::ready::Readiness;
use outrigger_tests::reviews::{self, SIZES};
use outrigger_tests::role;
use outrigger_webhook::budget::Budget;
use outrigger_webhook::ledger::Ledgers;
use outrigger_webhook::metrics::Metrics;
use outrigger_webhook::server::{AdmissionService, Writers};
use serde_json::{Value, json};

use cases::{Case, cases};

/// How often the stages of an ordinary request are run.
const TIMES: u32 = 20_000;

/// Measures, and prints the rows.
pub(crate) fn run() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    match role::own() {
        None => {
            stages();
            runtime.block_on(measure::measure());
        }
        Some((role, dir)) => runtime.block_on(async { role::serve(&dir, router(&role)).await }),
    }
}

fn rule() -> Value {
    json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
        "metadata": {"name": "r", "namespace": "tenant-blue", "uid": "rule-uid", "generation": 1},
        "spec": {
            "workloadTerms": [{"matchExpressions": [
                {"key": ".state.extra.labels.app", "operator": "In", "values": ["web"]}]}],
            "workloadInfoInject": [
                {"workloadKey": ".state.nodeName", "asAnnotation": {"name": "tenant-node-name"}},
                {"asAnnotation": {"name": "entire-workload"}}],
            "template": {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

/// What the server of a role answers.
fn router(role: &str) -> Router {
    if role == "floor" {
        return Router::new().route("/mutate/pods", post(floor)).route("/validate/pods", post(floor));
    }
    if role == CONSTANT {
        return Router::new().route("/mutate/pods", post(constant));
    }
    let (caches, settings) = decider();
    if role == "full" {
        fill(&caches);
    }
    let caches = Arc::new(caches);
    // Nothing that is measured asks a cluster.
    let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let nowhere = kube::Client::try_from(nowhere).unwrap();
    let clock = Environment::system().clock;
    let service = AdmissionService {
        ledgers: Ledgers::new(nowhere, &settings.core_namespace, caches.clone(), clock),
        caches,
        changes: tokio::sync::watch::channel(()).1,
        settings,
        metrics: Metrics::new(&mut outrigger_runtime::admin::registry()),
        readiness: Readiness::default(),
        budget: Arc::new(Budget::new(clock)),
        writers: Writers::Anybody,
        clock,
    };
    service.router()
}

/// The role of the least that can answer a review: it reads the uid, and sends the answer that was decided for the first review of
/// this size.
const CONSTANT: &str = "constant";

async fn constant(body: Bytes) -> impl IntoResponse {
    static ANSWERS: OnceLock<HashMap<usize, Decision>> = OnceLock::new();
    let answers = ANSWERS.get_or_init(|| {
        let (caches, settings) = decider();
        let answer = |case: Case| {
            let mut request = review::read(&case.body).unwrap();
            let admission =
                endpoint(case.path).unwrap().decide(Context::new(&caches, &settings), &mut request);
            (case.body.len(), admission.unwrap().decision)
        };
        cases().into_iter().map(answer).collect()
    });
    let uid = review::uid(&body).unwrap();
    let answer = review::write(&uid, &answers[&body.len()]).unwrap();
    ([(header::CONTENT_TYPE, "application/json")], answer)
}

/// Allowed, whatever it is.
async fn floor(body: Bytes) -> impl IntoResponse {
    drop(body);
    const ANSWER: &str = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true}}"#;
    ([(header::CONTENT_TYPE, "application/json")], ANSWER)
}

/// Where the time goes: each stage of a request on one core, without HTTP and TLS.
fn stages() {
    let (caches, settings) = decider();
    let cx = Context::new(&caches, &settings);
    let facts_of = |body: &Bytes| review::read(body).unwrap();
    for Case { what, path, body, times } in cases() {
        let endpoint = endpoint(path).unwrap();
        let time = |mut stage: Box<dyn FnMut() + '_>| {
            let began = Instant::now();
            for _ in 0..times {
                stage();
            }
            began.elapsed().as_secs_f64() * 1e6 / f64::from(times)
        };
        let read = time(Box::new(|| drop(std::hint::black_box(facts_of(&body)))));
        let mut requests: Vec<_> = (0..times).map(|_| facts_of(&body)).collect();
        let mut decisions = Vec::with_capacity(requests.len());
        let decide = time(Box::new(|| {
            let mut request = requests.pop().unwrap();
            decisions.push(endpoint.decide(cx, &mut request).unwrap().decision);
        }));
        let write = time(Box::new(|| {
            let decision = decisions.pop().unwrap();
            drop(std::hint::black_box(review::write("u", &decision).unwrap()));
        }));
        println!("{what}: read {read:.1} µs, decide {decide:.1} µs, write {write:.1} µs");
    }
    let metrics = Metrics::new(&mut outrigger_runtime::admin::registry());
    let steps = metrics.steps(Environment::system().clock);
    let began = Instant::now();
    for _ in 0..TIMES * 10 {
        steps.finished(std::hint::black_box("bench"), true, &Value::Null);
    }
    let nanoseconds = began.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES * 10);
    println!("taking the time of one step: {nanoseconds:.0} ns");
}

/// An object as a watch has shown it.
fn applied<K: serde::de::DeserializeOwned>(object: Value) -> Change<K> {
    Change::Applied(serde_json::from_value(object).unwrap())
}

/// What a webhook knows that has seen one tenant and one rule.
fn decider() -> (Caches, Settings) {
    let caches = Caches::default();
    let namespace = json!({"metadata": {"name": "tenant-blue", "labels": {keys::TENANT: "blue"}}});
    caches.namespace(applied(namespace));
    caches.apply_rule(applied(rule()));
    let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "blue"}, "spec": {}});
    caches.apply_tenant(applied(tenant));
    for (_, selector, _) in SIZES {
        let name = reviews::offloaded_namespace(selector);
        caches.namespace(applied(json!({"metadata": {"name": name, "labels": {keys::OFFLOADED: "true"}}})));
        caches.apply_offloading(applied(reviews::offloading(selector)));
    }
    let namespace = json!({"metadata": {"name": reviews::GUESTS, "labels": {keys::INJECT_RESOURCE: keys::INJECT_ENABLED}}});
    caches.namespace(applied(namespace));
    let machine = json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "m", "labels": {keys::MACHINE_GROUP: "g"}}, "spec": {"nodePool": [], "machineTypes": [
            {"name": "t", "spec": {"cpu": "2", "memory": "4Gi", "gpu": {"type": "nvidia.com/gpu", "num": 1, "family": "f"}},
                "available": 1}]},
        "status": {"availableMachines": [{"name": "t", "usage": {"maximum": 1, "reserved": 1}}]}});
    caches.apply_machine(applied(machine), Duration::ZERO);
    (caches, Settings::default())
}

/// What a webhook knows in a large installation besides: 1,000 tenants with ten rules and ten DPUs each.
fn fill(caches: &Caches) {
    for i in 0..1000 {
        let (tenant, namespace) = (format!("t{i}"), format!("tenant-t{i}"));
        caches.namespace(applied(json!({"metadata": {"name": namespace, "labels": {keys::TENANT: tenant}}})));
        caches.apply_tenant(applied(json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
            "metadata": {"name": tenant, "uid": tenant}, "spec": {}})));
        for n in 0..10 {
            let mut rule = rule();
            rule["metadata"] = json!({"name": format!("r{n}"), "namespace": namespace, "uid": format!("{tenant}-{n}"),
                "generation": 1});
            caches.apply_rule(applied(rule));
            caches.node(applied(json!({"metadata": {"name": format!("{tenant}-{n}"), "labels": {
                keys::NODE_TENANT: tenant, keys::DPU_HOST: format!("{tenant}-host-{n}")}}})));
        }
    }
}
