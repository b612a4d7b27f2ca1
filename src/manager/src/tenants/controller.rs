//! The controller of Tenants and their DPUs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::api::Api;
use kube::{Resource, ResourceExt};
use outrigger_api::Tenant;
use outrigger_core::ids::TenantId;
use outrigger_core::keys;
use serde_json::Value;
use tokio::sync::OnceCell;
use tracing::info;

use super::enforcement;
use super::former::Former;
use super::namespace;
use super::nodes::Handovers;
use super::second;
use super::status::{self, ControllerStatus};
use crate::admin;
use crate::context::{Caches, Context};
use crate::queue::{self, Queue};
use crate::state::TenantState;
use crate::state::registry::TenantEntry;
use crate::worker::{Action, Controller};
use crate::writes::{self, Version};

/// How often a tenant is looked at without cause: bindings and quotas that somebody has changed are put right then.
const RESYNC: Duration = Duration::from_secs(300);
/// Pause between two looks for whether somebody else's namespace of a tenant's name is gone.
const OF_OTHERS: Duration = Duration::from_secs(10);
/// Pause between two looks for what the deletion of a tenant waits for.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Key {
    /// A tenant: its namespace and its status.
    Tenant(TenantId),
    /// A Node: the tenant that it is assigned to.
    Node(String),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tenant(id) => write!(f, "tenant/{id}"),
            Self::Node(name) => write!(f, "node/{name}"),
        }
    }
}

impl queue::Key for Key {}

pub(crate) struct Tenants {
    context: Arc<Context>,
    handovers: Handovers,
    /// The manager's user as the API server knows it, as the subject of a RoleBinding.
    myself: OnceCell<Value>,
}

impl Tenants {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self { context: context.clone(), handovers: Handovers::default(), myself: OnceCell::new() }
    }
}

impl Controller for Tenants {
    type Key = Key;

    const NAME: &'static str = "tenants";
    const QUEUE: fn(&Context) -> &Queue<Key> = |context| &context.queues.tenants;

    fn gained(&self) {
        let Context { states, queues, caches, .. } = &*self.context;
        let Caches { registry, admin_rules, first_pass, .. } = caches;
        // Other replicas have led meanwhile.
        self.handovers.forget();
        let tenants = registry.ids();
        first_pass.begin(tenants.iter().cloned());
        queues.tenants.add(tenants.into_iter().map(Key::Tenant));
        queues.tenants.add(registry.dpus().into_iter().map(|(name, _)| Key::Node(name)));
        // Also tenants that are deleted and have left rules, or companions of admin rules.
        queues.tenants.add(states.all_admin_companions().into_iter().map(|(id, _)| Key::Tenant(id)));
        // The leader writes the status of rules whose tenant no replica serves, and sums up that of admin rules.
        for state in states.all() {
            queues.rules.add(state.rule_ids());
            let data = state.lock();
            queues.tenants.add(data.tenant.clone().map(Key::Tenant));
            // Nobody has acted for tenants without a stream since the last leader.
            if data.acts(true) {
                queues.companions.add(state.ids(data.companion_keys()));
            }
        }
        queues.rules.add(admin_rules.names().iter().map(|name| states.admin_rule_id(name)));
    }

    async fn step(&self, key: &Key) -> Result<Action, kube::Error> {
        match key {
            Key::Tenant(id) => {
                let result = self.tenant(id).await;
                self.context.caches.first_pass.attempted(id);
                result
            }
            Key::Node(name) => self.handovers.step(&self.context, name).await,
        }
    }
}

impl Tenants {
    async fn tenant(&self, id: &TenantId) -> Result<Action, kube::Error> {
        let Some(entry) = self.context.caches.registry.get(id) else { return self.release_deleted(id).await };
        if entry.deleting() {
            return self.release(id, &entry).await;
        }
        let written = writes::finalizer(&self.api(), &*entry.object, keys::TENANT_FINALIZER, true).await?;
        let over = Version::of(written.as_ref().unwrap_or(&entry.object));
        let found = match &entry.tenant {
            Err(_) => None,
            Ok(tenant) => {
                let myself = self.myself.get_or_try_init(|| namespace::myself(&self.context.client)).await?;
                let owner =
                    entry.object.controller_owner_ref(&()).and_then(|owner| serde_json::to_value(owner).ok());
                let state =
                    namespace::ensure(&self.context, tenant, &owner.unwrap_or_default(), myself).await?;
                let level = tenant.level(self.context.replica.args.enforcement);
                let refused = enforcement::would_be_refused(&self.context.client, tenant, level).await?;
                Some((state, level, refused))
            }
        };
        let wanted = status::compute(
            &self.context.caches.registry,
            &self.context.states,
            id,
            &entry,
            found.as_ref(),
            self.context.environment.clock.wall(),
        );
        self.write(id, &entry, &over, &wanted).await?;
        Ok(Action::Requeue(pause(found.as_ref().map(|(state, ..)| state))))
    }

    /// What is left of a deleted tenant: of one that wasn't released, because its finalizer was removed by hand, or what replicas whose
    /// caches were stale have created since. Nobody else deletes its companions of admin rules, and its rules in a namespace that wasn't
    /// created for it.
    async fn release_deleted(&self, id: &TenantId) -> Result<Action, kube::Error> {
        let Context { client, states, .. } = &*self.context;
        let has_companions = states.admin_companions_of(id).lock().keys().next().is_some();
        let rules = |state: Arc<TenantState>| {
            let names = state.lock().own_rules();
            names.into_iter().map(move |name| (state.namespace.clone(), name))
        };
        let rules: Vec<_> = states.of(id).into_iter().flat_map(rules).collect();
        if !has_companions && rules.is_empty() {
            return Ok(Action::Done);
        }
        // The cache may be stale.
        let former = Former { client, id, uid: None };
        if !former.is_still_deleted().await? {
            return Ok(Action::Requeue(PAUSE));
        }
        let mut left = 0;
        if has_companions {
            left = admin::release(&former, &states.admin().resources).await?;
        }
        for (namespace, name) in rules {
            let Some(rule) = namespace::written_rule(client, &namespace, &name).await? else { continue };
            // Again, after the rule was read: it may be of a Tenant that has been created meanwhile.
            if !former.is_still_deleted().await? {
                return Ok(Action::Requeue(PAUSE));
            }
            namespace::delete_rule(client, &namespace, &rule).await?;
        }
        Ok(if left == 0 { Action::Done } else { Action::Requeue(PAUSE) })
    }

    /// Releases a tenant that is being deleted, in the safe order: no stream and no new companions (every replica sees the deletion),
    /// then its rules and Pods, then its DPUs, then its finalizer.
    async fn release(&self, id: &TenantId, entry: &TenantEntry) -> Result<Action, kube::Error> {
        if !entry.has_finalizer() {
            return Ok(Action::Done);
        }
        let uid = entry.object.uid().unwrap_or_default();
        let client = &self.context.client;
        // What follows deletes by the tenant's name: a Tenant that has been created again since must be kept.
        let former = Former { client, id, uid: Some(&uid) };
        if !former.is_still_deleted().await? {
            return Ok(Action::Requeue(PAUSE));
        }
        let namespace = entry.object.target_namespace();
        let dpus = self.context.caches.registry.dpus_of(id);
        let count = i64::try_from(dpus.len()).unwrap_or(i64::MAX);
        let companions = admin::release(&former, &self.context.states.admin().resources).await?;
        let mut held_up = None;
        let left = match namespace::release(&former, &namespace, &uid).await? {
            Some(left) => Some(left),
            None if companions > 0 => Some(format!("{companions} companions of admin rules")),
            None if !dpus.is_empty() => {
                // Pods of such namespaces keep DPUs until somebody deletes them.
                held_up = second::message(&self.context.states, id, &namespace);
                self.context.queues.tenants.add(dpus.into_iter().map(|(name, _)| Key::Node(name)));
                Some(format!("{count} DPUs"))
            }
            None => None,
        };
        if let Some(left) = left {
            let now = self.context.environment.clock.wall();
            let wanted = status::terminating(entry, &left, held_up.as_deref(), count, now);
            self.write(id, entry, &Version::of(&*entry.object), &wanted).await?;
            return Ok(Action::Requeue(PAUSE));
        }
        writes::finalizer(&self.api(), &*entry.object, keys::TENANT_FINALIZER, false).await?;
        info!(tenant = %id, "released tenant");
        Ok(Action::Done)
    }

    fn api(&self) -> Api<Tenant> {
        Api::all(self.context.client.clone())
    }

    /// Writes the status, if it is another one, and an Event if the tenant's Ready condition has another reason.
    async fn write(
        &self,
        id: &TenantId,
        entry: &TenantEntry,
        over: &Version,
        wanted: &ControllerStatus,
    ) -> Result<(), kube::Error> {
        {
            let mut computed = self.context.caches.tenant_statuses.lock();
            // Under the lock, because the status of a deleted Tenant is forgotten after the registry has lost it.
            computed.set(id.clone(), wanted.clone(), self.context.caches.registry.get(id).is_some());
        }
        let now = ControllerStatus::now(entry);
        if *wanted == now {
            return Ok(());
        }
        let written = writes::status(&self.api(), over, wanted).await?;
        self.context.feeds.tenants.answer(written);
        let ready = |written: &ControllerStatus| {
            let ready = written.conditions.iter().find(|c| c.type_ == "Ready");
            ready.map(|c| (c.status.clone(), c.reason.clone(), c.message.clone()))
        };
        if let Some((status, reason, message)) = ready(wanted)
            && ready(&now).is_none_or(|(_, before, _)| before != reason)
        {
            self.context.telemetry.events.tenant(&entry.object, status == "True", &reason, &message).await;
        }
        Ok(())
    }
}

/// When a tenant is looked at again whose namespace is in this state.
fn pause(namespace: Option<&namespace::State>) -> Duration {
    match namespace {
        Some(namespace::State::Preparing(pause)) => *pause,
        // Of a namespace that isn't the tenant's, nothing says which tenant waits for its end.
        Some(namespace::State::NotOurs(_) | namespace::State::Terminating) => OF_OTHERS,
        // A namespace that is deleted, or gets another label, queues its tenant.
        Some(namespace::State::Ready) | None => RESYNC,
    }
}

#[cfg(test)]
mod tests;
