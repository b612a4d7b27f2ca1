//! The rules of the tenant's own cluster, as the watch shows them.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::watcher::Event;
use outrigger_api::WorkloadRule;
use outrigger_runtime::cluster::{Change, changes};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Rules by name.
#[derive(Debug, Default)]
pub struct RuleStore {
    rules: Mutex<BTreeMap<String, Arc<WorkloadRule>>>,
    changed: Notify,
}

impl RuleStore {
    /// All rules.
    pub fn all(&self) -> Vec<Arc<WorkloadRule>> {
        self.rules.lock().values().cloned().collect()
    }

    /// Waits for a change that concerns more than a rule's status.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes in the watch.
    pub fn watch(self: &Arc<Self>) -> impl FnMut(Event<WorkloadRule>) + use<> {
        let this = self.clone();
        changes(move |change: Change<WorkloadRule>| {
            let matter = {
                let mut rules = this.rules.lock();
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
                this.changed.notify_one();
            }
        })
    }

    /// An object as the API server has answered it: the watch will show the same.
    pub(super) fn learn(&self, rule: WorkloadRule) {
        let mut rules = self.rules.lock();
        if let Some(known) = rules.get_mut(&rule.name_any())
            && known.metadata.uid == rule.metadata.uid
        {
            *known = Arc::new(rule);
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
