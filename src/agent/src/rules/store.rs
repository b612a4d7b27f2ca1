//! The rules of the tenant's own cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use outrigger_api::WorkloadRule;
use outrigger_runtime::cache::{Change, Feed};
use outrigger_runtime::watch::Event;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

/// Rules by name. The newest state of each wins, whether an event of the watch or the answer to a write of ours shows it.
#[derive(Debug)]
pub struct RuleStore {
    inner: Arc<Inner>,
    feed: Feed<WorkloadRule>,
}

#[derive(Debug, Default)]
struct Inner {
    rules: Mutex<BTreeMap<String, Arc<WorkloadRule>>>,
    /// Wakes the rounds.
    changed: Notify,
    /// Tells everybody else.
    news: watch::Sender<()>,
}

impl Default for RuleStore {
    fn default() -> Self {
        let inner = Arc::<Inner>::default();
        let keeps = inner.clone();
        Self { feed: Feed::new(move |change| keeps.change(change)), inner }
    }
}

impl RuleStore {
    /// All rules.
    pub fn all(&self) -> Vec<Arc<WorkloadRule>> {
        self.inner.rules.lock().values().cloned().collect()
    }

    /// Waits for a change that concerns more than a rule's status.
    pub async fn changed(&self) {
        self.inner.changed.notified().await;
    }

    /// Changes that concern more than a rule's status, for others than the one who waits in [`Self::changed`].
    pub fn news(&self) -> watch::Receiver<()> {
        self.inner.news.subscribe()
    }

    /// Takes in the watch.
    pub fn watch(&self) -> impl FnMut(Event<WorkloadRule>) + Send + use<> {
        self.feed.sink()
    }

    /// A write of ours was answered with this object.
    pub(super) fn learn(&self, rule: WorkloadRule) {
        self.feed.answer(rule);
    }
}

impl Inner {
    fn change(&self, change: Change<WorkloadRule>) {
        let matter = {
            let mut rules = self.rules.lock();
            match change {
                Change::Applied(rule) => {
                    let rule = Arc::new(rule);
                    let before = rules.insert(rule.name_any(), rule.clone());
                    before.is_none_or(|before| !same(&before, &rule))
                }
                // Its finalizer has done all there was to do, or somebody has taken that away.
                Change::Gone { name, .. } => rules.remove(&name).is_some(),
            }
        };
        if matter {
            self.changed.notify_one();
            self.news.send_replace(());
        }
    }
}

/// Whether nothing but the status differs.
fn same(a: &WorkloadRule, b: &WorkloadRule) -> bool {
    let part = |rule: &WorkloadRule| {
        let m = &rule.metadata;
        (
            m.uid.clone(),
            m.generation,
            m.deletion_timestamp.clone(),
            m.finalizers.clone(),
            m.annotations.clone(),
        )
    };
    part(a) == part(b)
}
