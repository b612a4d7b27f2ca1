//! A step for a group without a MachineNodePool: the marks that are left of it.
//!
//! A pool that is deleted cleans its Nodes before its finalizer is removed. A request that arrives after that may mark them again: one of a
//! former leader, or of a leader whose cache still had the pool. Such marks are removed if a manager has written them, by
//! `managedFields`, and if the API server says that no pool is of the group. Marks that somebody else has set stay.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch};
use outrigger_api::MachineNodePool;
use outrigger_runtime::watch;
use serde_json::json;
use tracing::info;

use super::controller::Machines;
use super::nodes::{Marks, NodeSummary};
use crate::worker::Action;
use crate::writes;

impl Machines {
    pub(super) async fn left(&self, group: &str) -> Result<Action, kube::Error> {
        let machines = &self.context.machines;
        let marked = machines.marked(group);
        if marked.is_empty() || machines.first_pool_of(group).is_some() {
            return Ok(Action::Done);
        }
        // The cache may be stale.
        if self.has_pool(group).await? {
            return Ok(Action::Done);
        }
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        for (name, _) in marked {
            let Some(node) = writes::found(nodes.get(&name).await)? else { continue };
            let seen = NodeSummary::of(&node);
            let is_ours = seen.type_labels(group).any(|label| writes::has_label(&node.metadata, label));
            let shared = machines.owner_of(&name).is_some();
            let Some(mut patch) = seen.patch(group, &Marks::none(), shared).filter(|_| is_ours) else {
                continue;
            };
            // Marks that are written meanwhile, for a new pool, stay.
            patch["metadata"]["resourceVersion"] = json!(node.resource_version());
            let written = nodes.patch(&name, &writes::patch(), &Patch::Merge(&patch)).await?;
            self.context.feeds.nodes.answer(written);
            info!(node = name, group, "removed marks that were left of a deleted pool");
        }
        Ok(Action::Done)
    }

    /// Whether the API server has a pool of a group.
    async fn has_pool(&self, group: &str) -> Result<bool, kube::Error> {
        let pools: Api<MachineNodePool> = Api::all(self.context.client.clone());
        let mut found = false;
        watch::list(&pools, ListParams::default(), |pool: MachineNodePool| {
            found |= pool.spec.machine_group_name == group;
        })
        .await?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use outrigger_core::keys;
    use outrigger_runtime::cache::Change;
    use outrigger_runtime::fake_api::FakeApi;
    use serde_json::Value;

    use super::*;
    use crate::fixtures;
    use crate::machines::Key;

    const POOLS: &str = "/apis/imperator.tenzen-y.io/v1alpha1/machinenodepools";
    const NODE: &str = "/api/v1/nodes/n";
    const TYPE: &str = "imperator.tenzen-y.io/t";

    fn node(manager: &str) -> Value {
        let owned = json!({"f:metadata": {"f:labels": {format!("f:{TYPE}"): {}}}});
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u", "resourceVersion": "7",
            "labels": {TYPE: "g", keys::NODE_POOL: "ready", "other": "label"}, "annotations": {keys::MACHINE_GROUP: "g"},
            "managedFields": [{"manager": manager, "fieldsV1": owned}]}})
    }

    #[tokio::test]
    async fn only_marks_of_a_manager_without_a_pool_are_removed() {
        let pool = |group: &str| {
            json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "MachineNodePool", "metadata": {"name": "p"},
                "spec": {"machineGroupName": group, "nodePool": [], "machineTypeStock": []}})
        };
        for (manager, pools, code, removed) in [
            (keys::MANAGER, vec![], 200, true),
            (keys::MANAGER, vec![pool("other")], 200, true),
            (keys::MANAGER, vec![pool("g")], 200, false),
            (keys::MANAGER, vec![], 503, false),
            ("kubectl-label", vec![], 200, false),
        ] {
            let api = FakeApi::default();
            api.answers("GET", POOLS, code, json!({"metadata": {}, "items": pools}));
            api.answers("GET", NODE, 200, node(manager));
            api.answers("PATCH", NODE, 200, node(manager));
            let context = fixtures::context(api.client());
            let seen = serde_json::from_value(node(manager)).unwrap();
            assert_eq!(context.machines.node("n", Some(&seen)), [Key::Left("g".into())]);
            let done = Machines::new(&context).left("g").await;
            assert_eq!(done.is_ok(), code == 200, "{manager} {pools:?}");
            let patch = json!({"metadata": {"uid": "u", "resourceVersion": "7",
                "labels": {TYPE: null, keys::NODE_POOL: null}, "annotations": {keys::MACHINE_GROUP: null}}});
            let written: Vec<Value> = api.calls("PATCH").into_iter().map(|(_, body)| body).collect();
            assert_eq!(written, Vec::from_iter(removed.then_some(patch)), "{manager} {pools:?}");
        }
    }

    #[tokio::test]
    async fn a_pool_that_is_gone_and_a_new_leader_look_for_marks() {
        let context = fixtures::context(FakeApi::default().client());
        let left = Key::Left("g".into());
        let pool = json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "MachineNodePool", "metadata": {"name": "p"},
            "spec": {"machineGroupName": "g", "nodePool": [], "machineTypeStock": []}});
        let cache = &context.machines;
        cache.pool(Change::Applied(serde_json::from_value(pool).unwrap()));
        let seen = serde_json::from_value(node(keys::MANAGER)).unwrap();
        assert!(!cache.node("n", Some(&seen)).contains(&left));
        assert!(!cache.all().contains(&left));
        let gone = Change::Gone { namespace: String::new(), name: "p".to_owned(), uid: String::new() };
        assert!(cache.pool(gone).contains(&left));
        assert!(cache.all().contains(&left));
    }
}
