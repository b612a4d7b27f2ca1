//! A tenant whose workloads come, change and go all the time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outrigger_tests::eventually;
use outrigger_tests::tenant::{Tenant, annotation};
use parking_lot::Mutex;
use rand::Rng;
use rand::seq::IteratorRandom;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::rolling::watching::Seen;

/// Changes a second. The API server counts each companion in the namespace's quota, one after the other: many more would
/// wait for that and not for us.
const PER_SECOND: u64 = 3;

/// From so many workloads on more go than come.
const MANY: usize = 40;

/// Changes, until [`Churn::end`].
pub(crate) struct Churn {
    end: CancellationToken,
    task: JoinHandle<(usize, BTreeMap<String, String>)>,
}

impl Churn {
    pub(crate) fn begin(t: Arc<Tenant>, seen: Arc<Mutex<Seen>>) -> Self {
        let end = CancellationToken::new();
        let ends = end.clone();
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_millis(1000 / PER_SECOND));
            // Those that ask for a companion, and their version.
            let mut living = BTreeMap::new();
            let mut count = 0;
            while !ends.is_cancelled() {
                ticks.tick().await;
                count += 1;
                change(&t, &seen, &mut living, count).await;
            }
            (count, living)
        });
        Self { end, task }
    }

    /// Ends. How many changes there were, and what they have left: names and versions.
    pub(crate) async fn end(self) -> (usize, BTreeMap<String, String>) {
        self.end.cancel();
        self.task.await.unwrap()
    }
}

async fn change(t: &Tenant, seen: &Mutex<Seen>, living: &mut BTreeMap<String, String>, count: usize) {
    let (dice, some) = {
        let mut rng = rand::rng();
        (rng.random_range(0..10), living.keys().choose(&mut rng).cloned())
    };
    match (some, dice) {
        (Some(name), 0..3) => {
            living.insert(name.clone(), count.to_string());
            t.change(&name, json!({"metadata": {"labels": {"version": count.to_string()}}})).await;
        }
        (Some(name), 3) => {
            // It lives on, and asks for nothing.
            gone(seen, living, &name);
            t.change(&name, json!({"metadata": {"labels": {"app": "other"}}})).await;
        }
        (Some(name), dice) if dice < 6 || living.len() > MANY => {
            gone(seen, living, &name);
            t.end(&name).await;
        }
        _ => {
            let (name, version) = (format!("w{count}"), count.to_string());
            seen.lock().waiting.insert(name.clone(), Instant::now());
            t.start(&name, "a", json!({"app": "web", "version": version})).await;
            living.insert(name, version);
        }
    }
}

fn gone(seen: &Mutex<Seen>, living: &mut BTreeMap<String, String>, name: &str) {
    living.remove(name);
    let mut seen = seen.lock();
    seen.ended.insert(name.to_owned());
    // It may have gone before anybody has made one.
    seen.waiting.remove(name);
}

/// Waits until the companions are those of these workloads, each once, as they are now.
pub(crate) async fn settled(t: &Tenant, living: &BTreeMap<String, String>) {
    eventually(&format!("{} has {} companions", t.id, living.len()), || async {
        let all = t.by_workload().await?.into_iter();
        let version = |pod| annotation(&pod, "version").unwrap_or_default().to_owned();
        let found: BTreeMap<_, _> = all.map(|(name, pod)| (name, version(pod))).collect();
        let differs = |a: &BTreeMap<String, String>, b: &BTreeMap<String, String>| {
            a.iter()
                .filter(|(k, v)| b.get(*k) != Some(*v))
                .map(|(k, v)| format!("{k}@{v}"))
                .collect::<Vec<_>>()
        };
        if found == *living {
            return Ok(());
        }
        Err(format!(
            "missing or old {:?}, too many or old {:?}",
            differs(living, &found),
            differs(&found, living)
        ))
    })
    .await;
}
