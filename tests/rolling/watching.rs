//! Every event of a tenant's companions, and what may never be seen in them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::watcher::{Config, Event, watcher};
use outrigger_core::keys;
use outrigger_tests::tenant::{Tenant, annotation};
use outrigger_tests::{eventually, holds};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

/// What is seen and what is known of one tenant.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// When each workload was created that asks for a companion, until the companion has been seen.
    pub(crate) waiting: BTreeMap<String, Instant>,
    /// Workloads that no longer ask for one; noted before their clusters show it.
    pub(crate) ended: BTreeSet<String>,
    /// From a workload's creation to its companion.
    pub(crate) lags: Vec<Duration>,
    /// What must not be.
    pub(crate) wrong: Vec<String>,
    /// Companions that aren't being deleted, by rule and workload.
    live: BTreeMap<(String, String), BTreeSet<String>>,
    /// All companions that there ever were.
    made: BTreeMap<(String, String), BTreeSet<String>>,
    events: usize,
    lists: usize,
}

impl Seen {
    fn see(&mut self, event: Event<Pod>) {
        match event {
            Event::Init => self.lists += 1,
            Event::InitDone => {}
            Event::Apply(pod) | Event::InitApply(pod) => {
                let goes = pod.metadata.deletion_timestamp.is_some();
                self.companion(&pod, goes);
            }
            Event::Delete(pod) => self.companion(&pod, true),
        }
    }

    fn companion(&mut self, pod: &Pod, goes: bool) {
        self.events += 1;
        let label = |key: &str| pod.labels().get(key).cloned().unwrap_or_default();
        let key = (label(keys::RULE), label(keys::WORKLOAD));
        let (name, uid) = (annotation(pod, "workload-name").unwrap_or_default(), pod.uid().unwrap());
        if goes {
            if !self.ended.contains(name) {
                self.wrong.push(format!("{} was deleted, and workload {name} lives", pod.name_any()));
            }
            self.live.entry(key).or_default().remove(&uid);
            return;
        }
        if let Some(created) = self.waiting.remove(name) {
            self.lags.push(created.elapsed());
        }
        let made = self.made.entry(key.clone()).or_default();
        if made.insert(uid.clone()) && made.len() > 1 {
            self.wrong.push(format!("{} was made {} times for workload {name}", pod.name_any(), made.len()));
        }
        let live = self.live.entry(key).or_default();
        live.insert(uid);
        if live.len() > 1 {
            self.wrong.push(format!("workload {name} has {} companions at once", live.len()));
        }
    }
}

pub(crate) struct Watching {
    pub(crate) seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

impl Watching {
    pub(crate) async fn begin(t: &Tenant) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let (pods, to) = (t.pods(), seen.clone());
        let task = tokio::spawn(async move {
            let mut events = std::pin::pin!(watcher(pods, Config::default().labels(keys::RULE)));
            while let Some(event) = events.next().await {
                match event {
                    Ok(event) => to.lock().see(event),
                    Err(error) => to.lock().wrong.push(format!("the test's own watch: {error}")),
                }
            }
        });
        eventually("the watch has begun", || async { holds(seen.lock().lists == 1, "not yet") }).await;
        Self { seen, task }
    }

    /// Ends, and says how much was seen.
    pub(crate) async fn end(self) -> String {
        eventually("every workload's companion has been seen", || async {
            let waiting: Vec<String> = self.seen.lock().waiting.keys().cloned().collect();
            holds(waiting.is_empty(), format!("{waiting:?}"))
        })
        .await;
        self.task.abort();
        let seen = self.seen.lock();
        assert!(seen.wrong.is_empty(), "{:#?}", seen.wrong);
        assert_eq!(seen.lists, 1, "events were missed");
        format!("{} companions, {} events", seen.made.len(), seen.events)
    }

    /// How long workloads have waited for their companions since this was asked last.
    pub(crate) fn lags(&self) -> String {
        let mut lags = std::mem::take(&mut self.seen.lock().lags);
        lags.sort_unstable();
        match lags.len().checked_sub(1) {
            Some(last) => format!(
                "from workload to companion {:?} (median), {:?} (99 of 100), {:?} at most",
                lags[last / 2],
                lags[last * 99 / 100],
                lags[last]
            ),
            None => "no companions".to_owned(),
        }
    }
}

/// A companion of the rule `r`.
#[cfg(test)]
fn companion(uid: &str, workload: &str) -> Pod {
    let labels = serde_json::json!({keys::RULE: "r", keys::WORKLOAD: workload});
    let metadata = serde_json::json!({"name": format!("r-{workload}"), "uid": uid, "labels": labels,
        "annotations": {"workload-name": workload}});
    serde_json::from_value(serde_json::json!({"metadata": metadata})).unwrap()
}

#[test]
fn what_must_not_be_is_noticed() {
    let apply = |uid, workload| Event::Apply(companion(uid, workload));
    let delete = |uid, workload| Event::Delete(companion(uid, workload));
    let wrong = |events: Vec<Event<Pod>>| {
        let mut seen = Seen::default();
        seen.ended.insert("ended".to_owned());
        events.into_iter().for_each(|event| seen.see(event));
        seen.wrong
    };
    assert!(wrong(vec![apply("1", "a"), apply("2", "b"), apply("1", "a")]).is_empty());
    assert!(wrong(vec![apply("1", "ended"), delete("1", "ended")]).is_empty());
    let lost = "r-a was deleted, and workload a lives";
    assert_eq!(wrong(vec![apply("1", "a"), delete("1", "a")]), [lost]);
    let mut going = serde_json::to_value(companion("1", "a")).unwrap();
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let going = serde_json::from_value(going).unwrap();
    assert_eq!(wrong(vec![apply("1", "a"), Event::Apply(going)]), [lost]);
    assert_eq!(
        wrong(vec![apply("1", "a"), apply("2", "a")]),
        ["r-a was made 2 times for workload a", "workload a has 2 companions at once"]
    );
    let again = wrong(vec![apply("1", "ended"), delete("1", "ended"), apply("2", "ended")]);
    assert_eq!(again, ["r-ended was made 2 times for workload ended"]);
}
