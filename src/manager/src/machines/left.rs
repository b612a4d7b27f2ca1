//! A step for a group without a MachineNodePool: the marks that are left of it.
//!
//! A pool that is deleted cleans its Nodes before its finalizer is removed. A request that arrives after that may mark them again: one of a
//! former leader, or of a leader whose cache still had the pool. Such marks are removed if a manager has written them, by
//! `managedFields`, and if the API server says that no pool is of the group. If somebody else has set one of them, all of them stay on that
//! Node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
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
        let marked = self.context.caches.machines.marked(group);
        if marked.is_empty() || self.context.caches.machines.first_pool_of(group).is_some() {
            return Ok(Action::Done);
        }
        // Nodes are read before pools: marks that are written meanwhile, for a new pool, give the Node another resourceVersion.
        let api: Api<Node> = Api::all(self.context.client.clone());
        let mut nodes = Vec::new();
        for (name, _) in marked {
            nodes.extend(writes::found(api.get(&name).await)?);
        }
        let Some(pools) = self.pools().await? else { return Ok(Action::Done) };
        if pools.iter().any(|pool| pool.spec.machine_group_name == group) {
            // The cache is behind.
            return Ok(Action::Done);
        }
        let mut patches = BTreeMap::new();
        for node in nodes {
            let (name, seen) = (node.name_any(), NodeSummary::of(&node));
            let shared = pools.iter().any(|pool| pool.spec.node_pool.iter().any(|entry| entry.name == name));
            let patch = seen.patch(group, &Marks::none(), shared);
            let Some(mut patch) = patch.filter(|_| seen.is_ours(&node.metadata, group, shared)) else {
                continue;
            };
            patch["metadata"]["resourceVersion"] = json!(node.resource_version());
            info!(node = name, group, "removing marks that were left of a deleted pool");
            patches.insert(name, patch);
        }
        // Problems are those of an error, which is logged.
        let failed = self.write_nodes(patches, &mut Vec::new()).await;
        failed.map_or(Ok(Action::Done), Err)
    }

    /// All pools that the API server has; `None` if it doesn't serve the kind.
    async fn pools(&self) -> Result<Option<Vec<MachineNodePool>>, kube::Error> {
        let api: Api<MachineNodePool> = Api::all(self.context.client.clone());
        let mut pools = Vec::new();
        match watch::list(&api, ListParams::default(), |pool| pools.push(pool)).await {
            Ok(_) => Ok(Some(pools)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use outrigger_core::keys;
    use outrigger_runtime::cache::Change;
    use outrigger_runtime::fake_api::{FakeApi, failure};
    use serde_json::Value;

    use super::*;
    use crate::fixtures;
    use crate::machines::Key;

    const POOLS: &str = "/apis/imperator.tenzen-y.io/v1alpha1/machinenodepools";
    const NODE: &str = "/api/v1/nodes/n";
    const TYPE: &str = "imperator.tenzen-y.io/t";

    fn node(manager: &str) -> Value {
        let owned = json!({"f:metadata": {"f:labels": {format!("f:{TYPE}"): {}, format!("f:{}", keys::NODE_POOL): {}},
            "f:annotations": {format!("f:{}", keys::MACHINE_GROUP): {}}}});
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
            // The cluster doesn't have the kind, so nobody says that there is no pool.
            (keys::MANAGER, vec![], 404, false),
            (keys::MANAGER, vec![], 200, true),
            (keys::MANAGER, vec![pool("other")], 200, true),
            (keys::MANAGER, vec![pool("g")], 200, false),
            (keys::MANAGER, vec![], 503, false),
            ("kubectl-label", vec![], 200, false),
        ] {
            let api = FakeApi::default();
            let list = json!({"metadata": {}, "items": pools});
            api.answers("GET", POOLS, code, if code == 200 { list } else { failure(code, "") });
            api.answers("GET", NODE, 200, node(manager));
            api.answers("PATCH", NODE, 200, node(manager));
            let context = fixtures::context(api.client());
            let seen = fixtures::object(node(manager));
            assert_eq!(context.caches.machines.node("n", Some(&seen)), [Key::Left("g".into())]);
            context.replica.leadership.lead_without_lease();
            let done = Machines::new(&context).left("g").await;
            assert_eq!(done.is_ok(), code != 503, "{manager} {pools:?}");
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
        let cache = &context.caches.machines;
        cache.pool(Change::Applied(fixtures::object(pool)));
        let seen = fixtures::object(node(keys::MANAGER));
        assert!(!cache.node("n", Some(&seen)).contains(&left));
        assert!(!cache.all().contains(&left));
        let gone = Change::Gone { namespace: String::new(), name: "p".to_owned(), uid: String::new() };
        assert!(cache.pool(gone).keys.contains(&left));
        assert!(cache.all().contains(&left));
    }
}
