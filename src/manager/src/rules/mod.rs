//! The rule controller: what became of a rule, in its status.

mod status;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch};
use outrigger_api::{WorkloadRule, WorkloadRuleStatus};
use outrigger_runtime::lease::Leadership;
use serde_json::json;
use tracing::{debug, info};

use crate::queue::Queue;
use crate::state::{RuleId, Spaces};
use crate::writes;

/// How long a rule's status waits for more changes before it is written: companions come and go in crowds.
pub const SETTLE: Duration = Duration::from_millis(200);

/// Least time between two writes of one rule's status.
const PACE: Duration = Duration::from_secs(1);

/// Writes the status of rules.
#[derive(Clone)]
pub struct Controller {
    /// The infrastructure cluster.
    pub client: Client,
    /// What is known.
    pub spaces: Arc<Spaces>,
    /// Rules whose status may have changed.
    pub queue: Arc<Queue<RuleId>>,
    /// Whether this replica cares for tenants that nobody serves.
    pub leadership: Leadership,
}

impl Controller {
    /// Works on the queue for ever. One write at a time is enough: statuses are few and paced.
    pub async fn run(self) {
        loop {
            let id = self.queue.next().await;
            self.step(&id).await;
            self.queue.done(&id);
        }
    }

    async fn step(&self, id: &RuleId) {
        let Some((uid, status)) = self.wanted(id) else {
            self.queue.forget(id);
            return;
        };
        let api: Api<WorkloadRule> = Api::namespaced(self.client.clone(), &id.namespace);
        let params = writes::patch();
        let patch = json!({"metadata": {"uid": uid}, "status": status});
        match api.patch_status(id.name.as_str(), &params, &Patch::Merge(&patch)).await {
            Ok(_) => {
                debug!(rule = %id.name, namespace = %id.namespace, "status written");
                let space = self.spaces.space(&id.namespace);
                if let Some(entry) = space.lock().rules.get_mut(&id.name)
                    && entry.uid == uid
                {
                    entry.status = status;
                }
                self.queue.forget(id);
                // Whatever changed meanwhile is written then; if nothing did, nothing is.
                self.queue.add_after(id.clone(), PACE);
            }
            // Gone, or another rule of that name by now.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => self.queue.forget(id),
            Err(error) => {
                info!(rule = %id.name, namespace = %id.namespace, %error, "status will be written later");
                self.queue.retry(id.clone());
            }
        }
    }

    /// The status that the rule should have, if it has another one.
    fn wanted(&self, id: &RuleId) -> Option<(String, WorkloadRuleStatus)> {
        let space = self.spaces.space(&id.namespace);
        let inner = space.lock();
        let entry = inner.rules.get(&id.name)?;
        if !inner.acts(self.leadership.leads()) {
            return None;
        }
        let status = status::compute(&id.name, entry, &inner, Timestamp::now());
        (status != entry.status).then(|| (entry.uid.clone(), status))
    }
}
