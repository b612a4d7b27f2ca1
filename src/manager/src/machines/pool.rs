//! One look at a MachineNodePool: what is written on its nodes, and its status.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams, Patch};
use kube::{Resource, ResourceExt};
use outrigger_api::MachineNodePool;
use outrigger_api::conditions;
use outrigger_api::machine::{MachineNodePoolStatus, NodeCondition};
use outrigger_core::keys;
use outrigger_core::machine::PoolNode;
use serde_json::{Value, json};
use tracing::info;

use super::controller::{Controller, Stepped, is_refusal, ready};
use super::nodes::{Marks, NodeSummary, condition};
use crate::writes;

/// Nodes that are written at once.
const AT_ONCE: usize = 8;

/// Nodes that are asked for at once when a pool goes.
const PAGE: u32 = 500;

/// How long a pool that goes waits when its nodes were marked again while it cleaned them.
const PAUSE: Duration = Duration::from_secs(1);

/// What is to be done with the nodes of a pool.
#[derive(Default)]
struct PoolWork {
    /// Patches by nodes.
    patches: BTreeMap<String, Value>,
    /// What somebody has to do something about.
    faults: Vec<String>,
    /// The nodes as the status has them.
    conditions: Vec<NodeCondition>,
}

impl Controller {
    pub(super) async fn pool(&self, name: &str) -> Stepped {
        let Some(pool) = self.cache.get_pool(name) else { return Ok(None) };
        let held = pool.finalizers().iter().any(|finalizer| finalizer == keys::POOL_FINALIZER);
        if pool.metadata.deletion_timestamp.is_some() {
            return if held { self.release(name, &pool).await } else { Ok(None) };
        }
        if !held {
            // Before any node: what is written there is taken off again for certain.
            let mut all = pool.finalizers().to_vec();
            all.push(keys::POOL_FINALIZER.to_owned());
            self.finalizers(&pool, &all).await?;
        }
        let mut work = self.work(name, &pool);
        let failed = self.write_nodes(std::mem::take(&mut work.patches), &mut work.faults).await;
        if !self.leadership.leads() {
            return Ok(None);
        }
        self.write_pool(&pool, work).await?;
        failed.map_or(Ok(None), Err)
    }

    fn work(&self, name: &str, pool: &MachineNodePool) -> PoolWork {
        let group = &pool.spec.machine_group_name;
        let mut work = PoolWork::default();
        if let Some(first) = self.other_first(name, group) {
            work.faults.push(format!(
                "spec.machineGroupName: is {group}, which MachineNodePool {first} has already; delete one of them"
            ));
            return work;
        }
        let mut own: BTreeSet<&str> = BTreeSet::new();
        for (i, entry) in pool.spec.node_pool.iter().enumerate() {
            let mut faults = Vec::new();
            let Some(entry) = entry.compile(&format!("spec.nodePool[{i}]"), &mut faults) else {
                work.faults.extend(faults.iter().map(ToString::to_string));
                continue;
            };
            let node = self.cache.get_node(&entry.name);
            let owner = self.cache.owner_of(&entry.name);
            if owner.as_deref().is_some_and(|owner| owner != name) {
                let owner = owner.unwrap_or_default();
                work.faults.push(format!(
                    "Node {:?} is in MachineNodePool {owner} already; take it out of one of them",
                    entry.name
                ));
                work.say(&entry, "Unhealthy");
                continue;
            }
            if !own.insert(&pool.spec.node_pool[i].name) {
                work.faults.push(format!("Node {:?} is in the pool twice; take it out once", entry.name));
                continue;
            }
            let Some(node) = node else {
                work.faults.push(format!("Node {:?} not found", entry.name));
                work.say(&entry, "Unhealthy");
                continue;
            };
            work.say(&entry, condition(entry.mode, node.ready));
            if let Some(patch) = node.patch(group, &Marks::of(group, &entry, node.ready), false) {
                work.patches.insert(entry.name.clone(), patch);
            }
        }
        for (node, seen) in self.cache.marked(group) {
            if own.contains(node.as_str()) {
                continue;
            }
            let shared = self.cache.owner_of(&node).is_some();
            if let Some(patch) = seen.patch(group, &Marks::none(), shared) {
                work.patches.insert(node, patch);
            }
        }
        work
    }

    /// The pool that a group belongs to, if it isn't this one. Two would each take off what the other one has written.
    fn other_first(&self, name: &str, group: &str) -> Option<String> {
        self.cache.first_pool_of(group).filter(|first| first != name)
    }

    /// Writes all of them, whatever becomes of each. Returns what has to be tried again.
    async fn write_nodes(
        &self,
        patches: BTreeMap<String, Value>,
        faults: &mut Vec<String>,
    ) -> Option<kube::Error> {
        let api: Api<Node> = Api::all(self.client.clone());
        let writes = stream::iter(patches).map(|(name, patch)| {
            let api = api.clone();
            async move {
                // There may be very many of them.
                if !self.leadership.leads() {
                    return None;
                }
                let result = api.patch(&name, &writes::patch(), &Patch::Merge(&patch)).await;
                Some((name, result))
            }
        });
        let mut writes = writes.buffer_unordered(AT_ONCE);
        let mut failed = None;
        // In the order of their nodes, not of the answers: the same faults are told in the same words.
        let mut refused = BTreeMap::new();
        while let Some(written) = writes.next().await {
            let Some((name, result)) = written else { continue };
            match result {
                Ok(node) => {
                    info!(node = name, "marked");
                    self.feeds.nodes.answer(node);
                }
                // The watch tells of it.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    if is_refusal(&error) {
                        let fault = format!("Node {name:?}: {error}");
                        refused.insert(name, fault);
                    }
                    failed = Some(error);
                }
            }
        }
        faults.extend(refused.into_values());
        failed
    }

    /// Cleans the nodes of a pool that is being deleted, and lets it go when none is left to clean. Which these are is asked
    /// of the API server, past all caches: nobody looks for them afterwards.
    async fn release(&self, name: &str, pool: &MachineNodePool) -> Stepped {
        let group = &pool.spec.machine_group_name;
        if self.other_first(name, group).is_some() {
            // What the group's marks are is for that one to say; it looks again when this one is gone.
            return self.let_go(name, pool).await;
        }
        // Looks once more after it has written; where there is work again then, somebody else writes too.
        for _ in 0..2 {
            let patches = self.unclean(name, group).await?;
            if patches.is_empty() {
                return self.let_go(name, pool).await;
            }
            let mut faults = Vec::new();
            if let Some(error) = self.write_nodes(patches, &mut faults).await {
                if !faults.is_empty() {
                    self.events.machine(&pool.object_ref(&()), "Failure", &faults.join("; ")).await;
                }
                return Err(error);
            }
        }
        Ok(Some(PAUSE))
    }

    /// The patches that clean nodes of a group's marks.
    async fn unclean(&self, name: &str, group: &str) -> Result<BTreeMap<String, Value>, kube::Error> {
        let api: Api<Node> = Api::all(self.client.clone());
        let mut patches = BTreeMap::new();
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let list = api.list(&page).await?;
            for node in &list.items {
                let owner = self.cache.owner_of(&node.name_any());
                let shared = owner.is_some_and(|owner| owner != name);
                if let Some(patch) = NodeSummary::of(node).patch(group, &Marks::none(), shared) {
                    patches.insert(node.name_any(), patch);
                }
            }
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
        Ok(patches)
    }

    async fn let_go(&self, name: &str, pool: &MachineNodePool) -> Stepped {
        let others: Vec<String> =
            pool.finalizers().iter().filter(|f| *f != keys::POOL_FINALIZER).cloned().collect();
        self.finalizers(pool, &others).await?;
        info!(pool = name, "has no marks on nodes any more");
        Ok(None)
    }

    async fn finalizers(&self, pool: &MachineNodePool, all: &[String]) -> Result<(), kube::Error> {
        let api: Api<MachineNodePool> = Api::all(self.client.clone());
        // The list is replaced as a whole: only if nobody has changed it meanwhile.
        let patch = json!({"metadata": {"uid": pool.uid(), "resourceVersion": pool.resource_version(), "finalizers": all}});
        let written = api.patch(&pool.name_any(), &writes::patch(), &Patch::Merge(&patch)).await?;
        // One that has gone with its last finalizer is answered too, and isn't there any more.
        if !all.is_empty() || pool.metadata.deletion_timestamp.is_none() {
            self.feeds.pools.answer(written);
        }
        Ok(())
    }

    async fn write_pool(&self, pool: &MachineNodePool, work: PoolWork) -> Result<(), kube::Error> {
        let before = pool.status.clone().unwrap_or_default();
        let now = ready(&work.faults, pool.metadata.generation);
        let others = before.conditions.iter().filter(|c| c.type_ != now.type_).cloned();
        let all = others.chain([now.clone()]).collect();
        let wanted = MachineNodePoolStatus {
            conditions: conditions::merge(&before.conditions, all),
            node_pool: work.conditions,
        };
        if pool.status.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let api: Api<MachineNodePool> = Api::all(self.client.clone());
        let status = json!({"conditions": wanted.conditions, "nodePool": wanted.node_pool});
        let patch = json!({"metadata": {"uid": pool.uid()}, "status": status});
        let written = api.patch_status(&pool.name_any(), &writes::patch(), &Patch::Merge(&patch)).await?;
        self.feeds.pools.answer(written);
        self.tell(&pool.object_ref(&()), &before.conditions, &now).await;
        Ok(())
    }
}

impl PoolWork {
    fn say(&mut self, entry: &PoolNode, condition: &str) {
        self.conditions.push(NodeCondition { name: entry.name.clone(), condition: condition.to_owned() });
    }
}
