//! What one neighbour, or a stranger on the network, may do to all others: nothing. Each test is an attack on the real processes,
//! while another tenant's calls go on; the test fails when one of these does, and when a process takes more memory than a
//! part of what its shipped Pod may have.

mod agent;
mod binding;
mod churn;
mod companions;
mod forms;
mod gate;
mod grpc;
mod nodes;
mod port;
mod rules;
mod users;
mod watch;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use outrigger_api::WorkloadRule;
use outrigger_proto::v1;
use outrigger_proto::v1::workload_stream_request::Message;
use outrigger_tests::cost::{memory_limit, peak, process};
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::stream::{Opened, update};
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{InWords, create, dry_run, eventually};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

/// Attacks that take much of the machine come one after the other: what one takes is not another's.
async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

/// What a neighbour does all the time.
#[derive(Debug, Clone, Copy)]
enum Work {
    /// A Pod is admitted.
    Pod,
    /// A rule is made, and goes.
    Rule,
    /// A workload is reported, gets its companion, and both are deleted.
    Workload,
}

/// How often each was done.
type Counts = [AtomicUsize; 3];

/// A tenant that works all the time, in each of the ways of [`Work`], until this is asked how that went.
struct Neighbour {
    end: CancellationToken,
    done: Arc<Counts>,
    tasks: Vec<tokio::task::JoinHandle<Result<(), String>>>,
}

impl Neighbour {
    /// The tenant has a host `a` with a DPU, and no agent.
    async fn of(tenant: Tenant) -> Self {
        let tenant = Arc::new(tenant);
        tenant.rule("neighbour", rule_for("app", "web")).await;
        let (end, done) = (CancellationToken::new(), Arc::new(Counts::default()));
        let (pods, rules) = (tenant.pods(), tenant.rules());
        let opened = Arc::new(tenant.opens_stream([]).await);
        let tasks = vec![
            tokio::spawn(repeat(&end, &done, Work::Pod, move |_| admit(pods.clone()))),
            tokio::spawn(repeat(&end, &done, Work::Rule, move |_| make_rule(rules.clone()))),
            tokio::spawn(repeat(&end, &done, Work::Workload, move |n| {
                serve(tenant.clone(), opened.clone(), n)
            })),
        ];
        Self { end, done, tasks }
    }

    fn count(&self, work: Work) -> usize {
        self.done[work as usize].load(Ordering::Relaxed)
    }

    /// Waits until so many more Pods have been admitted, and one more of everything else has been done, or something has failed.
    async fn goes_on(&self, more: usize) {
        let wanted = [(Work::Pod, more), (Work::Rule, 1), (Work::Workload, 1)]
            .map(|(work, more)| (work, self.count(work) + more));
        eventually("the neighbour goes on", || async {
            let behind = wanted.iter().find(|(work, wanted)| self.count(*work) < *wanted);
            match behind {
                Some(behind) if !self.tasks.iter().any(tokio::task::JoinHandle::is_finished) => {
                    Err(format!("{behind:?} of {:?}", self.done))
                }
                _ => Ok(()),
            }
        })
        .await;
    }

    /// None of its calls has failed, and there were some of each.
    async fn undisturbed(self) {
        self.end.cancel();
        for task in self.tasks {
            task.await.unwrap().expect("nothing that the neighbour does fails");
        }
        assert!(self.done.iter().all(|count| count.load(Ordering::Relaxed) > 0), "{:?}", self.done);
    }
}

/// A tenant that works already.
async fn neighbour(o: &'static Outrigger, id: &str) -> Neighbour {
    let neighbour = Neighbour::of(Tenant::without_agent(o, id, &[("a", 1)]).await).await;
    neighbour.goes_on(5).await;
    neighbour
}

/// Does something again and again until the end, and counts it.
fn repeat<F>(
    end: &CancellationToken,
    done: &Arc<Counts>,
    work: Work,
    mut once: impl FnMut(usize) -> F + Send + 'static,
) -> impl Future<Output = Result<(), String>> + Send + 'static
where
    F: Future<Output = Result<(), String>> + Send,
{
    let (end, done) = (end.clone(), done.clone());
    async move {
        for n in 0.. {
            if end.is_cancelled() {
                break;
            }
            match once(n).await {
                Ok(()) => _ = done[work as usize].fetch_add(1, Ordering::Relaxed),
                // It isn't counted, and done again.
                Err(error) if is_conflict_of_quota(&error) => {}
                Err(error) => return Err(format!("{work:?} {n}: {error}")),
            }
            // It works all the time, and is no attacker itself.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }
}

/// Two writes have changed the used part of one ResourceQuota at the same time: the neighbour's own, and one of its companions. The
/// API server gives up after some attempts, with or without Outrigger, and every client tries again.
fn is_conflict_of_quota(error: &str) -> bool {
    error.contains("Operation cannot be fulfilled on resourcequotas")
}

async fn admit(pods: Api<Pod>) -> Result<(), String> {
    let pod = json!({"metadata": {"generateName": "neighbour-"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    dry_run(&pods, &pod).await.map(drop).in_words()
}

async fn make_rule(rules: Api<WorkloadRule>) -> Result<(), String> {
    let rule = json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
        "metadata": {"generateName": "neighbour-"}, "spec": rule_for("app", "none")});
    let rule = create(&rules, &rule).await.in_words()?;
    rules.delete(&rule.name_any(), &DeleteParams::default()).await.map(drop).in_words()
}

async fn serve(tenant: Arc<Tenant>, opened: Arc<Opened>, n: usize) -> Result<(), String> {
    let update = update(&format!("neighbour-{n}"), &tenant.node("a"));
    let metadata = update.workload_metadata.clone();
    let closed = || "the stream has ended".to_owned();
    opened.0.send(Message::WorkloadUpdate(update)).await.map_err(|_| closed())?;
    tenant.ready(1).await;
    let delete = v1::WorkloadDelete { workload_metadata: metadata };
    opened.0.send(Message::WorkloadDelete(delete)).await.map_err(|_| closed())?;
    tenant.ready(0).await;
    if opened.1.is_finished() { Err(closed()) } else { Ok(()) }
}

/// The process of a part that has this argument has never had more than 60 % of what its Pod may have.
fn is_modest(part: &str, argument: &str) {
    let (peak, limit) = (peak(process(argument)), memory_limit(part));
    assert!(peak * 10 < limit * 6, "{part} has had {} MiB of {} MiB", peak >> 20, limit >> 20);
}
