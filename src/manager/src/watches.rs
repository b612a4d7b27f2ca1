//! The watches of the infrastructure cluster, and what their events mean for the state.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ResourceQuota};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use outrigger_api::{AdminWorkloadRule, Tenant, WorkloadRule};
use outrigger_core::ids::{RuleName, TenantId};
use outrigger_core::index::CompanionKey;
use outrigger_core::template::Kind;
use outrigger_runtime::cluster::{Change, changes};
use tracing::info;

use crate::admin::AdminRules;
use crate::companions::object::Object;
use crate::companions::templates::Templates;
use crate::queue::Queue;
use crate::state::{CompanionId, RuleId, Space, Spaces};
use crate::tenants::controller::Key;
use crate::tenants::registry::Registry;

/// Takes events in and queues what has to be looked at again.
#[derive(Clone)]
pub struct Watches {
    /// What is known.
    pub spaces: Arc<Spaces>,
    /// Companions to look at.
    pub queue: Arc<Queue<CompanionId>>,
    /// Rules whose status may have changed.
    pub rules: Arc<Queue<RuleId>>,
    /// Tenants and DPUs as they are.
    pub registry: Arc<Registry>,
    /// Tenants and DPUs to look at.
    pub tenants: Arc<Queue<Key>>,
    /// The platform's rules, and whom they are about.
    pub admin: Arc<AdminRules>,
    /// What device claims are made from.
    pub templates: Arc<Templates>,
    /// This replica, as claims call it.
    pub me: Arc<str>,
}

impl Watches {
    /// Namespaces say whose they are. Only those with a tenant's label are watched, so one that loses it is gone.
    pub fn namespaces(&self) -> impl FnMut(Event<PartialObjectMeta<Namespace>>) + use<> {
        let this = self.clone();
        changes(move |change: Change<PartialObjectMeta<Namespace>>| {
            let (name, tenant) = match change {
                Change::Applied(namespace) => {
                    (namespace.name_any(), TenantId::of_namespace(namespace.labels()))
                }
                Change::Gone { name, .. } => (name, None),
            };
            // Also the one that it was: its Tenant makes another.
            // The platform's own are no tenant's, whatever their labels say.
            let tenant = tenant.filter(|_| !this.spaces.admin().contains(&name));
            let before = this.spaces.tenant_of(&name);
            this.queue.add(this.spaces.set_tenant(&name, tenant.clone()));
            this.tenants.add(before.into_iter().chain(tenant).map(Key::Tenant));
            this.tenant_of(&name);
            this.refile(&this.spaces.space(&name));
            this.rules.add(this.spaces.space(&name).rule_ids());
        })
    }

    /// Tenants say who may speak, what is whose, and which replica serves it.
    pub fn tenants(&self) -> impl FnMut(Event<Tenant>) + use<> {
        let this = self.clone();
        changes(move |change: Change<Tenant>| {
            let name = match &change {
                Change::Applied(tenant) => tenant.name_any(),
                Change::Gone { name, .. } => name.clone(),
            };
            let touched = this.registry.tenant(change);
            this.tenants.add(touched.nodes.into_iter().map(Key::Node));
            this.tenants.add(touched.tenants.into_iter().map(Key::Tenant));
            let Ok(id) = TenantId::new(&name) else { return };
            if let Some(entry) = this.registry.get(&id) {
                this.tenant_of(&entry.object.target_namespace());
            }
            for space in this.spaces.of(&id) {
                this.refile(&space);
            }
        })
    }

    /// Other admin rules may be about the tenant of a namespace now.
    fn refile(&self, space: &Space) {
        let (companions, rules) = self.admin.refile(space);
        self.queue.add(companions);
        self.rules.add(rules);
    }

    /// Brings a namespace's space up to what its Tenant says: who serves it, and whether it goes.
    fn tenant_of(&self, namespace: &str) {
        let Some(id) = self.spaces.tenant_of(namespace) else { return };
        let Some(entry) = self.registry.get(&id).filter(|entry| entry.object.target_namespace() == namespace)
        else {
            return;
        };
        let stream =
            entry.object.status.as_ref().and_then(|status| status.stream.clone()).unwrap_or_default();
        let space = self.spaces.space(namespace);
        let (lost, changed) = {
            let mut inner = space.lock();
            let before = (inner.acts(true), inner.closing);
            inner.closing = entry.deleting();
            let lost = inner.saw_claim(stream.claim, &stream.holder, &self.me);
            (lost, before != (inner.acts(true), inner.closing))
        };
        if lost {
            info!(tenant = %id, claim = stream.claim, holder = stream.holder, "another replica serves the tenant now");
        }
        if changed {
            self.rules.add(space.rule_ids());
        }
    }

    /// Nodes say in which host a DPU sits, and whose it is.
    pub fn nodes(&self) -> impl FnMut(Event<Node>) + use<> {
        let this = self.clone();
        changes(move |change: Change<Node>| {
            let name = match &change {
                Change::Applied(node) => node.name_any(),
                Change::Gone { name, .. } => name.clone(),
            };
            let (concerned, changed) = this.registry.node(change);
            if changed {
                this.tenants.add([Key::Node(name)]);
                // Companions that no DPU could run don't hold a rollout up; which these are may be others now.
                for space in concerned.iter().flat_map(|tenant| this.spaces.of(tenant)) {
                    let turns = space.lock().all_turns(&this.registry);
                    this.queue.add(space.ids(turns));
                }
                this.tenants.add(concerned.into_iter().map(Key::Tenant));
            }
        })
    }

    /// Quotas say what has reached its limit.
    pub fn quotas(&self) -> impl FnMut(Event<ResourceQuota>) + use<> {
        let this = self.clone();
        changes(move |change| {
            let (namespace, changed) = this.registry.quota(change);
            if changed {
                this.tenants.add(this.spaces.tenant_of(&namespace).map(Key::Tenant));
            }
        })
    }

    /// Rules say what companions there should be.
    pub fn rules(&self) -> impl FnMut(Event<WorkloadRule>) + use<> {
        let this = self.clone();
        changes(move |change| match change {
            Change::Applied(rule) => this.rule(&rule),
            Change::Gone { namespace, name } => this.no_rule(&namespace, &name),
        })
    }

    fn rule(&self, rule: &WorkloadRule) {
        let space = self.spaces.space(&rule.namespace().unwrap_or_default());
        let keys = space.lock().apply_rule(rule);
        self.touched(&space, keys);
        if let Ok(name) = RuleName::new(&rule.name_any()) {
            self.rules.add([space.rule_id(&name)]);
        }
    }

    fn no_rule(&self, namespace: &str, name: &str) {
        let Ok(name) = RuleName::new(name) else { return };
        let space = self.spaces.space(namespace);
        let keys = space.lock().remove_rule(&name);
        self.touched(&space, keys);
    }

    /// Admin rules do too, for the tenants that they are about.
    pub fn admin_rules(&self) -> impl FnMut(Event<AdminWorkloadRule>) + use<> {
        let this = self.clone();
        changes(move |change: Change<AdminWorkloadRule>| {
            let (name, companions) = match change {
                Change::Applied(rule) => (rule.name_any(), this.admin.apply(&rule)),
                Change::Gone { name, .. } => {
                    let companions = this.admin.remove(&name);
                    (name, companions)
                }
            };
            this.queue.add(companions);
            this.rules.add(RuleName::admin(&name).ok().map(|name| this.admin.id(&name)));
        })
    }

    /// Pods say what companions there are.
    pub fn pods(&self) -> impl FnMut(Event<Pod>) + use<> {
        self.companions(Kind::Pod)
    }

    /// And ResourceClaims do.
    pub fn claims(&self) -> impl FnMut(Event<ResourceClaim>) + use<> {
        self.companions(Kind::Claim)
    }

    /// What device claims are made from. A rule that has lost one gets it again.
    pub fn templates(&self) -> impl FnMut(Event<PartialObjectMeta<ResourceClaimTemplate>>) + use<> {
        let this = self.clone();
        Templates::watch(&self.templates, move |namespace, rule| {
            let id = if rule.is_admin() {
                this.admin.id(&rule)
            } else {
                this.spaces.space(namespace).rule_id(&rule)
            };
            this.rules.add([id]);
        })
    }

    fn companions<K: Into<Object>>(&self, kind: Kind) -> impl FnMut(Event<K>) + use<K> {
        let this = self.clone();
        move |event| match event {
            Event::Init => {
                this.spaces.all().iter().for_each(|space| space.lock().companions.list_begins(kind));
                this.spaces.admin_stores().iter().for_each(|(_, store)| store.lock().list_begins(kind));
            }
            Event::InitApply(object) | Event::Apply(object) => this.companion(&object.into(), false),
            Event::Delete(object) => this.companion(&object.into(), true),
            Event::InitDone => {
                for space in this.spaces.all() {
                    let gone = space.lock().companions.list_ends(kind);
                    this.touched(&space, gone);
                }
                for (tenant, store) in this.spaces.admin_stores() {
                    let gone = store.lock().list_ends(kind);
                    this.admin_touched(&tenant, gone);
                }
            }
        }
    }

    fn companion(&self, object: &Object, gone: bool) {
        if object.metadata().namespace.as_deref() == Some(&self.spaces.admin().resources) {
            self.admin_companion(object, gone);
        } else {
            self.tenant_companion(object, gone);
        }
    }

    fn admin_companion(&self, object: &Object, gone: bool) {
        let version = object.metadata().resource_version.as_deref();
        if let Some((tenant, key, observed)) = object.observe_admin() {
            let store = self.spaces.admin_store(&tenant);
            if gone {
                store.lock().deleted(&key, observed.kind, &observed.uid, version);
            } else {
                store.lock().applied(key.clone(), observed, version);
            }
            return self.admin_touched(&tenant, vec![key]);
        }
        // Somebody who may has taken its marks away.
        let uid = object.metadata().uid.as_deref().unwrap_or_default();
        for (tenant, store) in self.spaces.admin_stores() {
            let disowned = store.lock().disowned(object.kind(), uid, version);
            self.admin_touched(&tenant, disowned.into_iter().collect());
        }
    }

    fn admin_touched(&self, tenant: &TenantId, keys: Vec<CompanionKey>) {
        for key in &keys {
            self.rules.add_after(self.admin.id(&key.rule), crate::rules::SETTLE);
        }
        for space in self.spaces.of(tenant) {
            {
                let mut inner = space.lock();
                for key in &keys {
                    inner.saw_companion(key);
                }
            }
            self.queue.add(space.ids(keys.iter().cloned()));
        }
    }

    fn tenant_companion(&self, object: &Object, gone: bool) {
        let metadata = object.metadata();
        let space = self.spaces.space(metadata.namespace.as_deref().unwrap_or_default());
        let version = metadata.resource_version.as_deref();
        let touched = match object.observe() {
            Some((key, observed)) if gone => {
                space.lock().companions.deleted(&key, observed.kind, &observed.uid, version);
                Some(key)
            }
            Some((key, observed)) => {
                space.lock().companions.applied(key.clone(), observed, version);
                Some(key)
            }
            None if gone => None,
            None => {
                let uid = metadata.uid.as_deref().unwrap_or_default();
                space.lock().companions.disowned(object.kind(), uid, version)
            }
        };
        self.touched(&space, touched.into_iter().collect());
    }

    fn touched(&self, space: &Space, keys: Vec<CompanionKey>) {
        {
            let mut inner = space.lock();
            for key in &keys {
                inner.saw_companion(key);
            }
        }
        for key in &keys {
            self.rules.add_after(space.rule_id(&key.rule), crate::rules::SETTLE);
        }
        self.queue.add(space.ids(keys));
    }
}
