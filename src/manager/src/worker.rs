//! Controllers, and the loop that runs them: it takes keys from a controller's queue and works on several of them at once.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use outrigger_runtime::Process;
use tokio::sync::Semaphore;
use tracing::warn;

use crate::context::Context;
use crate::queue::{Key, Queue};
use crate::tenants::first;

/// What follows after a step for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing: the key is as it should be.
    Done,
    /// Another step after this time.
    Requeue(Duration),
    /// The step could not be made, because a cache is stale or another object is in the way. A watch queues the key again, or else
    /// the queue does after its backoff.
    Wait,
}

/// A controller: brings the objects of some kind into the state that they should have, one step for one key at a time.
pub(crate) trait Controller: Send + Sync + 'static {
    type Key: Key;

    /// Its name in logs, and that of its task.
    const NAME: &'static str;

    /// Whether only the replica that leads runs it.
    const LEADER_ONLY: bool = true;

    const QUEUE: fn(&Context) -> &Queue<Self::Key>;

    /// Most keys that are worked on at once.
    fn at_once(&self) -> usize {
        16
    }

    /// This replica begins to lead. What the former leader knew is not known here, and the keys of before were dropped, so every key
    /// has to be queued.
    fn gained(&self) {}

    fn step(&self, key: &Self::Key) -> impl Future<Output = Result<Action, kube::Error>> + Send;
}

/// Runs a controller for as long as the process serves, after everything has been listed: until then an object may only not have been
/// seen yet.
pub(crate) fn start<C: Controller>(process: &Process, context: &Arc<Context>, controller: C) {
    let (lists, context) = (process.readiness.clone(), context.clone());
    process.spawn(C::NAME, async move {
        // Readiness also waits for what a controller does first.
        lists.done_but(first::TASK).await;
        run(context, Arc::new(controller)).await;
    });
}

async fn run<C: Controller>(context: Arc<Context>, controller: Arc<C>) {
    let (leadership, queue) = (context.replica.leadership.clone(), C::QUEUE(&context));
    let slots = Arc::new(Semaphore::new(controller.at_once()));
    loop {
        let mut term = None;
        if C::LEADER_ONLY {
            term = Some(drop_keys(queue, leadership.gained()).await);
            controller.gained();
        }
        // A term may end while nothing is queued, and the next one may begin at once. The controller has to be notified of it.
        let ended = async {
            match term {
                Some(term) => leadership.ended(term).await,
                None => std::future::pending().await,
            }
        };
        let mut ended = pin!(ended);
        loop {
            let next = async {
                let slot = slots.clone().acquire_owned().await;
                (slot, queue.next().await)
            };
            let (slot, key) = tokio::select! {
                biased;
                () = &mut ended => break,
                next = next => next,
            };
            let Ok(slot) = slot else { return };
            let (context, controller) = (context.clone(), controller.clone());
            let step = async move {
                take(C::QUEUE(&context), &*controller, &key).await;
                drop(slot);
            };
            if C::LEADER_ONLY {
                tokio::spawn(leadership.work(step));
            } else {
                tokio::spawn(step);
            }
        }
    }
}

/// Drops the keys of a queue until a future ends, and returns what it returns. A replica that doesn't lead has no step to make for them, and one that begins to lead
/// queues all keys. Keys of deleted objects would accumulate.
async fn drop_keys<K: Key, T>(queue: &Queue<K>, until: impl Future<Output = T>) -> T {
    let mut until = pin!(until);
    loop {
        tokio::select! {
            biased;
            value = &mut until => return value,
            key = queue.next() => {
                queue.forget(&key);
                queue.done(&key);
            }
        }
    }
}

/// Makes a step for a key that the queue has handed out, and gives the key back to the queue.
async fn take<C: Controller>(queue: &Queue<C::Key>, controller: &C, key: &C::Key) {
    match controller.step(key).await {
        Ok(Action::Done) => queue.forget(key),
        Ok(Action::Requeue(after)) => {
            queue.forget(key);
            queue.add_after(key.clone(), after);
        }
        Ok(Action::Wait) => queue.retry(key.clone()),
        Err(error) => {
            if !is_stale(&error) {
                warn!(controller = C::NAME, %key, %error, "step failed; retrying");
            }
            queue.retry(key.clone());
        }
    }
    queue.done(key);
}

/// Whether a write failed because the object has been changed or deleted since it was read: a watch shows how.
fn is_stale(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use outrigger_runtime::environment::Environment;
    use outrigger_runtime::fake_api::{FakeApi, failure};
    use outrigger_runtime::lease::{LeaseArgs, lead};
    use serde_json::json;

    use super::*;
    use crate::fixtures;
    use crate::queue::Counts;
    use crate::state::CompanionId;

    /// A controller of companions whose steps end only when they are let go on.
    struct Held {
        context: Arc<Context>,
        go_on: Semaphore,
    }

    impl Controller for Held {
        type Key = CompanionId;

        const NAME: &'static str = "held";
        const LEADER_ONLY: bool = false;
        const QUEUE: fn(&Context) -> &Queue<CompanionId> = |context| &context.queues.companions;

        fn at_once(&self) -> usize {
            self.context.replica.args.max_concurrent_reconciles
        }

        async fn step(&self, _: &CompanionId) -> Result<Action, kube::Error> {
            if let Ok(permit) = self.go_on.acquire().await {
                permit.forget();
            }
            Ok(Action::Done)
        }
    }

    fn id(tenant: &str, workload: usize) -> CompanionId {
        let key = fixtures::key(&format!("w{workload}"));
        CompanionId { namespace: format!("tenant-{tenant}").into(), key }
    }

    #[tokio::test(start_paused = true)]
    async fn as_many_companions_are_reconciled_at_once_as_the_setting_says() {
        for (setting, of_one, of_three) in [("1", 1, 1), ("4", 2, 4), ("100", 8, 24)] {
            let args = fixtures::args_of(&["--max-concurrent-reconciles", setting]).unwrap();
            let client = FakeApi::default().client();
            let context = fixtures::context_of(args, client, Environment::system());
            let controller = Arc::new(Held { context: context.clone(), go_on: Semaphore::new(0) });
            let worker = tokio::spawn(run(context.clone(), controller.clone()));
            let busy = async || {
                // The clock is paused: it goes on when nothing else is left to do.
                tokio::time::sleep(Duration::from_secs(60)).await;
                context.queues.companions.counts().busy
            };
            context.queues.companions.add((0..8).map(|workload| id("a", workload)));
            assert_eq!(busy().await, of_one, "{setting}");
            context.queues.companions.add((0..16).map(|w| id(if w < 8 { "b" } else { "c" }, w)));
            assert_eq!(busy().await, of_three, "{setting}");
            controller.go_on.add_permits(24);
            assert_eq!(busy().await, 0);
            assert_eq!(context.queues.companions.counts().ready, 0);
            worker.abort();
        }
    }

    /// A controller that counts the terms.
    #[derive(Default)]
    struct Terms {
        begun: AtomicUsize,
    }

    impl Controller for Terms {
        type Key = crate::tenants::Key;

        const NAME: &'static str = "terms";
        const QUEUE: fn(&Context) -> &Queue<Self::Key> = |context| &context.queues.tenants;

        fn at_once(&self) -> usize {
            1
        }

        fn gained(&self) {
            self.begun.fetch_add(1, Ordering::Relaxed);
        }

        async fn step(&self, _: &Self::Key) -> Result<Action, kube::Error> {
            Ok(Action::Done)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_lost_and_acquired_while_nothing_is_queued_begins_a_term() {
        let api = FakeApi::default();
        let path = "/apis/coordination.k8s.io/v1/namespaces/outrigger-system/leases";
        let of = format!("{path}/manager");
        let lease = |version: &str| {
            json!({"metadata": {"name": "manager", "uid": "u", "resourceVersion": version},
                "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}})
        };
        api.answers("GET", &of, 200, lease("1"));
        api.answers("PATCH", &of, 200, lease("2"));
        let args = fixtures::args_of(&[]).unwrap();
        let context = fixtures::context_of(args, api.client(), Environment::system());
        let controller = Arc::<Terms>::default();
        let worker = tokio::spawn(run(context.clone(), controller.clone()));
        let election = LeaseArgs {
            namespace: "outrigger-system".to_owned(),
            name: "manager".to_owned(),
            identity: "me".to_owned(),
            field_manager: "manager".to_owned(),
        };
        let (leadership, environment) = (context.replica.leadership.clone(), context.environment.clone());
        let drain = tokio_util::sync::CancellationToken::new();
        let election =
            tokio::spawn(lead(api.client(), election, leadership.clone(), environment, drain.clone()));
        for term in 1..4 {
            leadership.gained().await;
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert_eq!(controller.begun.load(Ordering::Relaxed), term);
            api.answers("PATCH", &of, 500, failure(500, "InternalError"));
            while leadership.leads() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            api.answers("PATCH", &of, 200, lease("2"));
        }
        worker.abort();
        drain.cancel();
        election.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_does_not_lead_keeps_no_keys() {
        let args = fixtures::args_of(&[]).unwrap();
        let context = fixtures::context_of(args, FakeApi::default().client(), Environment::system());
        let queue = &context.queues.companions;
        let leads = tokio_util::sync::CancellationToken::new();
        let follower = drop_keys(queue, leads.cancelled());
        let counts = async {
            let soon = Duration::from_secs(60);
            queue.add((0..8).map(|workload| id("a", workload)));
            queue.add_after(id("b", 0), soon);
            queue.retry(id("c", 0));
            tokio::time::sleep(soon * 2).await;
            let dropped = queue.counts();
            leads.cancel();
            dropped
        };
        let ((), dropped) = tokio::join!(follower, counts);
        assert_eq!(dropped, Counts::default());
        // What comes after it has begun to lead is kept.
        queue.add([id("a", 0)]);
        assert_eq!(queue.counts().ready, 1);
    }
}
