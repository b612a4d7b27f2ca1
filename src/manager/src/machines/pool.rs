//! A step for a MachineNodePool: the marks on its nodes, and its status.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams, Patch};
use kube::{Resource, ResourceExt};
use outrigger_api::MachineNodePool;
use outrigger_api::machine::{MachineNodePoolStatus, NodeCondition};
use outrigger_core::keys;
use outrigger_core::machine::PoolNode;
use outrigger_core::reason::Cause;
use outrigger_runtime::watch;
use serde_json::{Value, json};
use tracing::info;

use super::controller::{Machines, is_refusal};
use super::nodes::{Marks, NodeSummary, condition};
use crate::worker::Action;
use crate::writes::{self, Version};

/// Nodes that are written at once.
const AT_ONCE: usize = 8;

/// How long a pool that goes waits when its nodes were marked again while it cleaned them.
const PAUSE: Duration = Duration::from_secs(1);

/// What is to be done with the nodes of a pool.
#[derive(Default)]
struct PoolWork {
    patches: BTreeMap<String, Value>,
    /// Problems that an administrator has to solve.
    problems: Vec<String>,
    /// The nodes as the status has them.
    conditions: Vec<NodeCondition>,
}

impl Machines {
    pub(super) async fn pool(&self, name: &str) -> Result<Action, kube::Error> {
        let Some(mut pool) = self.context.caches.machines.get(|all| &all.pools, name) else {
            return Ok(Action::Done);
        };
        if pool.metadata.deletion_timestamp.is_some() {
            let held = pool.finalizers().iter().any(|finalizer| finalizer == keys::POOL_FINALIZER);
            return if held { self.release(name, &pool).await } else { Ok(Action::Done) };
        }
        // Before any node: what is written there is removed again for certain.
        if let Some(written) = writes::finalizer(&self.pool_api(), &*pool, keys::POOL_FINALIZER, true).await?
        {
            self.context.feeds.pools.answer(written.clone());
            pool = Arc::new(written);
        }
        let mut work = self.work(name, &pool);
        let failed = self.write_nodes(std::mem::take(&mut work.patches), &mut work.problems).await;
        if !self.context.replica.leadership.leads() {
            return Ok(Action::Wait);
        }
        self.write_pool(&pool, work).await?;
        failed.map_or(Ok(Action::Done), Err)
    }

    fn work(&self, name: &str, pool: &MachineNodePool) -> PoolWork {
        let group = &pool.spec.machine_group_name;
        let mut work = PoolWork::default();
        if let Some(first) = self.other_first(name, group) {
            work.problems.push(format!(
                "spec.machineGroupName: is {group}, which MachineNodePool {first} has already; delete one of them"
            ));
            return work;
        }
        let mut own: BTreeSet<&str> = BTreeSet::new();
        for (i, entry) in pool.spec.node_pool.iter().enumerate() {
            let mut problems = Vec::new();
            let Some(entry) = entry.compile(&format!("spec.nodePool[{i}]"), &mut problems) else {
                work.problems.extend(problems.iter().map(ToString::to_string));
                continue;
            };
            let node = self.context.caches.machines.get(|all| &all.nodes, &entry.name);
            let owner = self.context.caches.machines.owner_of(&entry.name);
            if owner.as_deref().is_some_and(|owner| owner != name) {
                let owner = owner.unwrap_or_default();
                work.problems.push(format!(
                    "Node {:?} is in MachineNodePool {owner} already; take it out of one of them",
                    entry.name
                ));
                work.say(&entry, "Unhealthy");
                continue;
            }
            if !own.insert(&pool.spec.node_pool[i].name) {
                work.problems.push(format!("Node {:?} is in the pool twice; take it out once", entry.name));
                continue;
            }
            let Some(node) = node else {
                work.problems.push(format!("Node {:?} not found", entry.name));
                work.say(&entry, "Unhealthy");
                continue;
            };
            work.say(&entry, condition(entry.mode, node.ready));
            if let Some(patch) = node.patch(group, &Marks::of(group, &entry, node.ready), false) {
                work.patches.insert(entry.name.clone(), patch);
            }
        }
        for (node, seen) in self.context.caches.machines.marked(group) {
            if own.contains(node.as_str()) {
                continue;
            }
            let shared = self.context.caches.machines.owner_of(&node).is_some();
            if let Some(patch) = seen.patch(group, &Marks::none(), shared) {
                work.patches.insert(node, patch);
            }
        }
        work
    }

    /// The pool that a group belongs to, if it isn't this one. Two would each take off what the other one has written.
    fn other_first(&self, name: &str, group: &str) -> Option<String> {
        self.context.caches.machines.first_pool_of(group).filter(|first| first != name)
    }

    /// Writes all of them, whatever becomes of each. Returns what has to be tried again.
    pub(super) async fn write_nodes(
        &self,
        patches: BTreeMap<String, Value>,
        problems: &mut Vec<String>,
    ) -> Option<kube::Error> {
        let api: Api<Node> = Api::all(self.context.client.clone());
        let writes = stream::iter(patches).map(|(name, patch)| {
            let api = api.clone();
            async move {
                // There may be very many of them.
                if !self.context.replica.leadership.leads() {
                    return None;
                }
                let result = api.patch(&name, &writes::patch(), &Patch::Merge(&patch)).await;
                Some((name, result))
            }
        });
        let mut writes = writes.buffer_unordered(AT_ONCE);
        let mut failed = None;
        // In the order of their nodes, not of the answers: the same problems have the same words.
        let mut refused = BTreeMap::new();
        while let Some(written) = writes.next().await {
            let Some((name, result)) = written else { continue };
            match result {
                Ok(node) => {
                    info!(node = name, "marked");
                    self.context.feeds.nodes.answer(node);
                }
                // The watch tells of it.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    if is_refusal(&error) {
                        let problem = format!("Node {name:?}: {error}");
                        refused.insert(name, problem);
                    }
                    failed = Some(error);
                }
            }
        }
        problems.extend(refused.into_values());
        failed
    }

    /// Cleans the nodes of a pool that is being deleted, and lets it go when none is left to clean. Which these are is asked
    /// of the API server, past all caches: afterwards only the marks of late requests are looked for, in `left`.
    async fn release(&self, name: &str, pool: &MachineNodePool) -> Result<Action, kube::Error> {
        let group = &pool.spec.machine_group_name;
        if self.other_first(name, group).is_some() {
            // What the group's marks are is for that one to say; it looks again when this one is gone.
            return self.finish_release(name, pool).await;
        }
        // Looks once more after it has written; where there is work again then, somebody else writes too.
        for _ in 0..2 {
            let patches = self.unclean(name, group).await?;
            if patches.is_empty() {
                return self.finish_release(name, pool).await;
            }
            // Nodes were read before: marks of a pool that was created again since give them another resourceVersion.
            let live = writes::found(self.pool_api().get_metadata(name).await)?;
            if live.is_none_or(|live| live.uid() != pool.uid()) {
                return Ok(Action::Wait);
            }
            let mut problems = Vec::new();
            if let Some(error) = self.write_nodes(patches, &mut problems).await {
                if !problems.is_empty() {
                    self.context
                        .telemetry
                        .events
                        .machine(&pool.object_ref(&()), Cause::Failure, &problems.join("; "))
                        .await;
                }
                return Err(error);
            }
        }
        Ok(Action::Requeue(PAUSE))
    }

    /// The patches that clean nodes of a group's marks.
    async fn unclean(&self, name: &str, group: &str) -> Result<BTreeMap<String, Value>, kube::Error> {
        let api: Api<Node> = Api::all(self.context.client.clone());
        let mut patches = BTreeMap::new();
        watch::list(&api, ListParams::default(), |node: Node| {
            let owner = self.context.caches.machines.owner_of(&node.name_any());
            let shared = owner.is_some_and(|owner| owner != name);
            if let Some(mut patch) = NodeSummary::of(&node).patch(group, &Marks::none(), shared) {
                patch["metadata"]["resourceVersion"] = json!(node.resource_version());
                patches.insert(node.name_any(), patch);
            }
        })
        .await?;
        Ok(patches)
    }

    async fn finish_release(&self, name: &str, pool: &MachineNodePool) -> Result<Action, kube::Error> {
        // A pool that is deleted with its last finalizer is answered too, and no longer exists.
        if let Some(written) = writes::finalizer(&self.pool_api(), pool, keys::POOL_FINALIZER, false).await?
            && !written.finalizers().is_empty()
        {
            self.context.feeds.pools.answer(written);
        }
        info!(pool = name, "removed all marks from nodes of a deleted pool");
        Ok(Action::Done)
    }

    fn pool_api(&self) -> Api<MachineNodePool> {
        Api::all(self.context.client.clone())
    }

    async fn write_pool(&self, pool: &MachineNodePool, work: PoolWork) -> Result<(), kube::Error> {
        let before = pool.status.clone().unwrap_or_default();
        let (ready, conditions) = self.conditions(pool, &before.conditions, &work.problems);
        let observed_generation = pool.metadata.generation;
        let wanted = MachineNodePoolStatus { observed_generation, conditions, node_pool: work.conditions };
        self.context.caches.machines.pool_status(pool.name_any(), wanted.clone());
        if pool.status.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let status = json!({
            "observedGeneration": wanted.observed_generation,
            "conditions": wanted.conditions,
            "nodePool": wanted.node_pool,
        });
        let written = writes::status(&self.pool_api(), &Version::of(pool), status).await?;
        self.context.feeds.pools.answer(written);
        self.report(&pool.object_ref(&()), &before.conditions, &ready).await;
        Ok(())
    }
}

impl PoolWork {
    fn say(&mut self, entry: &PoolNode, condition: &str) {
        self.conditions.push(NodeCondition { name: entry.name.clone(), condition: condition.to_owned() });
    }
}

#[cfg(test)]
mod tests {
    use outrigger_runtime::cache::Change;
    use outrigger_runtime::fake_api::{FakeApi, not_found};

    use super::*;
    use crate::fixtures;

    #[tokio::test]
    async fn nodes_of_a_pool_that_was_created_again_are_not_cleaned() {
        const POOL: &str = "/apis/imperator.tenzen-y.io/v1alpha1/machinenodepools/g-node-pool";
        let pool = |uid: &str| {
            json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "MachineNodePool",
                "metadata": {"name": "g-node-pool", "uid": uid, "resourceVersion": "1", "finalizers": [keys::POOL_FINALIZER],
                    "deletionTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"machineGroupName": "g", "nodePool": [], "machineTypeStock": []}})
        };
        let node = json!({"metadata": {"name": "n", "uid": "n", "resourceVersion": "7",
            "labels": {"imperator.tenzen-y.io/t": "g", keys::NODE_POOL: "ready"}}});
        for (code, live, cleaned) in
            [(200, pool("u"), true), (200, pool("another"), false), (404, not_found(), false)]
        {
            let api = FakeApi::default();
            api.answers("GET", "/api/v1/nodes", 200, json!({"metadata": {}, "items": [node]}));
            api.answers("GET", POOL, code, live);
            api.answers("PATCH", "/api/v1/nodes/n", 200, node.clone());
            let context = fixtures::context(api.client());
            context.replica.leadership.lead_without_lease();
            let known: MachineNodePool = serde_json::from_value(pool("u")).unwrap();
            context.caches.machines.pool(Change::Applied(known.clone()));
            let done = Machines::new(&context).release("g-node-pool", &known).await.unwrap();
            assert_eq!(done, if cleaned { Action::Requeue(PAUSE) } else { Action::Wait }, "{code}");
            let written = api.calls("PATCH");
            assert_eq!(written.len(), 2 * usize::from(cleaned), "{code}");
            assert!(written.iter().all(|(_, patch)| patch["metadata"]["resourceVersion"] == "7"));
        }
    }
}
