//! The watches of the infrastructure cluster, one for each kind, and what follows from a change of an object: state changes, and the
//! keys that the change may concern are queued.
//!
//! Two kinds of Pods are watched, by labels that one selector can't combine: companions, and guests and reservations of Machines.

use k8s_openapi::api::core::v1::{Namespace, Node, ResourceQuota};
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::core::PartialObjectMeta;
use kube::{Api, Resource, ResourceExt};
use outrigger_api::{AdminWorkloadRule, NamespaceOffloading, Tenant, WorkloadRule};
use outrigger_core::fault;
use outrigger_core::ids::{RuleName, TenantId};
use outrigger_core::index::CompanionKey;
use outrigger_core::keys;
use outrigger_core::template::Kind;
use outrigger_runtime::Process;
use outrigger_runtime::cache::{Change, version};
use outrigger_runtime::pod::Pod;
use outrigger_runtime::watch::Watch;
use parking_lot::MutexGuard;
use serde_json::json;
use tracing::info;

use crate::companions::object::Object;
use crate::computed::CONTESTED;
use crate::context::Context;
use crate::machines;
use crate::state::registry::NodeChange;
use crate::state::stream::ObservedClaim;
use crate::state::{CompanionId, TenantData, TenantState};
use crate::tenants::claim::UNUSED;
use crate::tenants::{ControllerStatus, Key};

/// Starts all watches. The process is ready only after each has listed its objects.
pub(crate) fn start(process: &Process, context: &Context) {
    let (client, feeds) = (&context.client, &context.feeds);
    Watch::all(client, "namespaces").start(process, feeds.namespaces.sink());
    Watch::all(client, "tenants").start(process, feeds.tenants.sink());
    Watch::all(client, "nodes").start(process, feeds.nodes.sink());
    Watch::all(client, "quotas").labels(keys::TENANT).start(process, feeds.quotas.sink());
    Watch::all(client, "workload rules").start(process, feeds.rules.sink());
    // RBAC grants access to the namespace of admin rules only.
    let rules = Api::namespaced(client.clone(), &context.replica.args.admin_rules_namespace);
    Watch::of(rules, "admin rules").start(process, feeds.admin_rules.sink());
    Watch::all(client, "companions").labels(keys::RULE).start(process, feeds.pods.sink());
    // A cluster may have Dynamic Resource Allocation turned off.
    Watch::all(client, "claims").labels(keys::RULE).optional().start(process, feeds.claims.sink());
    Watch::all(client, "claim templates")
        .labels(keys::RULE)
        .optional()
        .start(process, feeds.templates.sink());
    if context.replica.args.manage_offloading {
        Watch::all(client, "namespace offloadings").optional().start(process, feeds.offloadings.sink());
    }
    if context.replica.args.manage_machines {
        Watch::all(client, "machines").optional().start(process, feeds.machines.sink());
        Watch::all(client, "machine node pools").optional().start(process, feeds.pools.sink());
        let roles = format!("{} in ({}, {})", keys::POD_ROLE, keys::GUEST, keys::RESERVATION);
        let slot_pods = Watch::all(client, "guests and reservations").labels(&roles);
        slot_pods.complete().start(process, feeds.slot_pods.sink());
        let reservation = format!("{}={}", keys::POD_ROLE, keys::RESERVATION);
        let core = &context.replica.args.core_namespace;
        let sets = Watch::of(Api::namespaced(client.clone(), core), "reservations").labels(&reservation);
        sets.start(process, feeds.sets.sink());
        let services = Watch::of(Api::namespaced(client.clone(), core), "reservations' services");
        services.labels(&reservation).start(process, feeds.services.sink());
    }
}

/// Name of the object that a change is about, and the object if it exists.
pub(crate) fn changed<K: Resource>(change: &Change<K>) -> (String, Option<&K>) {
    match change {
        Change::Applied(object) => (object.name_any(), Some(object)),
        Change::Gone { name, .. } => (name.clone(), None),
    }
}

impl Context {
    /// A namespace's labels say which tenant it belongs to, whether it is offloaded, and whether its guests take slots.
    pub(crate) fn namespace(&self, change: Change<PartialObjectMeta<Namespace>>) {
        let (name, namespace) = changed(&change);
        // The namespaces of admin rules belong to no tenant, whatever their labels say.
        let tenant = namespace.and_then(|namespace| TenantId::of_namespace(namespace.labels()));
        let tenant = tenant.filter(|_| !self.states.admin().contains(&name));
        let before = self.states.tenant_of(&name);
        if before.is_some() || tenant.is_some() {
            self.all_touched(self.states.set_tenant(&name, tenant.clone()));
            self.update_host_names(&self.states.state(&name));
            // Also the tenant that it belonged to, which gets another namespace.
            self.queues.tenants.add(before.into_iter().chain(tenant).map(Key::Tenant));
            self.tenant_of(&name);
            let state = self.states.state(&name);
            self.update_admin_rules(&state);
            self.queues.rules.add(state.rule_ids());
        }
        if self.replica.args.manage_offloading {
            // A label that somebody else has changed is put right, and one that is left over is removed.
            let concerned = self.caches.offloadings.namespace(&name, namespace);
            self.queues.offloadings.add(concerned.then(|| name.as_str().into()));
        }
        if self.replica.args.manage_machines {
            self.queues.machines.add(self.caches.machines.namespace(&name, namespace));
        }
    }

    /// A Tenant says which callers may act for it, which hosts it has, and which replica serves it.
    pub(crate) fn tenant(&self, change: Change<Tenant>) {
        let (name, _) = changed(&change);
        let touched = self.caches.registry.tenant(change);
        self.queues.tenants.add(touched.nodes.into_iter().map(Key::Node));
        self.queues.tenants.add(touched.tenants.into_iter().map(Key::Tenant));
        let Ok(id) = TenantId::new(&name) else { return };
        self.states.of(&id).iter().for_each(|state| self.update_host_names(state));
        match self.caches.registry.get(&id) {
            Some(entry) => {
                let differs =
                    self.caches.tenant_statuses.lock().differs(&id, Some(ControllerStatus::now(&entry)));
                if differs {
                    self.queues.tenants.add_after(Key::Tenant(id.clone()), CONTESTED);
                }
                self.tenant_of(&entry.object.target_namespace());
            }
            // Nothing more is created for a tenant that is deleted, whatever the state of its namespace.
            None => {
                self.caches.tenant_statuses.lock().forget(&id);
                self.states.of(&id).iter().for_each(|state| state.lock().closing = true);
            }
        }
        for state in self.states.of(&id) {
            self.update_admin_rules(&state);
        }
    }

    /// Nodes of the tenant's cluster may be in other hosts now. A Tenant that isn't valid has the names that it had.
    fn update_host_names(&self, state: &TenantState) {
        let keys = {
            let mut data = state.lock();
            let entry = data.tenant.as_ref().and_then(|tenant| self.caches.registry.get(tenant));
            let Some(Ok(tenant)) = entry.as_ref().map(|entry| &entry.tenant) else { return };
            data.set_host_names(&tenant.host_names)
        };
        if !keys.is_empty() {
            self.companions_touched(state, keys);
        }
    }

    /// Other admin rules may be about the tenant of a namespace now.
    fn update_admin_rules(&self, state: &TenantState) {
        let (companions, rules) = self.caches.admin_rules.update_admin_rules(self, state);
        self.all_touched(companions);
        self.queues.rules.add(rules);
    }

    /// Brings a namespace's state up to what its Tenant says: which replica serves it, and whether it is being deleted.
    fn tenant_of(&self, namespace: &str) {
        let Some(state) = self.states.known(namespace) else { return };
        let (id, stream, lost, changed, matched) = {
            // Under the lock: of two threads that come here, the later one has the later state of the Tenant.
            let mut data = state.lock();
            let Some(id) = data.tenant.clone() else { return };
            let entry = self.caches.registry.get(&id);
            let Some(entry) = entry.filter(|entry| entry.object.target_namespace() == namespace) else {
                return;
            };
            let stream =
                entry.object.status.as_ref().and_then(|status| status.stream.clone()).unwrap_or_default();
            let serving = |data: &TenantData| (data.acts(true), data.closing, data.index.most());
            let before = serving(&data);
            data.closing = entry.deleting();
            // A Tenant that isn't valid has the limits that it had.
            let mut matched = match &entry.tenant {
                Ok(tenant) => data.set_limits(tenant.limits),
                Err(_) => Vec::new(),
            };
            let metadata = &entry.object.metadata;
            let claim = ObservedClaim {
                uid: metadata.uid.as_deref().unwrap_or_default(),
                resource_version: version(metadata.resource_version.as_deref()),
                claim: stream.claim,
                holder: &stream.holder,
            };
            let lost = data.claim_observed(claim, &self.replica.identity);
            if !stream.connected && stream.claim > 0 {
                data.stream.lost_since(stream.since.as_ref().map(|since| since.0));
            }
            if *stream.holder == *self.replica.identity && data.stream.shown(stream.claim, || json!(stream)) {
                self.queues.stream_statuses.add([id.clone()]);
            }
            matched.extend(data.assess_hosts(&self.caches.registry, self.environment.clock.wall()));
            if data.stream.unused_claim().is_some() {
                self.queues.unused_claims.add_after(id.clone(), UNUSED);
            }
            let changed = before != serving(&data);
            // What came while no replica acted for the tenant was left alone.
            if changed
                && data.acts(self.replica.leadership.leads())
                && !fault("tenant-without-a-replica-is-left-alone")
            {
                matched.extend(data.companion_keys());
            }
            (id, stream, lost, changed, matched)
        };
        self.companions_touched(&state, matched);
        if lost {
            info!(tenant = %id, claim = stream.claim, holder = stream.holder, "another replica serves the tenant now");
        }
        if changed {
            self.queues.rules.add(state.rule_ids());
        }
    }

    /// A Node says in which host a DPU is, and which tenant has it. It may be virtual, or belong to Machines.
    pub(crate) fn node(&self, change: Change<Node>) {
        let (name, node) = changed(&change);
        if self.replica.args.manage_offloading && self.caches.offloadings.node(&name, node) {
            self.queues.offloadings.add(self.caches.offloadings.keys());
        }
        if self.replica.args.manage_machines {
            self.queues.machines.add(self.caches.machines.node(&name, node));
        }
        let NodeChange { concerned, changed, hosts } = self.caches.registry.node(&name, node);
        for state in concerned.iter().flat_map(|tenant| self.states.of(tenant)) {
            let now = self.environment.clock.wall();
            let of_host = |host: &String| state.lock().assess_host(host, &self.caches.registry, now);
            let touched: Vec<CompanionKey> = hosts.iter().flat_map(of_host).collect();
            if !touched.is_empty() {
                self.companions_touched(&state, touched);
            }
        }
        if changed {
            self.queues.tenants.add([Key::Node(name)]);
            // Companions that no DPU could run don't delay a rollout; which these are may have changed.
            for state in concerned.iter().flat_map(|tenant| self.states.of(tenant)) {
                let moment = self.moment();
                let (turns, looks) = {
                    let mut data = state.lock();
                    (data.all_turns(&self.caches.registry, moment), data.rollouts.look_at_all(moment.now))
                };
                self.queues.companions.add(state.ids(turns));
                for (key, pause) in looks {
                    self.queues.companions.add_after(state.id(key), pause);
                }
                // The status of rules says which hosts have no DPU.
                self.queues.rules.add(state.rule_ids());
            }
            self.queues.tenants.add(concerned.into_iter().map(Key::Tenant));
        }
    }

    /// A quota says which limit has been reached.
    pub(crate) fn quota(&self, change: Change<ResourceQuota>) {
        let (namespace, changed) = self.caches.registry.quota(change);
        if changed {
            self.queues.tenants.add(self.states.tenant_of(&namespace).map(Key::Tenant));
        }
    }

    /// A rule says which companions there should be.
    pub(crate) fn rule(&self, change: Change<WorkloadRule>) {
        match change {
            Change::Applied(rule) => {
                let state = self.states.state(&rule.namespace().unwrap_or_default());
                let (keys, tenant) = {
                    let mut data = state.lock();
                    (data.apply_rule(&rule), data.tenant.clone())
                };
                tenant.iter().for_each(|tenant| self.queue_if_deleted(tenant));
                self.companions_changed(&state, keys);
                self.queues.rules.add(RuleName::new(&rule.name_any()).ok().map(|name| state.rule_id(&name)));
            }
            Change::Gone { namespace, name, .. } => {
                let Ok(name) = RuleName::new(&name) else { return };
                let state = self.states.state(&namespace);
                let keys = state.lock().remove_rule(&name);
                self.companions_changed(&state, keys);
            }
        }
    }

    /// An admin rule says so too, for the tenants that it is about.
    pub(crate) fn admin_rule(&self, change: Change<AdminWorkloadRule>) {
        let (name, rule) = changed(&change);
        let companions = match rule {
            Some(rule) => self.caches.admin_rules.apply(self, rule),
            None => self.caches.admin_rules.remove(self, &name),
        };
        self.all_touched(companions);
        self.queues.rules.add(RuleName::admin(&name).ok().map(|name| self.states.admin_rule_id(&name)));
    }

    /// A ResourceClaimTemplate is a rule's. The rule that loses one gets it again, and one that isn't wanted is deleted.
    pub(crate) fn template(&self, change: Change<PartialObjectMeta<ResourceClaimTemplate>>) {
        if let Some((namespace, rule, pause)) = self.caches.templates.changed(change) {
            let rule = self.states.state(&namespace).rule_id(&rule);
            self.queues.rules.add_after(rule, pause);
        }
    }

    /// A Pod or a ResourceClaim is a companion, or was one.
    pub(crate) fn companion<K: Resource + Into<Object>>(&self, kind: Kind, change: Change<K>) {
        match change {
            Change::Applied(object) => self.companion_applied(&object.into()),
            Change::Gone { namespace, name, .. } => self.companion_deleted(kind, &namespace, &name),
        }
    }

    fn companion_applied(&self, object: &Object) {
        let metadata = object.metadata();
        let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
        let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
        if *namespace == *self.states.admin().resources {
            // Without its labels and annotations, which an administrator may have removed, it is no companion.
            let Some((tenant, key, observed)) = object.observe_admin() else {
                return self.companion_deleted(object.kind(), namespace, name);
            };
            let former = self.states.set_admin_owner((object.kind(), name), Some(&tenant));
            if let Some(former) = former.filter(|former| *former != tenant) {
                self.admin_companion_gone(&former, object.kind(), name);
            }
            let companions = self.states.admin_companions_of(&tenant);
            let before = companions.lock().applied(name, key.clone(), observed);
            return self.admin_companions_changed(&tenant, before.into_iter().chain([key]).collect());
        }
        // Without its owner reference, which somebody may have removed, it is no companion.
        let Some((key, observed)) = object.observe() else {
            return self.companion_deleted(object.kind(), namespace, name);
        };
        let state = self.states.state(namespace);
        let before = state.lock().companions.applied(name, key.clone(), observed);
        self.companions_changed(&state, before.into_iter().chain([key]).collect());
    }

    fn companion_deleted(&self, kind: Kind, namespace: &str, name: &str) {
        if *namespace == *self.states.admin().resources {
            if let Some(tenant) = self.states.set_admin_owner((kind, name), None) {
                self.admin_companion_gone(&tenant, kind, name);
            }
            return;
        }
        let Some(state) = self.states.known(namespace) else { return };
        let deleted = state.lock().companions.deleted(kind, name);
        self.companions_changed(&state, deleted.into_iter().collect());
    }

    fn admin_companion_gone(&self, tenant: &TenantId, kind: Kind, name: &str) {
        let deleted = self.states.admin_companions_of(tenant).lock().deleted(kind, name);
        self.admin_companions_changed(tenant, deleted.into_iter().collect());
    }

    fn admin_companions_changed(&self, tenant: &TenantId, keys: Vec<CompanionKey>) {
        for key in &keys {
            self.queues.rules.add_after(self.states.admin_rule_id(&key.rule), crate::rules::SETTLE);
        }
        self.queue_if_deleted(tenant);
        for state in self.states.of(tenant) {
            self.companions_changed(&state, keys.clone());
        }
    }

    /// A replica whose cache was stale may have created something for a tenant that is deleted: the leader deletes it.
    fn queue_if_deleted(&self, tenant: &TenantId) {
        if self.caches.registry.get(tenant).is_none() {
            self.queues.tenants.add([Key::Tenant(tenant.clone())]);
        }
    }

    fn companions_changed(&self, state: &TenantState, keys: Vec<CompanionKey>) {
        {
            let mut data = state.lock();
            for key in &keys {
                data.companion_observed(key);
            }
        }
        for key in &keys {
            self.queues.rules.add_after(state.rule_id(&key.rule), crate::rules::SETTLE);
        }
        self.companions_touched(state, keys);
    }

    /// Companions may be other than before, or wanted in another way: what is sent to the tenant about them may change, and each gets a
    /// step.
    pub(crate) fn companions_touched(&self, state: &TenantState, keys: Vec<CompanionKey>) {
        let now = self.environment.clock.wall();
        if keys.is_empty() {
            // Matches may have been left out, which touches no companion.
            return state.lock().assess(&[], &self.caches.registry, now);
        }
        // Whoever else needs the tenant's state waits for so many at most.
        for some in keys.chunks(256) {
            let mut data = state.lock();
            data.assess(some, &self.caches.registry, now);
            MutexGuard::unlock_fair(data);
        }
        self.queues.companions.add(state.ids(keys));
    }

    /// Companions in several namespaces may be wanted in another way.
    fn all_touched(&self, mut ids: Vec<CompanionId>) {
        ids.sort_unstable();
        for of_state in ids.chunk_by(|a, b| a.namespace == b.namespace) {
            let keys = of_state.iter().map(|id| id.key.clone()).collect();
            self.companions_touched(&self.states.state(&of_state[0].namespace), keys);
        }
    }

    /// A NamespaceOffloading says where the Pods of its namespace may run.
    pub(crate) fn offloading(&self, change: Change<NamespaceOffloading>) {
        self.queues.offloadings.add(self.caches.offloadings.object(change));
    }

    /// A guest takes a slot of a Machine, or a reservation holds one.
    pub(crate) fn slot_pod(&self, change: Change<Pod>) {
        for key in self.caches.machines.pod(change) {
            self.queues.machines.add_after(key, machines::SETTLE);
        }
    }
}

#[cfg(test)]
mod tests;
