//! Cache of the rules of the tenant's cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use outrigger_api::WorkloadRule;
use outrigger_runtime::cache::{Change, Feed};
use outrigger_runtime::watch::Event;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Rules by name. The latest state of each rule counts, whether it comes from the watch or from the response to a
/// write.
#[derive(Debug)]
pub(crate) struct RuleStore {
    index: Arc<RuleIndex>,
    feed: Feed<WorkloadRule>,
}

#[derive(Debug, Default)]
struct RuleIndex {
    rules: Mutex<BTreeMap<String, Arc<WorkloadRule>>>,
    /// Notifies subscribers.
    changes: watch::Sender<()>,
}

impl Default for RuleStore {
    fn default() -> Self {
        let index = Arc::<RuleIndex>::default();
        let applied = index.clone();
        Self { feed: Feed::new(move |change| applied.change(change)), index }
    }
}

impl RuleStore {
    pub(crate) fn all(&self) -> Vec<Arc<WorkloadRule>> {
        self.index.rules.lock().values().cloned().collect()
    }

    /// Subscribes to changes of rules apart from their status.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.index.changes.subscribe()
    }

    pub(crate) fn watch(&self) -> impl FnMut(Event<WorkloadRule>) + Send + use<> {
        self.feed.sink()
    }

    pub(super) fn apply_response(&self, rule: WorkloadRule) {
        self.feed.answer(rule);
    }
}

impl RuleIndex {
    fn change(&self, change: Change<WorkloadRule>) {
        let relevant = {
            let mut rules = self.rules.lock();
            match change {
                Change::Applied(rule) => {
                    let rule = Arc::new(rule);
                    let before = rules.insert(rule.name_any(), rule.clone());
                    before.is_none_or(|before| !equal_apart_from_status(&before, &rule))
                }
                Change::Gone { name, .. } => rules.remove(&name).is_some(),
            }
        };
        if relevant {
            self.changes.send_replace(());
        }
    }
}

fn equal_apart_from_status(a: &WorkloadRule, b: &WorkloadRule) -> bool {
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
