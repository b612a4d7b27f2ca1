//! The controller of Tenants and their DPUs. One replica runs it, under a Lease.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch};
use kube::{Client, Resource, ResourceExt};
use outrigger_api::Tenant;
use outrigger_core::ids::TenantId;
use outrigger_core::keys;
use outrigger_runtime::cache::Feed;
use outrigger_runtime::lease::Leadership;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tracing::{info, warn};

use super::namespace;
use super::nodes::{After, Nodes};
use super::status::{self, ControllerStatus};
use crate::admin::{self, AdminRules};
use crate::events::Events;
use crate::queue::Queue;
use crate::state::registry::{Registry, TenantEntry};
use crate::state::{RuleId, TenantStates};
use crate::worker;
use crate::writes::{self, found};

/// Keys that are worked on at once.
const AT_ONCE: usize = 16;
/// How often a tenant is looked at without cause: bindings and quotas that somebody has changed are put right then.
const RESYNC: Duration = Duration::from_secs(300);
/// How often a namespace that is nearly ready is looked at.
const PREPARING: Duration = Duration::from_millis(200);
/// How often the deletion of a tenant looks whether what it waits for is gone.
const PAUSE: Duration = Duration::from_secs(1);

/// What there is to look at.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A tenant: its namespace and its status.
    Tenant(TenantId),
    /// A Node: whose it is.
    Node(String),
}

/// Makes tenants what they should be.
#[derive(Clone)]
pub struct Controller {
    /// The infrastructure cluster.
    pub client: Client,
    /// Tenants and DPUs.
    pub registry: Arc<Registry>,
    /// Namespaces and whose they are.
    pub states: Arc<TenantStates>,
    /// What to look at.
    pub queue: Arc<Queue<Key>>,
    /// Rules, whose status the leader writes where nobody serves their tenant.
    pub rules: Arc<Queue<RuleId>>,
    /// Whether this replica is the one.
    pub leadership: Leadership,
    /// Tells users.
    pub events: Arc<Events>,
    /// The platform's rules, whose status the leader sums up.
    pub admin: Arc<AdminRules>,
    /// Where answers to writes of Nodes go.
    pub answers: Feed<Node>,
    /// DPUs that are under way.
    pub nodes: Arc<Nodes>,
    /// Who the manager is to the API server.
    pub myself: Arc<OnceCell<Value>>,
}

impl crate::queue::Key for Key {
    type Group = Self;

    fn group(&self) -> Self {
        self.clone()
    }
}

impl Controller {
    /// Works on the queue for ever, while this replica leads.
    pub async fn run(self) {
        let gained = || {
            // Others have led meanwhile.
            self.nodes.forget();
            self.queue.add(self.registry.ids().into_iter().map(Key::Tenant));
            self.queue.add(self.registry.dpus().into_iter().map(|(name, _)| Key::Node(name)));
            for state in self.states.all() {
                self.rules.add(state.rule_ids());
            }
            self.rules.add(self.admin.ids());
            // Also those that are gone, and have left companions of admin rules.
            self.queue.add(self.states.all_admin_companions().into_iter().map(|(id, _)| Key::Tenant(id)));
        };
        let step = |key| {
            let this = self.clone();
            async move { this.step(&key).await }
        };
        worker::led(self.queue.clone(), AT_ONCE, self.leadership.clone(), gained, step).await;
    }

    async fn step(&self, key: &Key) {
        let result = match key {
            Key::Tenant(id) => self.tenant(id).await,
            Key::Node(name) => self.node(name).await,
        };
        match result {
            Ok(After::Done) => self.queue.forget(key),
            Ok(After::Again) => self.queue.add([key.clone()]),
            Ok(After::Later(pause)) => {
                self.queue.forget(key);
                self.queue.add_after(key.clone(), pause);
            }
            // Somebody else has written it since; the watch will show how.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                self.queue.retry(key.clone());
            }
            Err(error) => {
                warn!(?key, %error, "will be tried again");
                self.queue.retry(key.clone());
            }
        }
    }

    async fn node(&self, name: &str) -> Result<After, kube::Error> {
        let answered = |node| _ = self.answers.answer(node);
        self.nodes.step(&self.client, &self.registry, &self.states, name, answered).await
    }

    async fn tenant(&self, id: &TenantId) -> Result<After, kube::Error> {
        let Some(entry) = self.registry.get(id) else { return self.gone(id).await };
        if entry.deleting() {
            return self.release(id, &entry).await;
        }
        let mut version = entry.object.resource_version();
        if !entry.object.finalizers().iter().any(|f| f == keys::TENANT_FINALIZER) {
            let mut all = entry.object.finalizers().to_vec();
            all.push(keys::TENANT_FINALIZER.to_owned());
            version = self.finalizers(&entry.object, &all).await?.resource_version();
        }
        let state = match &entry.tenant {
            Err(_) => None,
            Ok(tenant) => {
                let myself = self.myself.get_or_try_init(|| namespace::myself(&self.client)).await?;
                let owner =
                    entry.object.controller_owner_ref(&()).and_then(|owner| serde_json::to_value(owner).ok());
                Some(namespace::ensure(&self.client, tenant, &owner.unwrap_or_default(), myself).await?)
            }
        };
        let wanted = status::compute(&self.registry, id, &entry, state.as_ref(), Timestamp::now());
        self.write(&entry, version, &wanted).await?;
        // A namespace that goes tells of it; one that is freed by a label does too.
        let soon = state == Some(namespace::State::Preparing);
        Ok(After::Later(if soon { PREPARING } else { RESYNC }))
    }

    /// A tenant that went without being released: somebody took its finalizer away. What it had in its own namespace goes with
    /// that; what it had in the platform's would stay for ever.
    async fn gone(&self, id: &TenantId) -> Result<After, kube::Error> {
        if self.states.admin_companions_of(id).lock().keys().next().is_none() {
            return Ok(After::Done);
        }
        // That the cache lacks it may only mean that its watch is behind.
        if found(self.api().get(id.as_str()).await)?.is_some() {
            return Ok(After::Later(PAUSE));
        }
        let left = admin::release(&self.client, &self.states.admin().resources, id).await?;
        Ok(if left == 0 { After::Done } else { After::Later(PAUSE) })
    }

    /// The safe order: no stream and no new companions (the tenant is being deleted, and everyone sees that), then its
    /// rules and Pods, then its DPUs, then itself.
    async fn release(&self, id: &TenantId, entry: &TenantEntry) -> Result<After, kube::Error> {
        if !entry.object.finalizers().iter().any(|f| f == keys::TENANT_FINALIZER) {
            return Ok(After::Done);
        }
        let uid = entry.object.uid().unwrap_or_default();
        // What follows deletes by the tenant's name: a Tenant that has been made anew since is not the one that goes.
        let live = found(self.api().get(id.as_str()).await)?;
        let goes =
            |live: &Tenant| live.uid().as_deref() == Some(&uid) && live.metadata.deletion_timestamp.is_some();
        if !live.as_ref().is_some_and(goes) {
            return Ok(After::Later(PAUSE));
        }
        let namespace = entry.object.target_namespace();
        let dpus: Vec<String> = self
            .registry
            .dpus()
            .into_iter()
            .filter(|(_, dpu)| dpu.marks.owner.as_deref() == Some(id.as_str()))
            .map(|(name, _)| name)
            .collect();
        let count = i64::try_from(dpus.len()).unwrap_or(i64::MAX);
        let companions = admin::release(&self.client, &self.states.admin().resources, id).await?;
        let left = match namespace::release(&self.client, &namespace, id.as_str(), &uid).await? {
            Some(left) => Some(left),
            None if companions > 0 => Some(format!("{companions} companions of admin rules")),
            None if !dpus.is_empty() => {
                self.queue.add(dpus.into_iter().map(Key::Node));
                Some(format!("{count} DPUs"))
            }
            None => None,
        };
        if let Some(left) = left {
            let wanted = status::terminating(entry, &left, count, Timestamp::now());
            self.write(entry, entry.object.resource_version(), &wanted).await?;
            return Ok(After::Later(PAUSE));
        }
        let others: Vec<String> =
            entry.object.finalizers().iter().filter(|f| *f != keys::TENANT_FINALIZER).cloned().collect();
        self.finalizers(&entry.object, &others).await?;
        info!(tenant = %id, "released");
        Ok(After::Done)
    }

    async fn finalizers(&self, tenant: &Tenant, all: &[String]) -> Result<Tenant, kube::Error> {
        let api = self.api();
        let params = writes::patch();
        // The list is replaced as a whole: only if nobody has changed it meanwhile.
        let patch = json!({"metadata": {"uid": tenant.uid(), "resourceVersion": tenant.resource_version(), "finalizers": all}});
        api.patch(&tenant.name_any(), &params, &Patch::Merge(&patch)).await
    }

    fn api(&self) -> Api<Tenant> {
        Api::all(self.client.clone())
    }

    /// Writes the status over the Tenant of this version: it was computed from that, and another leader may have written since.
    async fn write(
        &self,
        entry: &TenantEntry,
        version: Option<String>,
        wanted: &ControllerStatus,
    ) -> Result<(), kube::Error> {
        let now = ControllerStatus::now(entry);
        if *wanted == now {
            return Ok(());
        }
        let params = writes::patch();
        let patch =
            json!({"metadata": {"uid": entry.object.uid(), "resourceVersion": version}, "status": wanted});
        self.api().patch_status(&entry.object.name_any(), &params, &Patch::Merge(&patch)).await?;
        let ready = |written: &ControllerStatus| {
            let ready = written.conditions.iter().find(|c| c.type_ == "Ready");
            ready.map(|c| (c.status.clone(), c.reason.clone(), c.message.clone()))
        };
        if let Some((status, reason, message)) = ready(wanted)
            && ready(&now).is_none_or(|(_, before, _)| before != reason)
        {
            self.events.tenant(&entry.object, status == "True", &reason, &message).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
