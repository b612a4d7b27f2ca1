//! Companions created and deleted in a second. The floor is a client that creates the very same objects, as the manager's service
//! account, in the namespace of another tenant, and deletes them by uid: with as many requests under way as the manager has for a
//! tenant, and nothing else to do. Scheduler and kubelets are beside both.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use kube::Client;
use outrigger_api::workload_wire;
use outrigger_core::companion::{self, Action, Home};
use outrigger_core::ids::TenantId;
use outrigger_core::index::{CompanionKey, Desired};
use outrigger_core::rule::Rule;
use outrigger_proto::raw;
use outrigger_proto::v1::WorkloadUpdate;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::report::Row;
use outrigger_tests::stream::{Opened, sync, update};
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{control_plane, cost, eventually, holds};
use prost::Message;
use serde_json::{Value, json};

/// The rows of this module.
pub(super) const ROWS: [&str; 4] = [
    "companions created",
    "companions deleted",
    "processor time of a companion created",
    "processor time of a companion deleted",
];

const FLOOR: &str = "bare client, same objects, 50 under way";
/// As many requests as the manager has under way for one tenant.
const UNDER_WAY: usize = 50;
/// Companions of a round.
const COMPANIONS: usize = 500;
const ROUNDS: usize = 5;

/// What a round shows: companions created and deleted in a second, and the processor time of each in milliseconds, of the
/// manager or of this process.
#[derive(Debug, Clone, Copy)]
struct Figures {
    created: f64,
    deleted: f64,
    create_time: f64,
    delete_time: f64,
}

pub(super) async fn measure(o: &'static Outrigger) -> Vec<Row> {
    let made = Tenant::without_agent(o, "made", &[("a", 2)]).await;
    let bare = Tenant::without_agent(o, "bare", &[("a", 2)]).await;
    made.rule("r", rule_for("app", "web")).await;
    let rule = Arc::new(bare.rule("r", rule_for("app", "web")).await.compile().unwrap());
    let mut config = control_plane::config(&o.plane.dir.join("manager.kubeconfig")).await;
    config.default_retry = false;
    let client = Client::try_from(config).unwrap();
    let stream = made.opens_stream([]).await;
    let manager = cost::process(&format!("--admin-address=127.0.0.1:{}", o.manager_admin));
    let mut rounds = Vec::new();
    for round in 0..=ROUNDS {
        let names: Vec<String> = (0..COMPANIONS).map(|i| format!("w{round}x{i}")).collect();
        let floor = async || by_client(&bare, &client, &rule, &names).await;
        let turns = if round % 2 == 0 {
            let floor = floor().await;
            (by_manager(&made, &stream, &names, manager).await, floor)
        } else {
            (by_manager(&made, &stream, &names, manager).await, floor().await)
        };
        // The first warms up.
        if round > 0 {
            rounds.push(turns);
        }
    }
    let pairs = |of: fn(&Figures) -> f64| rounds.iter().map(|(m, f)| (of(m), of(f))).collect::<Vec<_>>();
    vec![
        Row::new(ROWS[0], "/s", FLOOR, &pairs(|f| f.created)),
        Row::new(ROWS[1], "/s", FLOOR, &pairs(|f| f.deleted)),
        Row::new(ROWS[2], "ms", FLOOR, &pairs(|f| f.create_time)),
        Row::new(ROWS[3], "ms", FLOOR, &pairs(|f| f.delete_time)),
    ]
}

/// The time that something takes for each of the companions: companions in a second, and processor time in milliseconds.
async fn timed<T>(process: u32, work: impl Future<Output = T>) -> (T, f64, f64) {
    let (began, before) = (Instant::now(), cost::processor_time(process));
    let done = work.await;
    let (took, time) = (began.elapsed(), cost::processor_time(process).saturating_sub(before));
    let count = COMPANIONS as f64;
    (done, count / took.as_secs_f64(), time.as_secs_f64() * 1000.0 / count)
}

async fn by_manager(tenant: &Tenant, stream: &Opened, names: &[String], process: u32) -> Figures {
    let workloads = names.iter().map(|name| update(name, &tenant.node("a")));
    let written = async |operation| written(tenant.outrigger, operation).await;
    let turn = async |operation, message| {
        let until = written(operation).await + COMPANIONS as f64;
        stream.0.send(message).await.unwrap();
        while written(operation).await < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let ((), created, create_time) = timed(process, turn("Create", sync(workloads))).await;
    tenant.ready(COMPANIONS).await;
    let ((), deleted, delete_time) = timed(process, turn("Delete", sync([]))).await;
    gone(tenant).await;
    Figures { created, deleted, create_time, delete_time }
}

/// Companions that the manager has written so far by this operation.
async fn written(o: &Outrigger, operation: &str) -> f64 {
    let label = format!("operation=\"{operation}\"");
    let text = o.manager_metrics().await;
    let counts = text.lines().filter(|line| line.starts_with("outrigger_companion_write_seconds_count"));
    let fits = counts.filter(|line| line.contains(&label) && line.contains("outcome=\"Ok\""));
    fits.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

async fn by_client(tenant: &Tenant, client: &Client, rule: &Arc<Rule>, names: &[String]) -> Figures {
    let objects: Vec<Vec<u8>> =
        names.iter().map(|name| object(tenant, rule, &update(name, &tenant.node("a")))).collect();
    let path = format!("/api/v1/namespaces/{}/pods", tenant.namespace);
    let send = async |request: http::request::Builder, body: Vec<u8>| {
        let request = request.header("content-type", "application/json").body(body).unwrap();
        client.request_text(request).await
    };
    let created = futures::stream::iter(objects)
        .map(|object| send(http::Request::post(&path), object))
        .buffer_unordered(UNDER_WAY)
        .try_collect::<Vec<String>>();
    let (created, per_second, create_time) = timed(std::process::id(), created).await;
    tenant.ready(COMPANIONS).await;
    let deletions = created.unwrap().into_iter().map(|pod| {
        let pod: Value = serde_json::from_str(&pod).unwrap();
        let metadata = &pod["metadata"];
        let path = format!("{path}/{}", metadata["name"].as_str().unwrap());
        (path, json!({"preconditions": {"uid": metadata["uid"]}}).to_string().into_bytes())
    });
    let deleted = futures::stream::iter(deletions.collect::<Vec<_>>())
        .map(|(path, body)| send(http::Request::delete(path), body))
        .buffer_unordered(UNDER_WAY)
        .try_collect::<Vec<String>>();
    let (answers, deleted, delete_time) = timed(std::process::id(), deleted).await;
    answers.unwrap();
    gone(tenant).await;
    Figures { created: per_second, deleted, create_time, delete_time }
}

/// The object that the manager would create.
fn object(tenant: &Tenant, rule: &Arc<Rule>, update: &WorkloadUpdate) -> Vec<u8> {
    let received = raw::WorkloadUpdate::decode(update.encode_to_vec().as_slice()).unwrap();
    let workload = Arc::new(workload_wire::workload(&received).unwrap());
    let key = CompanionKey::of(rule.name(), &workload.id);
    let id = TenantId::new(&tenant.id).unwrap();
    let home =
        Home { tenant: &id, namespace: &tenant.namespace, owned: true, host_names: Default::default() };
    match companion::plan(&key, &Desired::of_match(rule, &workload), None, &home) {
        Action::Create(object) => serde_json::to_vec(&object).unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn gone(tenant: &Tenant) {
    eventually("all companions are gone", || async {
        let left = tenant.pods().list_metadata(&kube::api::ListParams::default()).await;
        let left = left.map_err(|e| e.to_string())?.items.len();
        tokio::time::sleep(Duration::from_millis(200)).await;
        holds(left == 0, format!("{left} are left"))
    })
    .await;
}
