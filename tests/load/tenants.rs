//! What one tenant's flood costs another: the time from a workload to its companion, alone and beside a tenant that sends
//! as fast as it can. Prints figures and ratios; asserts nothing about time.
// Figures are for a terminal, and a failure of the bench is a failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use outrigger_core::keys;
use outrigger_proto::v1::workload_stream_request::Message;
use outrigger_proto::v1::{WorkloadDelete, WorkloadUpdate};
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::stream::{Opened, set_label, update};
use outrigger_tests::tenant::{Tenant, annotation, rule_for};

/// Workloads whose companions are timed, one after the other.
const SAMPLES: usize = 100;
/// Workloads of the flood that have companions.
const MATCHED: usize = 200;

#[tokio::main]
async fn main() {
    let o = Outrigger::shared().await;
    let quiet = Tenant::without_agent(o, "quiet", &[("a", 2)]).await;
    let loud = Tenant::without_agent(o, "loud", &[("a", 2)]).await;
    for tenant in [&quiet, &loud] {
        tenant.rule("r", rule_for("app", "web")).await;
    }
    let (mine, theirs) = (quiet.tells([]).await, loud.tells([]).await);
    println!("from a workload's message to its companion, {SAMPLES} one after the other");
    let _ = measure(&quiet, &mine, "warm").await;
    let alone = measure(&quiet, &mine, "alone").await;
    report("alone", &alone, &alone, 0);

    let flood = Flood::start(&theirs, |i| unmatched(i % 10_000));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let beside = measure(&quiet, &mine, "unmatched").await;
    report("beside updates that match no rule", &beside, &alone, flood.stop().await);

    let node = loud.node("a");
    for i in 0..MATCHED {
        theirs.0.send(Message::WorkloadUpdate(changing(i, 0, &node))).await.unwrap();
    }
    loud.ready(MATCHED).await;
    let again = measure(&quiet, &mine, "again").await;
    report("alone again", &again, &again, 0);
    let flood = Flood::start(&theirs, move |i| changing(i % MATCHED, i, &node));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let beside = measure(&quiet, &mine, "matched").await;
    report(
        &format!("beside facts of {MATCHED} companions that change all the time"),
        &beside,
        &again,
        flood.stop().await,
    );
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

fn report(what: &str, times: &[Duration], floor: &[Duration], rate: u64) {
    let at = |times: &[Duration], q: usize| times[(times.len() - 1) * q / 100].as_secs_f64() * 1000.0;
    let flood = if rate > 0 { format!("; the flood: {rate} messages/s") } else { String::new() };
    println!(
        "{what}: p50 {:.1} ms ({:.2} of alone), p99 {:.1} ms ({:.2}){flood}",
        at(times, 50),
        at(times, 50) / at(floor, 50),
        at(times, 99),
        at(times, 99) / at(floor, 99),
    );
}
