//! Controllers, and the loop that runs them: it takes keys from a controller's queue and works on several of them at once.

use std::sync::Arc;
use std::time::Duration;

use outrigger_runtime::Process;
use tokio::sync::Semaphore;
use tracing::warn;

use crate::context::Context;
use crate::queue::{Key, Queue};

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

    /// Most keys that are worked on at once.
    const AT_ONCE: usize;

    /// Whether only the replica that leads runs it.
    const LEADER_ONLY: bool = true;

    const QUEUE: fn(&Context) -> &Queue<Self::Key>;

    /// What the controller shares with all others.
    fn context(&self) -> &Context;

    /// This replica begins to lead. What the former leader knew is not known here, so every key has to be queued.
    fn gained(&self) {}

    fn step(&self, key: &Self::Key) -> impl Future<Output = Result<Action, kube::Error>> + Send;
}

/// Runs a controller for as long as the process serves, after everything has been listed: until then an object may only not have been
/// seen yet.
pub(crate) fn start<C: Controller>(process: &Process, controller: C) {
    let lists = process.readiness.clone();
    process.spawn(C::NAME, async move {
        lists.done().await;
        run(Arc::new(controller)).await;
    });
}

async fn run<C: Controller>(controller: Arc<C>) {
    let (leadership, queue) = (controller.context().leadership.clone(), C::QUEUE(controller.context()));
    let acts = || !C::LEADER_ONLY || leadership.leads();
    let slots = Arc::new(Semaphore::new(C::AT_ONCE));
    loop {
        if C::LEADER_ONLY {
            leadership.gained().await;
            controller.gained();
        }
        while acts() {
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            let key = queue.next().await;
            if !acts() {
                queue.add([key.clone()]);
                queue.done(&key);
                break;
            }
            let controller = controller.clone();
            let step = async move {
                take(&*controller, &key).await;
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

/// Makes a step for a key that the queue has handed out, and gives the key back to the queue.
async fn take<C: Controller>(controller: &C, key: &C::Key) {
    let queue = C::QUEUE(controller.context());
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
