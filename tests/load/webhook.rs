//! What admission costs: mutating and validating a Pod, and merging selectors into one, against a floor.
//!
//! The floor is the same server (accept loop, TLS, axum) with a handler that reads the body and answers "allowed" without
//! looking at it. Both run as processes of their own; load comes from this process over HTTP/1.1 with TLS keep-alive, as
//! an API server's does, on the same machine. Rounds alternate, and the median of the rounds counts.
//!
//! `cargo bench -p outrigger-tests --bench webhook`

// A bench talks to whoever runs it, and fails loudly.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::post;
use hdrhistogram::Histogram;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use outrigger_admission::caches::Caches;
use outrigger_admission::webhooks::endpoint;
use outrigger_admission::{Context, Decision, Settings, StepObserver, review};
use outrigger_core::keys;
use outrigger_runtime::bind::Bind;
use outrigger_runtime::cache::Change;
use outrigger_runtime::environment::Environment;
use outrigger_runtime::ready::Readiness;
use outrigger_runtime::serve::{Limits, Server};
use outrigger_runtime::tls::{ClientTls, ServerTls};
use outrigger_tests::pki::Authority;
use outrigger_webhook::budget::Budget;
use outrigger_webhook::ledger::Ledgers;
use outrigger_webhook::metrics::Metrics;
use outrigger_webhook::server::{AdmissionService, Writers};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// As the command's.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const MANAGER: &str = "system:serviceaccount:outrigger-system:outrigger-manager";
const ROUND: Duration = Duration::from_secs(3);
const ROUNDS: usize = 3;
/// How often the stages of an ordinary request are run.
const TIMES: u32 = 20_000;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let role = std::env::var("OUTRIGGER_BENCH_ROLE").unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    match role.as_str() {
        "" if args.iter().any(|a| a == "--list" || a == "--test") => {}
        "" => {
            stages();
            runtime.block_on(measure());
        }
        role => runtime.block_on(serve(role)),
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

/// One server, until it is killed. Prints its port.
async fn serve(role: &str) {
    let dir = std::path::PathBuf::from(std::env::var("OUTRIGGER_BENCH_DIR").unwrap());
    let tls = Arc::new(ServerTls::load(dir.join("server.crt"), dir.join("server.key"), None).unwrap());
    let listener = "127.0.0.1:0".parse::<Bind>().unwrap().listen().unwrap();
    println!("{}", listener.address().unwrap().port());
    let router = if role == "floor" {
        Router::new().route("/mutate/pods", post(floor)).route("/validate/pods", post(floor))
    } else {
        let (caches, settings) = decider();
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
    };
    let end = CancellationToken::new();
    Server::new("bench", listener).tls(tls).limits(Limits::default()).run(router, end.clone(), end).await;
}

/// Allowed, whatever it is.
async fn floor(body: Bytes) -> impl IntoResponse {
    drop(body);
    const ANSWER: &str = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true}}"#;
    ([(header::CONTENT_TYPE, "application/json")], ANSWER)
}

/// One kind of request as an API server sends it.
struct Case {
    what: &'static str,
    path: &'static str,
    body: Bytes,
    /// How often its stages are run. What they make is kept until the clock has stopped.
    times: u32,
}

/// Mutation of a Pod by hand and of a companion, and validation of what that makes of them.
fn cases() -> Vec<Case> {
    let (caches, settings) = decider();
    let mut cases = Vec::new();
    for (what, validated, body) in
        bodies().into_iter().zip(["validate by hand", "validate companion"]).map(|((a, b), c)| (a, c, b))
    {
        let mut request = review::read(&body).unwrap();
        let mut review: Value = serde_json::from_slice(&body).unwrap();
        let decision = endpoint("/mutate/pods")
            .unwrap()
            .decide(Context::new(&caches, &settings), &mut request)
            .unwrap()
            .decision;
        let Decision::Allow { patch, .. } = decision else { panic!("{decision:?}") };
        json_patch::patch(&mut review["request"]["object"], &patch).unwrap();
        let admitted = Bytes::from(review.to_string());
        cases.push(Case { what, path: "/mutate/pods", body, times: TIMES });
        cases.push(Case { what: validated, path: "/validate/pods", body: admitted, times: TIMES });
    }
    cases.extend(offloaded());
    cases.push(guest());
    cases
}

/// The Pod made by hand, as a guest.
fn guest() -> Case {
    let (_, body) = bodies().remove(0);
    let mut review: Value = serde_json::from_slice(&body).unwrap();
    review["request"]["namespace"] = json!("guests");
    review["request"]["object"]["metadata"]["labels"] =
        json!({keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "t", keys::POD_ROLE: keys::GUEST});
    let body = Bytes::from(review.to_string());
    Case { what: "guest", path: "/mutate/pods", body, times: TIMES }
}

/// Sizes of offloading: what it is called, terms of the NamespaceOffloading's selector, terms of the Pod.
const SIZES: [(&str, usize, usize); 4] = [
    ("offload 1 x 1", 1, 1),
    ("offload 5 x 2", 5, 2),
    ("offload 10 x 10", 10, 10),
    ("offload 50 x 20", 50, 20),
];

/// So many terms, each about another value of a label, and about a label that is always the same.
fn terms(key: &str, count: usize) -> Vec<Value> {
    let term = |i| {
        json!({"matchExpressions": [{"key": key, "operator": "In", "values": [format!("{key}-{i}")]},
            {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}]})
    };
    (0..count).map(term).collect()
}

/// The Pod made by hand, in namespaces that are offloaded.
fn offloaded() -> Vec<Case> {
    let (_, body) = bodies().remove(0);
    let mut review: Value = serde_json::from_slice(&body).unwrap();
    let mut case = |(what, selector, own): (&'static str, usize, usize)| {
        review["request"]["namespace"] = json!(format!("offloaded-{selector}"));
        review["request"]["object"]["spec"]["affinity"] = json!({"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms("zone", own)}}});
        let body = Bytes::from(review.to_string());
        let times = TIMES / u32::try_from(selector * own).unwrap();
        Case { what, path: "/mutate/pods", body, times }
    };
    SIZES.into_iter().map(&mut case).collect()
}

/// Bodies as an API server sends them for mutation.
fn bodies() -> Vec<(&'static str, Bytes)> {
    let review = |user: &str, object: Value| {
        let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "0df28fbd-5f5f-11e8-bc74-36e6bb280816",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "p", "namespace": "tenant-blue", "operation": "CREATE", "dryRun": false,
            "userInfo": {"username": user, "groups": ["system:authenticated"]},
            "object": object, "oldObject": null, "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}}});
        Bytes::from(body.to_string())
    };
    let spec = json!({
        "containers": [{"name": "c", "image": "registry.example/app:1", "resources": {"requests": {"cpu": "100m"}},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "imagePullPolicy": "IfNotPresent", "volumeMounts": [{"name": "token", "readOnly": true,
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]}],
        "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default", "serviceAccount": "default", "securityContext": {},
        "schedulerName": "default-scheduler", "priority": 0, "enableServiceLinks": true,
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute",
            "tolerationSeconds": 300}],
        "volumes": [{"name": "token", "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}]}}]});
    let by_hand = json!({"kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "p", "namespace": "tenant-blue", "labels": {"app": "x"}}, "spec": spec});
    let workload = json!({
        "metadata": {"id": "aac076f4-a565-4ed0-aac2-3da5698f5a78", "orchestrator": "kubernetes",
            "resourceType": "v1/Pod", "resourceName": "web", "resourceNamespace": "shop"},
        "state": {"nodeName": "host-a", "ready": true, "extra": {
            "labels": {"app": "web", "version": "1", "team": "shop"},
            "annotations": {"k8s.v1.cni.cncf.io/networks-status": "x".repeat(600)}}}});
    let mut companion = by_hand.clone();
    companion["metadata"] = json!({"name": "p", "namespace": "tenant-blue",
        "labels": {keys::TENANT: "blue", keys::RULE: "r", keys::WORKLOAD: "w"},
        "annotations": {keys::HOST: "host-a", keys::RULE_GENERATION: "1", keys::RULE_UID: "rule-uid",
            keys::WORKLOAD: workload.to_string()},
        "ownerReferences": [{"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
            "name": "r", "uid": "rule-uid", "controller": true}]});
    companion["spec"]["schedulingGates"] = json!([{"name": keys::ADMISSION_GATE}]);
    vec![("Pod made by hand", review("someone", by_hand)), ("companion", review(MANAGER, companion))]
}

struct Process {
    child: Child,
    port: u16,
}

impl Process {
    fn start(role: &str, dir: &std::path::Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env("OUTRIGGER_BENCH_ROLE", role)
            .env("OUTRIGGER_BENCH_DIR", dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, port: line.trim().parse().unwrap() }
    }

    /// Resident memory, MiB.
    fn memory(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
        steps.finished(std::hint::black_box("bench"), true);
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
        let name = format!("offloaded-{selector}");
        caches.namespace(applied(json!({"metadata": {"name": name, "labels": {keys::OFFLOADED: "true"}}})));
        let offloading = json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
            "metadata": {"name": "offloading", "namespace": name}, "spec": {
                "podOffloadingStrategy": "LocalAndRemote",
                "clusterSelector": {"nodeSelectorTerms": terms("region", selector)}}});
        caches.apply_offloading(applied(offloading));
    }
    let namespace =
        json!({"metadata": {"name": "guests", "labels": {keys::INJECT_RESOURCE: keys::INJECT_ENABLED}}});
    caches.namespace(applied(namespace));
    let machine = json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "m", "labels": {keys::MACHINE_GROUP: "g"}}, "spec": {"nodePool": [], "machineTypes": [
            {"name": "t", "spec": {"cpu": "2", "memory": "4Gi", "gpu": {"type": "nvidia.com/gpu", "num": 1, "family": "f"}},
                "available": 1}]},
        "status": {"availableMachines": [{"name": "t", "usage": {"maximum": 1, "reserved": 1}}]}});
    caches.apply_machine(applied(machine), Duration::ZERO);
    (caches, Settings::default())
}

/// What a round found.
#[derive(Clone, Copy)]
struct Found {
    per_second: f64,
    p50: f64,
    p99: f64,
}

/// Loads a server by so many connections for a round.
async fn load(
    port: u16,
    ca: &std::path::Path,
    connections: usize,
    (path, body): (&str, &Bytes),
    time: Duration,
) -> Found {
    let path = format!("{path}?timeout=10s");
    let config = ClientTls { ca: ca.to_owned(), identity: None }.config(&[b"http/1.1"]).unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let end = Instant::now() + time;
    let mut tasks = Vec::new();
    for _ in 0..connections {
        let (connector, body, path) = (connector.clone(), body.clone(), path.clone());
        tasks.push(tokio::spawn(async move {
            let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let stream = connector.connect("127.0.0.1".try_into().unwrap(), stream).await.unwrap();
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            let mut times = Histogram::<u64>::new(3).unwrap();
            while Instant::now() < end {
                let request = http::Request::post(&path)
                    .header("host", "webhook")
                    .header("content-type", "application/json")
                    .body(Full::new(body.clone()))
                    .unwrap();
                let began = Instant::now();
                let response = sender.send_request(request).await.unwrap();
                let answer = response.into_body().collect().await.unwrap().to_bytes();
                times.record(u64::try_from(began.elapsed().as_nanos()).unwrap()).unwrap();
                assert!(answer.windows(14).any(|w| w == b"\"allowed\":true"), "{answer:?}");
            }
            times
        }));
    }
    let mut all = Histogram::<u64>::new(3).unwrap();
    for task in tasks {
        all.add(task.await.unwrap()).unwrap();
    }
    let ms = |q: f64| all.value_at_quantile(q) as f64 / 1e6;
    Found { per_second: all.len() as f64 / time.as_secs_f64(), p50: ms(0.5), p99: ms(0.99) }
}

fn median(mut found: Vec<Found>) -> Found {
    found.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    found[found.len() / 2]
}

async fn measure() {
    let dir = std::env::temp_dir().join(format!("outrigger-bench-{}", std::process::id()));
    let authority = Authority::new(&dir, "bench").unwrap();
    authority.issue("server", &["127.0.0.1"]).unwrap();
    let (floor, ours) = (Process::start("floor", &dir), Process::start("webhook", &dir));
    println!(
        "{:<26} {:>5}  {:>10} {:>10} {:>6}  {:>16}  {:>16}",
        "body", "conns", "floor/s", "ours/s", "ratio", "floor p50/p99 ms", "ours p50/p99 ms"
    );
    for Case { what, path, body, .. } in cases() {
        for connections in [1, 16, 64] {
            let (mut a, mut b) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                a.push(load(floor.port, &authority.file(), connections, (path, &body), ROUND).await);
                b.push(load(ours.port, &authority.file(), connections, (path, &body), ROUND).await);
            }
            let (a, b) = (median(a), median(b));
            println!(
                "{:<26} {connections:>5}  {:>10.0} {:>10.0} {:>6.2}  {:>7.2} {:>8.2}  {:>7.2} {:>8.2}",
                format!("{what}, {} B", body.len()),
                a.per_second,
                b.per_second,
                b.per_second / a.per_second,
                a.p50,
                a.p99,
                b.p50,
                b.p99
            );
        }
    }
    println!("resident memory: floor {:.0} MiB, ours {:.0} MiB", floor.memory(), ours.memory());
    let _ = std::fs::remove_dir_all(dir);
}
