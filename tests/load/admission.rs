//! What admission costs the API server: the same Pod is created in dry run in a namespace without any of Outrigger's parts, in
//! one with a pair of webhooks that answer at once, and in a tenant's, in turns. The pair's mutation answers with a constant
//! patch of what the webhook adds to that Pod, from a process of its own, as the webhook does. The API server's own metrics give the
//! time of policies and of webhooks.
//!
//! With `OUTRIGGER_BENCH_PROFILE=<dir>` it profiles instead: the API server's processor time while each of the three namespaces takes
//! Pods over one connection, as `<dir>/<namespace>.data` for `perf report`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::post;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kube::Client;
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::report::{self, Row};
use outrigger_tests::role::{self, Process, Roles};
use outrigger_tests::tenant::Tenant;
use outrigger_tests::{cost, eventually};
use serde_json::{Value, json};

const ROUNDS: usize = 12;
/// Pods of a round, one after the other.
const PODS: usize = 300;
/// How long a round of many connections lasts, and how many Pods are under way at once.
const MANY: (Duration, usize) = (Duration::from_secs(4), 8);
/// Seconds of a profile.
const PROFILE: u32 = 20;
const ELSEWHERE: &str = "elsewhere";
const FLOOR: &str = "floor";

/// Measures, and prints the rows.
pub(crate) async fn run() {
    match role::own() {
        None => measure().await,
        Some((_, dir)) => role::serve(&dir, router(&dir)).await,
    }
}

async fn measure() {
    let o = Outrigger::shared().await;
    let tenant = Tenant::without_agent(o, "cost", &[("a", 1)]).await;
    let client = o.plane.infra.client_without_retries().await;
    for name in [ELSEWHERE, FLOOR] {
        let labels = json!({"pod-security.kubernetes.io/enforce": "baseline"});
        o.plane
            .infra
            .apply(&[
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}),
                json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": name},
                    "spec": {"hard": {"pods": "100"}}}),
            ])
            .unwrap();
    }
    let (plain, owned) = (Namespace::new(&client, ELSEWHERE), Namespace::new(&client, &tenant.namespace));
    let made = eventually("the tenant's namespace takes a Pod", || owned.create(bare())).await;
    let roles = Roles::new().unwrap();
    let (floor, _pair) = (Namespace::new(&client, FLOOR), floor_pair(o, &made, &roles));
    eventually("the constant patch is applied", || async {
        let pod = floor.create(bare()).await?;
        if pod["spec"]["affinity"] == made["spec"]["affinity"] { Ok(()) } else { Err(pod.to_string()) }
    })
    .await;
    eventually("the other namespace takes a Pod", || plain.create(placed(&made))).await;
    let bodies = [(plain, placed(&made)), (floor, bare()), (owned, bare())];
    let port = o.plane.infra.server.rsplit(':').next().unwrap();
    let api_server = cost::process(&format!("--secure-port={port}"));
    if let Some(dir) = std::env::var_os("OUTRIGGER_BENCH_PROFILE") {
        return profile(Path::new(&dir), api_server, &bodies).await;
    }
    let mut one: Vec<[Figures; 3]> = Vec::new();
    let mut many: Vec<[f64; 3]> = Vec::new();
    for round in 0..=ROUNDS {
        let mut figures = [Figures::default(); 3];
        let mut rates = [0.0; 3];
        for turn in 0..3 {
            let i = (round + turn) % 3;
            let (namespace, body) = &bodies[i];
            figures[i] = one_after_the_other(api_server, &client, namespace, body).await;
            rates[i] = at_once(namespace, body).await;
        }
        // The first warms up.
        if round > 0 {
            one.push(figures);
            many.push(rates);
        }
    }
    report::record("admission", &rows(&one, &many));
}

/// Profiles the API server beside the creations in each namespace.
async fn profile(dir: &Path, api_server: u32, bodies: &[(Namespace, Value)]) {
    for ((namespace, body), name) in bodies.iter().zip([ELSEWHERE, FLOOR, "tenant"]) {
        let body = body.to_string();
        for _ in 0..PODS {
            namespace.send(body.clone()).await.unwrap();
        }
        let samples = dir.join(name).with_extension("data");
        let mut perf = Command::new("perf")
            .args(["record", "--quiet", "--event=cpu-clock", "--freq=999", "--call-graph=fp", "--output"])
            .arg(&samples)
            .args([format!("--pid={api_server}"), "sleep".to_owned(), PROFILE.to_string()])
            .spawn()
            .expect("perf");
        let mut created = 0_u32;
        let spent = cost::processor_time(api_server);
        while perf.try_wait().unwrap().is_none() {
            namespace.send(body.clone()).await.unwrap();
            created += 1;
        }
        let spent = cost::processor_time(api_server).saturating_sub(spent).as_secs_f64() * 1000.0;
        println!("{}: {created} Pods, {:.2} ms each", samples.display(), spent / f64::from(created));
    }
}

fn rows(one: &[[Figures; 3]], many: &[[f64; 3]]) -> Vec<Row> {
    let pairs = |of: fn(&[Figures; 3]) -> (f64, f64)| one.iter().map(of).collect::<Vec<_>>();
    let elsewhere = "namespace without Outrigger";
    let constant = "pair with a constant patch";
    vec![
        Row::new("create, 1 connection, p50", "ms", elsewhere, &pairs(|[p, _, t]| (t.median, p.median))),
        Row::new("create, 1 connection, p50", "ms", constant, &pairs(|[_, f, t]| (t.median, f.median))),
        Row::new("API server's CPU a create", "ms", elsewhere, &pairs(|[p, _, t]| (t.cpu, p.cpu))),
        Row::new("API server's CPU a create", "ms", constant, &pairs(|[_, f, t]| (t.cpu, f.cpu))),
        Row::new(
            "policies, tenant's namespace",
            "ms",
            elsewhere,
            &pairs(|[p, _, t]| (t.policies, p.policies)),
        ),
        Row::new("both webhook calls", "ms", constant, &pairs(|[_, f, t]| (t.webhooks, f.webhooks))),
        Row::new(
            "creates, 8 connections",
            "/s",
            elsewhere,
            &many.iter().map(|[p, _, t]| (*t, *p)).collect::<Vec<_>>(),
        ),
        Row::new(
            "creates, 8 connections",
            "/s",
            constant,
            &many.iter().map(|[_, f, t]| (*t, *f)).collect::<Vec<_>>(),
        ),
    ]
}

/// What the creation of a Pod takes, in milliseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Figures {
    median: f64,
    cpu: f64,
    policies: f64,
    webhooks: f64,
}

async fn one_after_the_other(
    api_server: u32,
    client: &Client,
    namespace: &Namespace,
    body: &Value,
) -> Figures {
    let body = body.to_string();
    let (before, cpu) = (Metrics::read(client).await, cost::processor_time(api_server));
    let mut times = Vec::with_capacity(PODS);
    for _ in 0..PODS {
        let began = Instant::now();
        namespace.send(body.clone()).await.unwrap();
        times.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    let cpu = cost::processor_time(api_server).saturating_sub(cpu);
    let after = Metrics::read(client).await;
    times.sort_by(f64::total_cmp);
    Figures {
        median: times[PODS / 2],
        cpu: cpu.as_secs_f64() * 1000.0 / PODS as f64,
        policies: (after.policies - before.policies) * 1000.0 / PODS as f64,
        webhooks: (after.webhooks - before.webhooks) * 1000.0 / PODS as f64,
    }
}

/// Pods a second, with several requests under way.
async fn at_once(namespace: &Namespace, body: &Value) -> f64 {
    let (during, count) = MANY;
    let body = body.to_string();
    let began = Instant::now();
    let mut running: FuturesUnordered<_> = (0..count).map(|_| namespace.send(body.clone())).collect();
    let mut done = 0_u32;
    while let Some(answer) = running.next().await {
        answer.unwrap();
        done += 1;
        if began.elapsed() < during {
            running.push(namespace.send(body.clone()));
        }
    }
    f64::from(done) / began.elapsed().as_secs_f64()
}

/// Seconds that the API server has spent so far on creations.
struct Metrics {
    policies: f64,
    webhooks: f64,
}

impl Metrics {
    async fn read(client: &Client) -> Self {
        let text =
            client.request_text(http::Request::get("/metrics").body(Vec::new()).unwrap()).await.unwrap();
        let sum = |name: &str, parts: &[&str]| -> f64 {
            let lines = text.lines().filter(|line| line.starts_with(name));
            let fits = lines.filter(|line| parts.iter().all(|part| line.contains(part)));
            fits.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
        };
        let controllers = "apiserver_admission_controller_admission_duration_seconds_sum{";
        let create = "operation=\"CREATE\"";
        Self {
            policies: sum(controllers, &["name=\"ValidatingAdmissionPolicy\"", create]),
            webhooks: sum(controllers, &["name=\"MutatingAdmissionWebhook\"", create])
                + sum(controllers, &["name=\"ValidatingAdmissionWebhook\"", create]),
        }
    }
}

struct Namespace {
    client: Client,
    path: String,
}

impl Namespace {
    fn new(client: &Client, name: &str) -> Self {
        Self { client: client.clone(), path: format!("/api/v1/namespaces/{name}/pods?dryRun=All") }
    }

    async fn send(&self, body: String) -> Result<String, String> {
        let request = http::Request::post(&self.path).header(header::CONTENT_TYPE, "application/json");
        let request = request.body(body.into_bytes()).unwrap();
        self.client.request_text(request).await.map_err(|e| e.to_string())
    }

    async fn create(&self, pod: Value) -> Result<Value, String> {
        let pod = self.send(pod.to_string()).await?;
        serde_json::from_str(&pod).map_err(|e| e.to_string())
    }
}

/// A Pod as somebody in the tenant's namespace writes it.
fn bare() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "load-", "labels": {"app": "load"}},
        "spec": {"containers": [{"name": "c", "image": "registry.example/app:1",
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}]}})
}

/// The same Pod with all that the webhook adds.
fn placed(made: &Value) -> Value {
    let mut pod = bare();
    for field in ["affinity", "tolerations"] {
        pod["spec"][field] = made["spec"][field].clone();
    }
    pod
}

/// The file with what the floor's mutating webhook adds to an answer.
const MUTATION: &str = "mutation.json";

/// A mutating and a validating webhook for one namespace that answer without looking at what they are asked, until the end of their
/// process.
fn floor_pair(o: &Outrigger, made: &Value, roles: &Roles) -> Process {
    let tolerations = made["spec"]["tolerations"].as_array().unwrap();
    let own = tolerations.iter().find(|t| t["key"] == keys::TENANT).expect("the tenant's toleration");
    let patch = json!([
        {"op": "add", "path": "/spec/affinity", "value": made["spec"]["affinity"]},
        {"op": "add", "path": "/spec/tolerations", "value": [own]},
    ]);
    let mutation = format!(r#","patchType":"JSONPatch","patch":"{}""#, STANDARD.encode(patch.to_string()));
    std::fs::write(roles.dir().join(MUTATION), mutation).unwrap();
    let process = roles.start("floor");
    let port = process.port;
    let configuration = |kind: &str, path: &str| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "floor"},
            "webhooks": [{"name": "floor.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "failurePolicy": "Fail",
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": FLOOR}},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
                    "operations": ["CREATE"], "scope": "Namespaced"}],
                "clientConfig": {"url": format!("https://127.0.0.1:{port}/{path}"),
                    "caBundle": STANDARD.encode(roles.authority.pem())}}]})
    };
    let both = [
        configuration("MutatingWebhookConfiguration", "mutate"),
        configuration("ValidatingWebhookConfiguration", "validate"),
    ];
    o.plane.infra.apply(&both).unwrap();
    process
}

/// What the floor's process answers.
fn router(dir: &Path) -> Router {
    let mutation = std::fs::read_to_string(dir.join(MUTATION)).unwrap();
    Router::new()
        .route("/mutate", post(move |body: Bytes| answer(body, mutation.clone())))
        .route("/validate", post(|body: Bytes| answer(body, String::new())))
}

/// "Allowed". The first uid of a review is the request's.
async fn answer(body: Bytes, mutation: String) -> impl IntoResponse {
    let text = std::str::from_utf8(&body).unwrap();
    let uid = text.split_once(r#""uid":""#).and_then(|(_, rest)| rest.split_once('"')).expect("a uid").0;
    let answer = format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{{"uid":"{uid}","allowed":true{mutation}}}}}"#
    );
    ([(header::CONTENT_TYPE, "application/json")], answer)
}
