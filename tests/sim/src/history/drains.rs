//! Drains as kubectl makes them: a Node is cordoned, its Pods are evicted as far as their PodDisruptionBudgets permit that, and it is uncordoned
//! afterwards.

use std::sync::Arc;
use std::time::Duration;

use outrigger_core::keys;
use serde_json::json;

use super::History;
use crate::model::Model;
use crate::world::budgets::evict;
use crate::world::nodes::{is_cordoned, pods_on};
use crate::world::{ADMIN, World, text};

/// The pause after evictions, of which some may have been refused.
const AGAIN: Duration = Duration::from_secs(5);
/// How long a drain takes before it is given up.
const GIVEN_UP: Duration = Duration::from_secs(60);
/// How long a Node stays cordoned after its drain at most.
const STAYS: Duration = Duration::from_secs(20);

impl History {
    /// An administrator drains one of the DPUs that have companions, perhaps after a budget of these was created or deleted.
    pub(super) fn evict_dpu(&self) {
        if self.below(3) == 0 {
            self.change_budget_of_companions();
        }
        if let Some(pod) = self.on_a_dpu().first() {
            self.drain(&self.world.infra, text(pod, "/spec/nodeName"));
        }
    }

    /// A user drains one of a tenant's hosts.
    pub(super) fn evict_host(&self, tenant: &'static str) {
        let model = &self.world.tenants[tenant];
        if let Some(node) = self.pick(&model.list("nodes")) {
            self.drain(model, text(&node, "/metadata/name"));
        }
    }

    fn drain(&self, model: &Model, node: &str) {
        self.line(format_args!("{node} is drained"));
        let stays = self.random().random.below(STAYS);
        tokio::spawn(drain(self.world.clone(), model.clone(), node.to_owned(), stays));
    }

    /// An administrator creates a PodDisruptionBudget of a rule's companions, or deletes it. Only evictions respect it.
    fn change_budget_of_companions(&self) {
        let Some(pod) = self.companion() else { return };
        let (infra, namespace) = (&self.world.infra, text(&pod, "/metadata/namespace"));
        let rule = &pod["metadata"]["labels"][keys::RULE];
        let name = format!("of-{}", rule.as_str().unwrap_or_default());
        if infra.delete(ADMIN, "poddisruptionbudgets", Some(namespace), &name).is_err() {
            let spec =
                json!({"minAvailable": self.below(3), "selector": {"matchLabels": {keys::RULE: rule}}});
            let budget = json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec});
            let _ = infra.create(ADMIN, "poddisruptionbudgets", budget);
        }
    }
}

/// Drains a Node, and uncordons it afterwards. It ends early where somebody else uncordons the Node.
async fn drain(world: Arc<World>, model: Model, node: String, stays: Duration) {
    world.cordon(&model, &node, true);
    let clock = world.environment.clock;
    let began = clock.now();
    while is_cordoned(&model, &node) && clock.now() - began < GIVEN_UP {
        let left = pods_on(&model, &node);
        if left.is_empty() {
            break;
        }
        for pod in left.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()) {
            evict(&model, pod);
        }
        tokio::time::sleep(AGAIN).await;
    }
    tokio::time::sleep(stays).await;
    world.cordon(&model, &node, false);
}
