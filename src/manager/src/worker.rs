//! The loop that takes keys from a queue and works on several of them at once.

use std::sync::Arc;

use outrigger_runtime::lease::Leadership;
use tokio::sync::Semaphore;

use crate::queue::{Key, Queue};

/// Works on the queue for ever, while this replica leads, on up to `at_once` keys at a time. `gained` is called each time
/// that it begins to lead: what the former leader knew is not known here, so everything has to be looked at.
pub(crate) async fn led<K, F>(
    queue: Arc<Queue<K>>,
    at_once: usize,
    leadership: Leadership,
    gained: impl Fn(),
    step: impl Fn(K) -> F,
) where
    K: Key + Send + Sync + 'static,
    K::Group: Send + Sync,
    F: Future<Output = ()> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(at_once));
    loop {
        leadership.gained().await;
        gained();
        while leadership.leads() {
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            let key = queue.next().await;
            if !leadership.leads() {
                queue.add([key.clone()]);
                queue.done(&key);
                break;
            }
            let work = step(key.clone());
            let queue = queue.clone();
            tokio::spawn(leadership.work(async move {
                work.await;
                queue.done(&key);
                drop(slot);
            }));
        }
    }
}
