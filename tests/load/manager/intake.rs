//! Workloads that come in over gRPC, in a manager process of its own, and what it keeps of them. The floor of what takes time is to
//! decode the same protobuf messages, in this process, and to do nothing with them.

use std::time::{Duration, Instant};

use futures::StreamExt;
use outrigger_proto::v1::WorkloadChunkedStreamRequest;
use outrigger_proto::v1::workload_chunked_stream_request::Message;
use outrigger_proto::v1::workload_service_client::WorkloadServiceClient;
use outrigger_tests::outrigger::{Outrigger, tenant_identity};
use outrigger_tests::report::Row;
use outrigger_tests::stream::{about, channel, chunked_stream, chunked_sync, pod_of_deployment};
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{InWords, cost, eventually, holds};
use prost::Message as _;

/// The rows of this module.
pub(super) const ROWS: [&str; 4] = [
    "sync of 100,000 workloads",
    "processor time of a sync of 100,000 workloads",
    "memory of 1,000,000 workloads",
    "unmatched updates, one core",
];

const DECODING: &str = "protobuf decoding alone";
/// Workloads of a tenant, and tenants: a million workloads in all.
const WORKLOADS: usize = 100_000;
const TENANTS: usize = 10;
/// Rules of a tenant, none of which matches any of the workloads.
const RULES: usize = 10;
/// Updates of a round.
const UPDATES: usize = 200_000;
const ROUNDS: usize = 5;

/// A manager process, and where it is.
#[derive(Debug, Clone, Copy)]
struct Manager {
    port: u16,
    process: u32,
}

pub(super) async fn measure(o: &'static Outrigger) -> Vec<Row> {
    let unlimited = "--max-messages-per-second=100000000".to_owned();
    let (port, admin) = o.another_manager("intake", &[unlimited]).await;
    let manager = Manager { port, process: cost::process(&format!("--admin-address=127.0.0.1:{admin}")) };
    let idle = cost::resident(manager.process);
    let mut tenants = Vec::new();
    for i in 0..TENANTS {
        let tenant = Tenant::without_agent(o, &format!("many{i}"), &[("a", 1)]).await;
        for rule in 0..RULES {
            tenant.rule(&format!("r{rule}"), rule_for("tier", &format!("none{rule}"))).await;
        }
        tenants.push(tenant);
    }
    let (mut times, mut processor) = (Vec::new(), Vec::new());
    for (i, tenant) in tenants.iter().enumerate() {
        let floor = decoding(&whole(i).into_iter().map(request).collect::<Vec<_>>());
        let (took, time) = synced(tenant, manager, i).await;
        times.push((took, floor));
        processor.push((time, floor));
    }
    let resident = cost::resident(manager.process);
    println!("resident before any workload: {:.1} MiB", cost::mebibytes(idle));
    let memory = [(cost::mebibytes(resident), cost::mebibytes(1_000_000_000))];
    let mut updates = Vec::new();
    for round in 0..=ROUNDS {
        let floor = UPDATES as f64 / decoding(&updates_of(round).collect::<Vec<_>>());
        let figure = updated(&tenants[0], manager, round).await;
        // The first warms up.
        if round > 0 {
            updates.push((figure, floor));
        }
    }
    o.plane.command("stop intake").unwrap();
    vec![
        Row::new(ROWS[0], "s", DECODING, &times),
        Row::new(ROWS[1], "s", DECODING, &processor),
        Row::new(ROWS[2], "MiB", "the goal: 1 GB", &memory),
        Row::new(ROWS[3], "/s", DECODING, &updates),
    ]
}

fn request(message: Message) -> WorkloadChunkedStreamRequest {
    WorkloadChunkedStreamRequest { message: Some(message) }
}

/// The messages of a sync of all workloads of a tenant.
fn whole(tenant: usize) -> Vec<Message> {
    chunked_sync(&(0..WORKLOADS).map(|i| pod_of_deployment(tenant, i, 0)).collect::<Vec<_>>())
}

/// Updates that change a label of each workload.
fn updates_of(round: usize) -> impl Iterator<Item = WorkloadChunkedStreamRequest> {
    (0..UPDATES)
        .map(move |i| pod_of_deployment(0, i % WORKLOADS, 1 + 2 * round + i / WORKLOADS))
        .map(|update| request(Message::WorkloadUpdate(update)))
}

/// Processor time that it takes to decode messages, in seconds.
fn decoding(messages: &[WorkloadChunkedStreamRequest]) -> f64 {
    let encoded: Vec<bytes::Bytes> = messages.iter().map(|message| message.encode_to_vec().into()).collect();
    let before = cost::processor_time(std::process::id());
    for message in encoded {
        std::hint::black_box(WorkloadChunkedStreamRequest::decode(message).unwrap());
    }
    (cost::processor_time(std::process::id()) - before).as_secs_f64()
}

/// Seconds until the manager has answered that it has taken in all of a tenant's workloads, and its processor time meanwhile.
async fn synced(tenant: &Tenant, manager: Manager, number: usize) -> (f64, f64) {
    let tls = tenant.outrigger.client_tls(&tenant.id, &[&tenant_identity(&tenant.id)]);
    let (sender, call) = chunked_stream(manager.port, &tls, &tenant.id).await.unwrap();
    eventually("the stream is served", || async {
        let object = tenant.object().get(&tenant.id).await.in_words()?;
        let stream = object.status.and_then(|status| status.stream).unwrap_or_default();
        holds(stream.connected, "it is not")
    })
    .await;
    let messages = whole(number);
    let (began, before) = (Instant::now(), cost::processor_time(manager.process));
    for message in messages {
        sender.send(message).await.unwrap();
    }
    // The call is answered when all of its messages have been taken in.
    drop(sender);
    call.await.unwrap().unwrap();
    let took = began.elapsed().as_secs_f64();
    (took, (cost::processor_time(manager.process) - before).as_secs_f64())
}

/// Updates for each second of the manager's processor time, all of its threads and the kernel's part included.
async fn updated(tenant: &Tenant, manager: Manager, round: usize) -> f64 {
    let tls = tenant.outrigger.client_tls(&tenant.id, &[&tenant_identity(&tenant.id)]);
    let mut client = WorkloadServiceClient::new(channel(&tls, manager.port).await.unwrap());
    // What the manager does for the end of the former stream is over.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = cost::processor_time(manager.process);
    let messages = futures::stream::iter(updates_of(round)).boxed();
    client.workload_chunked_stream(about(&tenant.id, messages)).await.unwrap();
    UPDATES as f64 / (cost::processor_time(manager.process) - before).as_secs_f64()
}
