//! What one attacker costs others: the memory of each process, the time that a neighbour's calls take, and the processor time that is
//! spent when the attack has ended. Each attack takes turns with the same traffic to a server that does nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::http::header;
use axum::response::IntoResponse;
use axum::{Json, Router};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use outrigger_proto::v1::GetRequest;
use outrigger_proto::v1::workload_rule_service_client::WorkloadRuleServiceClient;
use outrigger_runtime::bind::Bind;
use outrigger_runtime::serve::{Limits, Server};
use outrigger_runtime::tls::{ClientTls, ServerTls};
use outrigger_tests::cost::{forget_peak, mebibytes, memory_limit, peak, process, processor_time};
use outrigger_tests::outrigger::{Outrigger, tenant_identity};
use outrigger_tests::report::{self, Row};
use outrigger_tests::stream::{about, channel};
use outrigger_tests::tenant::{Tenant, namespace, rule_for};
use outrigger_tests::{attacks, dry_run};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// How often attack and control take turns.
const ROUNDS: usize = 5;
/// How long a neighbour's calls are timed in one turn.
const TURN: Duration = Duration::from_secs(6);
/// How long an attack that was started may go on.
const AFTER: Duration = Duration::from_secs(2);
/// A namespace whose objects Outrigger doesn't validate.
const NOTHING: &str = "nothing";

#[derive(Clone, Copy)]
enum Attack {
    Rules,
    Selector,
    Empty,
    Hold,
    Silent,
}

impl Attack {
    const ALL: [Self; 5] = [Self::Rules, Self::Selector, Self::Empty, Self::Hold, Self::Silent];

    fn what(self) -> &'static str {
        match self {
            Self::Rules => "2 rules of 100,000 values a second",
            Self::Selector => "2 Pods of 60,000 expressions a second",
            Self::Empty => "1 message of 8,388,608 workloads a second",
            Self::Hold => "4 connections of 100 bodies that never end",
            Self::Silent => "50 new connections a second that say nothing",
        }
    }

    /// How often a second it is started.
    fn pace(self) -> f64 {
        match self {
            Self::Rules => 2.0,
            Self::Selector => 2.0,
            Self::Empty => 1.0,
            Self::Hold => 1.0,
            Self::Silent => 50.0,
        }
    }

    /// How much may be under way at once.
    fn most(self) -> usize {
        match self {
            Self::Silent => 5_000,
            _ => 4,
        }
    }

    /// What is attacked: the manager, or else the webhook.
    fn is_on_manager(self) -> bool {
        matches!(self, Self::Empty)
    }
}

/// Whom the traffic is sent to.
#[derive(Clone)]
struct Target {
    /// The namespace in which objects are made.
    namespace: String,
    /// What rules are there, and where they are made.
    kind: (&'static str, &'static str),
    rules: &'static str,
    webhook: u16,
    manager: u16,
    tls: ClientTls,
    infra: kube::Client,
}

/// Measures, and prints the rows.
pub(crate) async fn run() {
    let o = Outrigger::shared().await;
    let mallory = Tenant::without_agent(o, "mallory", &[("a", 1)]).await;
    let neighbour = Neighbour::new(o).await;
    let floor = floor(o).await;
    let (control, real) = targets(o, &mallory, floor);
    neighbour.timed(false, TURN).await;
    for attack in Attack::ALL.into_iter().filter(|attack| report::is_wanted("abuse", attack.what())) {
        let rows = measure(o, attack, &control, &real, &neighbour).await;
        report::record("abuse", &rows);
    }
}

/// The server that does nothing, and Outrigger.
fn targets(o: &Outrigger, mallory: &Tenant, floor: u16) -> (Target, Target) {
    let tls = o.client_tls(&mallory.id, &[&tenant_identity(&mallory.id)]);
    let control = Target {
        namespace: NOTHING.to_owned(),
        kind: ("bench.outrigger.dev/v1", "Nothing"),
        rules: "/apis/bench.outrigger.dev/v1/namespaces/nothing/nothings",
        webhook: floor,
        manager: floor,
        tls: tls.clone(),
        infra: mallory.infra.clone(),
    };
    let real = Target {
        namespace: mallory.namespace.clone(),
        kind: ("workload.universe.nvidia.com/v1alpha1", "WorkloadRule"),
        rules: "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/tenant-mallory/workloadrules",
        webhook: o.webhook_port,
        manager: o.grpc_port,
        tls,
        infra: mallory.infra.clone(),
    };
    (control, real)
}

/// The rows of an attack.
async fn measure(
    o: &Outrigger,
    attack: Attack,
    control: &Target,
    real: &Target,
    neighbour: &Neighbour,
) -> Vec<Row> {
    let webhook = process(&format!("--bind-address=127.0.0.1:{}", o.webhook_port));
    let manager = process(&format!("--bind-address=tcp://127.0.0.1:{}", o.grpc_port));
    [webhook, manager].into_iter().for_each(forget_peak);
    let (mut rounds, mut spent) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let alone = turn(attack, control, neighbour).await;
        tokio::time::sleep(AFTER).await;
        let beside = turn(attack, real, neighbour).await;
        tokio::time::sleep(AFTER).await;
        let of = || processor_time(webhook) + processor_time(manager);
        let before = of();
        tokio::time::sleep(AFTER).await;
        spent.push(of().saturating_sub(before));
        rounds.push((beside, alone));
    }
    let what = attack.what();
    let floor = "the same traffic to a server that does nothing";
    let row = |of: &str, unit: &str, floor: &str, rounds: &[(f64, f64)]| {
        Row::new(&format!("{what}: {of}"), unit, floor, rounds)
    };
    let memory = |pid, part| {
        row(
            &format!("memory of the {part}"),
            "MiB",
            "its limit",
            &[(mebibytes(peak(pid)), mebibytes(memory_limit(part)))],
        )
    };
    let spent: Vec<_> = spent.iter().map(|spent| (spent.as_secs_f64(), AFTER.as_secs_f64())).collect();
    let calls = report::percentiles(&format!("{what}: a neighbour's calls"), floor, &rounds, [50, 99]);
    let others = [
        memory(webhook, "webhook"),
        memory(manager, "manager"),
        row("processor time when it has ended", "s", "one core", &spent),
    ];
    calls.into_iter().chain(others).collect()
}

/// Times the neighbour's calls beside this traffic, which ends with the turn; sorted.
async fn turn(attack: Attack, target: &Target, neighbour: &Neighbour) -> Vec<Duration> {
    let traffic = tokio::spawn(send(attack, target.clone()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut times = neighbour.timed(attack.is_on_manager(), TURN).await;
    times.sort_unstable();
    assert!(!traffic.is_finished(), "{} has ended", attack.what());
    traffic.abort();
    let _ = traffic.await;
    times
}

/// Starts the attack at its pace, whether or not what was started before has ended.
async fn send(attack: Attack, target: Target) {
    let mut rule = attacks::rule_of_values("r");
    json_patch::merge(&mut rule, &json!({"apiVersion": target.kind.0, "kind": target.kind.1}));
    let rule = rule.to_string().into_bytes();
    let pod = attacks::pod_of_expressions().to_string().into_bytes();
    let message = attacks::sync(8 << 20, &[]);
    let stranger = ClientTls { identity: None, ..target.tls.clone() };
    let mut under_way = JoinSet::new();
    let mut held = Vec::new();
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / attack.pace()));
    loop {
        ticks.tick().await;
        while under_way.try_join_next().is_some() {}
        // The API server is to be no bottleneck: requests that it refuses itself say nothing of Outrigger.
        if under_way.len() >= attack.most() {
            continue;
        }
        match attack {
            Attack::Rules => {
                let body = rule.clone();
                under_way.spawn(post(target.infra.clone(), format!("{}?dryRun=All", target.rules), body));
            }
            Attack::Selector => {
                let path = format!("/api/v1/namespaces/{}/pods?dryRun=All", target.namespace);
                under_way.spawn(post(target.infra.clone(), path, pod.clone()));
            }
            Attack::Empty => {
                let (tls, port, message) = (target.tls.clone(), target.manager, message.clone());
                under_way.spawn(async move {
                    if let Ok(channel) = channel(&tls, port).await {
                        let _ = attacks::say(channel, "mallory", message).await;
                    }
                });
            }
            Attack::Hold if held.len() < 4 => {
                held.push(attacks::hold(&stranger, target.webhook, "/mutate/pods").await);
            }
            Attack::Hold => {}
            Attack::Silent => {
                let port = target.webhook;
                under_way.spawn(async move {
                    let connection = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
                    tokio::time::sleep(Duration::from_secs(60)).await;
                    drop(connection);
                });
            }
        }
    }
}

async fn post(client: kube::Client, path: String, body: Vec<u8>) {
    let request = http::Request::post(path).header("content-type", "application/json").body(body).unwrap();
    let _ = client.request_text(request).await;
}

/// A tenant that goes on.
struct Neighbour {
    tenant: Tenant,
    rules: WorkloadRuleServiceClient<Channel>,
}

impl Neighbour {
    async fn new(o: &'static Outrigger) -> Self {
        let tenant = Tenant::without_agent(o, "neighbour", &[("a", 1)]).await;
        tenant.set(json!({"limits": {"ruleCallsPerSecond": 100_000}})).await.unwrap();
        tenant.rule("r", rule_for("app", "web")).await;
        let tls = o.client_tls("neighbour", &[&tenant_identity("neighbour")]);
        let (sender, call) = tenant.opens_stream([]).await;
        tokio::spawn(async move {
            let _ = call.await;
            drop(sender);
        });
        let rules = WorkloadRuleServiceClient::new(channel(&tls, o.grpc_port).await.unwrap());
        Self { tenant, rules }
    }

    /// How long its calls take, one after the other: of the manager, or those of Pods that are admitted.
    async fn timed(&self, of_manager: bool, turn: Duration) -> Vec<Duration> {
        let pods: Api<Pod> = self.tenant.pods();
        let pod = json!({"metadata": {"generateName": "p-"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let mut rules = self.rules.clone();
        let mut times = Vec::new();
        let end = Instant::now() + turn;
        while Instant::now() < end {
            let began = Instant::now();
            if of_manager {
                let request = about("neighbour", GetRequest { id: "r".into() });
                rules.get(request).await.expect("the neighbour is served");
            } else {
                dry_run(&pods, &pod).await.expect("the neighbour's Pod is admitted");
            }
            times.push(began.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        times
    }
}

/// A server that takes everything, allows it, and does nothing; and objects of which it alone is asked. Returns its port.
async fn floor(o: &Outrigger) -> u16 {
    let pair = o.authority.issue("floor", &["127.0.0.1", "localhost"]).unwrap();
    let tls = Arc::new(ServerTls::load(pair.cert, pair.key, None).unwrap());
    let listener = "127.0.0.1:0".parse::<Bind>().unwrap().listen().unwrap();
    let port = listener.address().unwrap().port();
    let router = Router::new().route("/admit", axum::routing::post(admit)).fallback(swallow);
    let end = CancellationToken::new();
    tokio::spawn(Server::new("floor", listener).tls(tls).limits(patient()).run(router, end.clone(), end));
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "nothings.bench.outrigger.dev"},
        "spec": {"group": "bench.outrigger.dev", "scope": "Namespaced",
            "names": {"plural": "nothings", "singular": "nothing", "kind": "Nothing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    let namespace = namespace(NOTHING);
    let hook = |kind: &str| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}WebhookConfiguration"),
            "metadata": {"name": NOTHING}, "webhooks": [{"name": "nothing.bench.outrigger.dev",
                "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
                "clientConfig": {"url": format!("https://127.0.0.1:{port}/admit"),
                    "caBundle": base64::Engine::encode(&base64::engine::general_purpose::STANDARD, o.authority.pem())},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NOTHING}},
                "rules": [{"apiGroups": ["", "bench.outrigger.dev"], "apiVersions": ["*"], "operations": ["CREATE"],
                    "resources": ["pods", "nothings"]}]}]})
    };
    o.plane.infra.apply(&[crd, namespace, hook("Mutating"), hook("Validating")]).unwrap();
    port
}

/// Takes whatever comes, and waits for it.
fn patient() -> Limits {
    const LONG: Duration = Duration::from_secs(600);
    Limits {
        max_connections: 10_000,
        per_address: None,
        handshakes: 10_000,
        handshake: LONG,
        headers: LONG,
        request: LONG,
        streams: true,
        max_streams: 256,
        ..Limits::default()
    }
}

/// Allowed, whatever it is.
async fn admit(body: Body) -> impl IntoResponse {
    let bytes = to_bytes(body, usize::MAX).await.unwrap_or_default();
    // The uid is the first in the text: what the API server writes begins with it.
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4096)]).into_owned();
    let uid = text.split("\"uid\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
    Json(
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": uid, "allowed": true}}),
    )
}

/// Reads to the end and says that it is not there, to callers of gRPC too.
async fn swallow(body: Body) -> impl IntoResponse {
    let mut body = body.into_data_stream();
    while let Some(Ok(_)) = body.next().await {}
    ([(header::CONTENT_TYPE, "application/grpc"), (header::HeaderName::from_static("grpc-status"), "8")], "")
}
