//! What one tenant's flood costs another: the time from a workload's message to its companion, beside a tenant that sends as fast as
//! it can, and as the floor alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use outrigger_core::keys;
use outrigger_proto::v1::workload_stream_request::Message;
use outrigger_proto::v1::{WorkloadDelete, WorkloadUpdate};
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::report::{self, Row};
use outrigger_tests::stream::{Opened, set_label, update};
use outrigger_tests::tenant::{Tenant, annotation, rule_for};

/// Workloads whose companions are timed, one after the other.
const SAMPLES: usize = 100;
/// How often the quiet tenant is alone, and beside the flood.
const ROUNDS: usize = 3;
/// The rows, by what the other tenant does.
const ROWS: [&str; 2] =
    ["companion beside updates that match no rule", "companion beside facts of 200 companions that change"];
/// Workloads of the flood that have companions.
const MATCHED: usize = 200;

/// Measures, and prints the rows.
pub(crate) async fn run() {
    let o = Outrigger::shared().await;
    let quiet = Tenant::without_agent(o, "quiet", &[("a", 2)]).await;
    let loud = Tenant::without_agent(o, "loud", &[("a", 2)]).await;
    for tenant in [&quiet, &loud] {
        tenant.rule("r", rule_for("app", "web")).await;
    }
    let (mine, theirs) = (quiet.opens_stream([]).await, loud.opens_stream([]).await);
    let _ = measure(&quiet, &mine, "warm").await;
    let mut rows = rounds(&quiet, &mine, &theirs, ROWS[0], |i| unmatched(i % 10_000)).await;

    let node = loud.node("a");
    for i in 0..MATCHED {
        theirs.0.send(Message::WorkloadUpdate(changing(i, 0, &node))).await.unwrap();
    }
    loud.ready(MATCHED).await;
    rows.extend(rounds(&quiet, &mine, &theirs, ROWS[1], move |i| changing(i % MATCHED, i, &node)).await);
    report::record("tenants", &rows);
}

/// The quiet tenant's times alone and beside the other's flood, in turns.
async fn rounds(
    quiet: &Tenant,
    mine: &Opened,
    theirs: &Opened,
    what: &str,
    make: impl Fn(usize) -> WorkloadUpdate + Clone + Send + 'static,
) -> Vec<Row> {
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let alone = measure(quiet, mine, &format!("alone{round}x")).await;
        let flood = Flood::start(theirs, make.clone());
        tokio::time::sleep(Duration::from_secs(2)).await;
        let beside = measure(quiet, mine, &format!("beside{round}x")).await;
        println!("{what}: {} messages/s", flood.stop().await);
        rounds.push((beside, alone));
    }
    report::percentiles(what, "alone", &rounds, [50, 99]).into()
}

/// Sends as fast as it is let.
struct Flood {
    going: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    began: Instant,
    task: tokio::task::JoinHandle<()>,
}

impl Flood {
    fn start(opened: &Opened, make: impl Fn(usize) -> WorkloadUpdate + Send + 'static) -> Self {
        let (going, sent) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let sender = opened.0.clone();
        let (goes_on, count) = (going.clone(), sent.clone());
        let task = tokio::spawn(async move {
            for i in 0.. {
                if !goes_on.load(Ordering::Relaxed)
                    || sender.send(Message::WorkloadUpdate(make(i))).await.is_err()
                {
                    return;
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { going, sent, began: Instant::now(), task }
    }

    /// Messages a second that it got through.
    async fn stop(self) -> u64 {
        self.going.store(false, Ordering::Relaxed);
        self.task.await.unwrap();
        let milliseconds = u64::try_from(self.began.elapsed().as_millis()).unwrap().max(1);
        self.sent.load(Ordering::Relaxed) * 1000 / milliseconds
    }
}

fn unmatched(i: usize) -> WorkloadUpdate {
    let mut update = update(&format!("other{i}"), "nowhere");
    set_label(&mut update, "app", "other");
    update
}

fn changing(i: usize, round: usize, node: &str) -> WorkloadUpdate {
    let mut update = update(&format!("w{i}"), node);
    set_label(&mut update, "version", &round.to_string());
    update
}

async fn measure(tenant: &Tenant, opened: &Opened, prefix: &str) -> Vec<Duration> {
    let mut seen = std::pin::pin!(watcher(tenant.pods(), Config::default().labels(keys::RULE)));
    while !matches!(seen.next().await, Some(Ok(Event::InitDone))) {}
    let mut times = Vec::with_capacity(SAMPLES);
    let node = tenant.node("a");
    for i in 0..SAMPLES {
        let name = format!("{prefix}{i}");
        let began = Instant::now();
        opened.0.send(Message::WorkloadUpdate(update(&name, &node))).await.unwrap();
        loop {
            let Some(Ok(Event::Apply(pod))) = seen.next().await else { continue };
            if annotation(&pod, "workload-name") == Some(&name) {
                times.push(began.elapsed());
                break;
            }
        }
    }
    for i in 0..SAMPLES {
        let workload_metadata = update(&format!("{prefix}{i}"), "").workload_metadata;
        opened.0.send(Message::WorkloadDelete(WorkloadDelete { workload_metadata })).await.unwrap();
    }
    tenant.ready(0).await;
    times.sort_unstable();
    times
}
