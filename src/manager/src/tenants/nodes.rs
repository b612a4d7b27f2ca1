//! Hands DPUs over from tenant to tenant: the domain decides on the step, this executes it.

use outrigger_core::map::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Api, ListParams, Patch};
use kube::core::PartialObjectMeta;
use kube::{Client, ResourceExt};
use outrigger_api::Tenant;
use outrigger_core::ids::TenantId;
use outrigger_core::tenant::nodes::{Marks, NodeUse, Ownership, Step, step};
use outrigger_core::{fault, keys};
use outrigger_runtime::watch;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::info;

use super::Former;
use crate::context::{Caches, Context};
use crate::dpu::Dpu;
use crate::state::TenantStates;
use crate::state::pauses::WritePauses;
use crate::state::registry::Registry;
use crate::worker::Action;
use crate::writes::{self, found, only};

/// How long a Node is unassigned before the next tenant gets it: long enough for a scheduler and a kubelet to see that the former
/// tenant's label is removed. Their watches take milliseconds; a scheduling cycle takes far less than this.
pub(super) const SETTLE: Duration = Duration::from_secs(3);

/// Pause between two looks for Pods that are being deleted.
const PAUSE: Duration = Duration::from_secs(1);

/// The same where all of them should have ended a minute ago: their kubelet may be off for days.
const STUCK: (Duration, SignedDuration) = (Duration::from_secs(30), SignedDuration::from_secs(60));

#[derive(Debug, Default)]
pub(super) struct Handovers {
    /// Since when Nodes have been seen cordoned, unowned and empty. Forgotten by a restart, which only takes longer then.
    empty_since: Mutex<HashMap<String, Instant>>,
    /// When the same marks may be written to a Node again: somebody else may remove them each time.
    marked: Mutex<WritePauses<(String, Marks)>>,
}

impl Handovers {
    pub(super) async fn step(&self, context: &Context, name: &str) -> Result<Action, kube::Error> {
        let Context { client, caches: Caches { registry, .. }, states, .. } = context;
        let Some(dpu) = registry.dpu(name) else {
            self.empty_since.lock().remove(name);
            return Ok(Action::Done);
        };
        let mut verdict = registry.verdict(&dpu);
        let left = if verdict == Ownership::Foreign { left(context, name, &dpu).await? } else { None };
        if left.as_ref().is_some_and(|pods| !pods.is_empty()) {
            // Nothing else brings the Node back when they are gone, and nobody deletes them.
            return Ok(Action::Requeue(STUCK.0));
        }
        if left.is_some() {
            info!(
                node = name,
                tenant = dpu.marks.owner.as_deref().unwrap_or_default(),
                "removing marks that were left of a deleted tenant"
            );
            verdict = Ownership::Nobody;
        }
        // Asked without the Node's Pods first: mostly they don't matter, and listing them costs a request.
        let (tainted, mut wait) = (context.replica.args.taint_dpus, PAUSE);
        let next = match step(&dpu.marks, &verdict, tainted, || Err(())) {
            Ok(next) => next,
            Err(()) => {
                let others = others(client, states, &verdict, name).await?;
                let settled = self.settled(name, &dpu, others.is_empty(), context.environment.clock.now());
                let seen = NodeUse { others: !others.is_empty(), settled };
                let next = step::<()>(&dpu.marks, &verdict, tainted, || Ok(seen)).unwrap_or(Step::Settle);
                // By a cache that is behind, the DPU could be taken from a tenant that has got it since.
                if matches!(next, Step::Clear | Step::Mark(_)) {
                    let owner = dpu.marks.owner.as_deref().and_then(|owner| TenantId::new(owner).ok());
                    let losers = others.iter().map(|(owner, _)| owner.clone()).chain(owner).collect();
                    if !are_current(client, registry, losers, &verdict).await? {
                        return Ok(Action::Requeue(PAUSE));
                    }
                }
                if next == Step::Clear {
                    clear(client, name, &others).await?;
                    wait = pause(&others, context.environment.clock.wall());
                }
                next
            }
        };
        match next {
            Step::Done => {
                self.empty_since.lock().remove(name);
                Ok(Action::Done)
            }
            Step::Clear | Step::Settle => Ok(Action::Requeue(wait)),
            // Its finalizer, or its end, brings the Node back.
            Step::Mark(marks) if gains(&dpu.marks, &marks) && !holds(registry, &verdict) => Ok(Action::Done),
            Step::Mark(marks) => self.mark(context, name, &dpu, marks).await,
        }
    }

    async fn mark(
        &self,
        context: &Context,
        name: &str,
        dpu: &Dpu,
        marks: Marks,
    ) -> Result<Action, kube::Error> {
        let (clock, key) = (context.environment.clock, (name.to_owned(), marks));
        let early = self.marked.lock().left(&key, clock.now());
        if let Some(pause) = early {
            return Ok(Action::Requeue(pause));
        }
        let marks = &key.1;
        let nodes: Api<Node> = Api::all(context.client.clone());
        let node = nodes.patch(name, &writes::patch(), &Patch::Merge(patch(dpu, marks))).await?;
        let _ = self.marked.lock().write(&key, clock.now());
        info!(
            node = name,
            tenant = marks.owner.as_deref().unwrap_or("none"),
            previous_tenant = dpu.marks.owner.as_deref().unwrap_or("none"),
            handover = marks.handover.as_deref().unwrap_or("none"),
            "assigned DPU to tenant"
        );
        context.feeds.nodes.answer(node);
        Ok(Action::Requeue(Duration::ZERO))
    }

    /// Forgets what was seen: another replica may have worked on the Nodes since.
    pub(super) fn forget(&self) {
        self.empty_since.lock().clear();
    }

    /// Whether the Node has been unassigned, cordoned and empty for long enough.
    fn settled(&self, name: &str, dpu: &Dpu, empty: bool, now: Instant) -> bool {
        let mut since = self.empty_since.lock();
        if !empty || dpu.marks.owner.is_some() || dpu.marks.handover.is_none() {
            since.remove(name);
            return false;
        }
        now.duration_since(*since.entry(name.to_owned()).or_insert(now)) >= SETTLE
    }
}

/// Whether a DPU gets another owner by these marks.
fn gains(before: &Marks, marks: &Marks) -> bool {
    marks.owner.is_some() && marks.owner != before.owner
}

/// Whether the Tenant that is to get a DPU has the finalizer. Without it the Tenant may be deleted before the cache shows that, and
/// no release removes the marks again.
fn holds(registry: &Registry, verdict: &Ownership) -> bool {
    let Ownership::Of(tenant) = verdict else { return false };
    registry.get(tenant).is_some_and(|entry| entry.has_finalizer())
}

/// The Pods of tenants that are on a Node whose label was left of a Tenant that no longer exists: a request that marked the Node arrived
/// after the Tenant's DPUs had been released. That is so if a manager has written the label, by `managedFields`, and if the API server
/// says that there is no such Tenant; otherwise the answer is `None`.
async fn left(context: &Context, name: &str, dpu: &Dpu) -> Result<Option<Vec<Owned>>, kube::Error> {
    let Context { client, caches: Caches { registry, .. }, states, .. } = context;
    let owner = dpu.marks.owner.as_deref().and_then(|owner| TenantId::new(owner).ok());
    // One whose spec isn't valid exists.
    let Some(owner) = owner.filter(|owner| registry.get(owner).is_none()) else { return Ok(None) };
    let nodes: Api<Node> = Api::all(client.clone());
    // The Node is read before the Tenant: a label that is written meanwhile gives it another resourceVersion.
    let node = found(nodes.get_metadata(name).await)?;
    let is_ours = |node: PartialObjectMeta<Node>| {
        node.labels().get(keys::NODE_TENANT).map(String::as_str) == Some(owner.as_str())
            && writes::has_written(&node.metadata, "f:labels", keys::NODE_TENANT)
    };
    if !node.is_some_and(is_ours) || !(Former { client, id: &owner, uid: None }).is_still_deleted().await? {
        return Ok(None);
    }
    others(client, states, &Ownership::Nobody, name).await.map(Some)
}

/// How long until the next look for these Pods.
fn pause(pods: &[Owned], now: Timestamp) -> Duration {
    let (stuck, overdue) = STUCK;
    let is_overdue = |(_, pod): &Owned| {
        let end = pod.metadata.deletion_timestamp.as_ref();
        end.is_some_and(|end| now.duration_since(end.0) > overdue)
    };
    if !pods.is_empty() && pods.iter().all(is_overdue) { stuck } else { PAUSE }
}

/// Whether the cache has these Tenants, and the one that is to get the DPU, as the API server has them: no Pod is deleted for a host
/// that a Tenant has regained meanwhile.
async fn are_current(
    client: &Client,
    registry: &Registry,
    mut tenants: BTreeSet<TenantId>,
    verdict: &Ownership,
) -> Result<bool, kube::Error> {
    if let Ownership::Of(tenant) = verdict {
        tenants.insert(tenant.clone());
    }
    let matter = |tenant: &Tenant| {
        let metadata = &tenant.metadata;
        (metadata.uid.clone(), metadata.generation, metadata.deletion_timestamp.is_some())
    };
    let api: Api<Tenant> = Api::all(client.clone());
    for id in tenants {
        let live = found(api.get(id.as_str()).await)?;
        let known = registry.get(&id);
        if live.as_ref().map(matter) != known.as_ref().map(|entry| matter(&entry.object)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A Pod with the tenant that it belongs to.
type Owned = (TenantId, PartialObjectMeta<Pod>);

/// The Pods on a Node that belong to other tenants than the one that is to get it. They are listed past all caches, because they are
/// deleted, and the Node is given away where there are none. Those in namespaces that the cache doesn't show as a tenant's are among them
/// only where there are no others.
async fn others(
    client: &Client,
    states: &TenantStates,
    verdict: &Ownership,
    node: &str,
) -> Result<Vec<Owned>, kube::Error> {
    let pods: Api<PartialObjectMeta<Pod>> = Api::all(client.clone());
    let (mut owned, mut unknown) = (Vec::new(), BTreeMap::<String, Vec<_>>::new());
    watch::list(&pods, ListParams::default().fields(&format!("spec.nodeName={node}")), |pod| {
        match owner(states, &pod) {
            Some(owner) => owned.push((owner, pod)),
            None => unknown.entry(pod.namespace().unwrap_or_default()).or_default().push(pod),
        }
    })
    .await?;
    let is_other = |owner: &TenantId| *verdict != Ownership::Of(owner.clone());
    owned.retain(|(owner, _)| is_other(owner));
    if !owned.is_empty() {
        return Ok(owned);
    }
    // Nothing seems to hold the Node. The cache may not show yet that a namespace is a tenant's.
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for (name, pods) in unknown.into_iter().filter(|(name, _)| !states.admin().contains(name)) {
        let namespace = found(namespaces.get_metadata(&name).await)?;
        let owner = namespace.and_then(|namespace| TenantId::of_namespace(namespace.labels()));
        if let Some(owner) = owner.filter(is_other) {
            owned.extend(pods.into_iter().map(|pod| (owner.clone(), pod)));
        }
    }
    Ok(owned)
}

/// The tenant that a Pod belongs to, as far as the cache knows its namespace. Companions of admin rules belong to the tenant whose workload
/// they serve, as far as who may have a DPU is concerned: nobody but the manager can have written their label.
fn owner(states: &TenantStates, pod: &PartialObjectMeta<Pod>) -> Option<TenantId> {
    let namespace = pod.namespace().unwrap_or_default();
    if *namespace == *states.admin().resources {
        return TenantId::of_namespace(pod.labels());
    }
    states.tenant_of(&namespace)
}

/// The longest grace period of a Pod that has to leave a DPU, in seconds: a tenant must not keep one by asking for years.
const MAX_GRACE: u32 = 300;

/// Deletes Pods, with their own grace periods up to [`MAX_GRACE`]. One that can't be deleted keeps no other.
async fn clear(client: &Client, node: &str, others: &[Owned]) -> Result<(), kube::Error> {
    let mut cleared = Ok(());
    for (_, pod) in others {
        cleared = cleared.and(clear_of(client, node, pod).await);
    }
    cleared
}

async fn clear_of(client: &Client, node: &str, pod: &PartialObjectMeta<Pod>) -> Result<(), kube::Error> {
    let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let mut params = only(&pod.uid().unwrap_or_default());
    match (&pod.metadata.deletion_timestamp, pod.metadata.deletion_grace_period_seconds) {
        (None, _) => {
            writes::deleted(pods.delete(&name, &params).await)?;
            info!(pod = name, %namespace, node, "deleted Pod: its tenant loses the DPU");
        }
        (Some(_), Some(left)) if left > i64::from(MAX_GRACE) => {
            params.grace_period_seconds = Some(MAX_GRACE);
            writes::deleted(pods.delete(&name, &params).await)?;
            info!(pod = name, %namespace, node, left, "shortened the grace period: its tenant loses the DPU");
        }
        // Its kubelet has seen the containers end. Only finalizers keep the Pod, and with it the DPU.
        (Some(_), Some(0)) if !pod.finalizers().is_empty() => {
            let patch = json!({"metadata": {"uid": pod.uid(), "finalizers": null}});
            writes::deleted(pods.patch(&name, &writes::patch(), &Patch::Merge(&patch)).await)?;
            info!(pod = name, %namespace, node, finalizers = pod.finalizers().join(","), "removed finalizers: its tenant loses the DPU");
        }
        _ => {}
    }
    Ok(())
}

/// The one write that makes a Node's marks these: label and taints together, under the resourceVersion that they were
/// read with, because the list of taints is replaced as a whole and belongs to others too.
fn patch(dpu: &Dpu, marks: &Marks) -> Value {
    let ours = |taint: &Value| {
        let key = taint.get("key").and_then(Value::as_str);
        key == Some(keys::TENANT) || key == Some(keys::HANDOVER)
    };
    let mut taints: Vec<Value> = dpu
        .taints
        .iter()
        .filter(|taint| !ours(taint) && !fault("taints-of-others-are-removed"))
        .cloned()
        .collect();
    for tenant in &marks.tainted_for {
        taints.push(json!({"key": keys::TENANT, "value": tenant, "effect": "NoSchedule"}));
    }
    if let Some(to) = &marks.handover {
        taints.push(json!({"key": keys::HANDOVER, "value": to, "effect": "NoSchedule"}));
    }
    json!({
        "metadata": {"resourceVersion": dpu.resource_version, "labels": {keys::NODE_TENANT: marks.owner}},
        "spec": {"taints": taints},
    })
}

#[cfg(test)]
mod tests;
