//! The watches of the infrastructure cluster, and what their events mean for the state.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, ResourceQuota};
use kube::core::PartialObjectMeta;
use kube::{Resource, ResourceExt};
use outrigger_api::{AdminWorkloadRule, Tenant, WorkloadRule};
use outrigger_core::ids::{RuleName, TenantId};
use outrigger_core::index::CompanionKey;
use outrigger_core::template::Kind;
use outrigger_runtime::cache::{Change, Feed, version};
use tracing::info;

use crate::admin::AdminRules;
use crate::companions::object::{self, Object};
use crate::companions::templates::Templates;
use crate::queue::Queue;
use crate::state::registry::Registry;
use crate::state::stream::ObservedClaim;
use crate::state::{CompanionId, RuleId, TenantData, TenantState, TenantStates};
use crate::tenants::claim::UNUSED;
use crate::tenants::controller::Key;

/// Takes events in and queues what has to be looked at again.
#[derive(Clone)]
pub struct Watches {
    /// What is known.
    pub states: Arc<TenantStates>,
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
    /// This replica, as claims call it.
    pub me: Arc<str>,
    /// Tenants with a claim of this replica that may be for no stream.
    pub unused: Arc<Queue<TenantId>>,
}

/// Where what is seen of objects goes that this process also writes: from the watch, and from the answers to writes.
#[derive(Debug, Clone)]
pub struct Feeds {
    /// DPUs, and Nodes that may be one.
    pub nodes: Feed<Node>,
    /// Tenants' rules.
    pub rules: Feed<WorkloadRule>,
    /// The platform's rules.
    pub admin_rules: Feed<AdminWorkloadRule>,
    /// Companions of both.
    pub companions: object::Feeds,
}

impl Feeds {
    /// Feeds that hand on to these.
    pub fn new(watches: &Watches) -> Self {
        let companions =
            object::Feeds { pods: watches.companions(Kind::Pod), claims: watches.companions(Kind::Claim) };
        Self {
            nodes: watches.nodes(),
            rules: watches.rules(),
            admin_rules: watches.admin_rules(),
            companions,
        }
    }
}

impl Watches {
    /// Namespaces say whose they are. Only those with a tenant's label are watched, so one that loses it is gone.
    pub fn namespaces(&self) -> Feed<PartialObjectMeta<Namespace>> {
        let this = self.clone();
        Feed::new(move |change: Change<PartialObjectMeta<Namespace>>| {
            let (name, tenant) = match change {
                Change::Applied(namespace) => {
                    (namespace.name_any(), TenantId::of_namespace(namespace.labels()))
                }
                Change::Gone { name, .. } => (name, None),
            };
            // Also the one that it was: its Tenant makes another.
            // The platform's own are no tenant's, whatever their labels say.
            let tenant = tenant.filter(|_| !this.states.admin().contains(&name));
            let before = this.states.tenant_of(&name);
            this.queue.add(this.states.set_tenant(&name, tenant.clone()));
            this.tenants.add(before.into_iter().chain(tenant).map(Key::Tenant));
            this.tenant_of(&name);
            this.refile(&this.states.state(&name));
            this.rules.add(this.states.state(&name).rule_ids());
        })
    }

    /// Tenants say who may speak, what is whose, and which replica serves it.
    pub fn tenants(&self) -> Feed<Tenant> {
        let this = self.clone();
        Feed::new(move |change: Change<Tenant>| {
            let name = match &change {
                Change::Applied(tenant) => tenant.name_any(),
                Change::Gone { name, .. } => name.clone(),
            };
            let touched = this.registry.tenant(change);
            this.tenants.add(touched.nodes.into_iter().map(Key::Node));
            this.tenants.add(touched.tenants.into_iter().map(Key::Tenant));
            let Ok(id) = TenantId::new(&name) else { return };
            match this.registry.get(&id) {
                Some(entry) => this.tenant_of(&entry.object.target_namespace()),
                // Nothing is made any more for a tenant that is gone, whatever became of its namespace.
                None => this.states.of(&id).iter().for_each(|state| state.lock().closing = true),
            }
            for state in this.states.of(&id) {
                this.refile(&state);
            }
        })
    }

    /// Other admin rules may be about the tenant of a namespace now.
    fn refile(&self, state: &TenantState) {
        let (companions, rules) = self.admin.refile(state);
        self.queue.add(companions);
        self.rules.add(rules);
    }

    /// Brings a namespace's state up to what its Tenant says: who serves it, and whether it goes.
    fn tenant_of(&self, namespace: &str) {
        let Some(id) = self.states.tenant_of(namespace) else { return };
        let Some(entry) = self.registry.get(&id).filter(|entry| entry.object.target_namespace() == namespace)
        else {
            return;
        };
        let stream =
            entry.object.status.as_ref().and_then(|status| status.stream.clone()).unwrap_or_default();
        let state = self.states.state(namespace);
        let (lost, changed, matched) = {
            let mut data = state.lock();
            let known = |data: &TenantData| (data.acts(true), data.closing, data.index.most());
            let before = known(&data);
            data.closing = entry.deleting();
            // A Tenant that isn't valid has the limits that it had.
            let matched = match &entry.tenant {
                Ok(tenant) => data.index.limit(tenant.limits.matches()),
                Err(_) => Vec::new(),
            };
            let metadata = &entry.object.metadata;
            let shown = ObservedClaim {
                uid: metadata.uid.as_deref().unwrap_or_default(),
                resource_version: version(metadata.resource_version.as_deref()),
                claim: stream.claim,
                holder: &stream.holder,
            };
            let lost = data.saw_claim(shown, &self.me);
            if data.stream.unused_claim().is_some() {
                self.unused.add_after(id.clone(), UNUSED);
            }
            (lost, before != known(&data), matched)
        };
        self.queue.add(state.ids(matched));
        if lost {
            info!(tenant = %id, claim = stream.claim, holder = stream.holder, "this replica serves the tenant no more");
        }
        if changed {
            self.rules.add(state.rule_ids());
        }
    }

    /// Nodes say in which host a DPU sits, and whose it is.
    pub fn nodes(&self) -> Feed<Node> {
        let this = self.clone();
        Feed::new(move |change: Change<Node>| {
            let name = match &change {
                Change::Applied(node) => node.name_any(),
                Change::Gone { name, .. } => name.clone(),
            };
            let (concerned, changed) = this.registry.node(change);
            if changed {
                this.tenants.add([Key::Node(name)]);
                // Companions that no DPU could run don't hold a rollout up; which these are may be others now.
                for state in concerned.iter().flat_map(|tenant| this.states.of(tenant)) {
                    let turns = state.lock().all_turns(&this.registry);
                    this.queue.add(state.ids(turns));
                    // The status of rules says which hosts have no DPU.
                    this.rules.add(state.rule_ids());
                }
                this.tenants.add(concerned.into_iter().map(Key::Tenant));
            }
        })
    }

    /// Quotas say what has reached its limit.
    pub fn quotas(&self) -> Feed<ResourceQuota> {
        let this = self.clone();
        Feed::new(move |change| {
            let (namespace, changed) = this.registry.quota(change);
            if changed {
                this.tenants.add(this.states.tenant_of(&namespace).map(Key::Tenant));
            }
        })
    }

    /// Rules say what companions there should be.
    pub fn rules(&self) -> Feed<WorkloadRule> {
        let this = self.clone();
        Feed::new(move |change| match change {
            Change::Applied(rule) => this.rule(&rule),
            Change::Gone { namespace, name, .. } => this.no_rule(&namespace, &name),
        })
    }

    fn rule(&self, rule: &WorkloadRule) {
        let state = self.states.state(&rule.namespace().unwrap_or_default());
        let keys = state.lock().apply_rule(rule);
        self.touched(&state, keys);
        if let Ok(name) = RuleName::new(&rule.name_any()) {
            self.rules.add([state.rule_id(&name)]);
        }
    }

    fn no_rule(&self, namespace: &str, name: &str) {
        let Ok(name) = RuleName::new(name) else { return };
        let state = self.states.state(namespace);
        let keys = state.lock().remove_rule(&name);
        self.touched(&state, keys);
    }

    /// Admin rules do too, for the tenants that they are about.
    pub fn admin_rules(&self) -> Feed<AdminWorkloadRule> {
        let this = self.clone();
        Feed::new(move |change: Change<AdminWorkloadRule>| {
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

    /// What device claims are made from. A rule that has lost one gets it again.
    pub fn templates(&self) -> Templates {
        let this = self.clone();
        Templates::new(move |namespace, rule| {
            let id = if rule.is_admin() {
                this.admin.id(&rule)
            } else {
                this.states.state(namespace).rule_id(&rule)
            };
            this.rules.add([id]);
        })
    }

    /// Pods and ResourceClaims say what companions there are.
    pub fn companions<K: Resource + Into<Object>>(&self, kind: Kind) -> Feed<K> {
        let this = self.clone();
        Feed::new(move |change: Change<K>| match change {
            Change::Applied(object) => this.companion(&object.into()),
            Change::Gone { namespace, name, .. } => this.no_companion(kind, &namespace, &name),
        })
    }

    fn companion(&self, object: &Object) {
        let metadata = object.metadata();
        let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
        let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
        if *namespace == *self.states.admin().resources {
            // Somebody who may has taken its marks away.
            let Some((tenant, key, observed)) = object.observe_admin() else {
                return self.no_companion(object.kind(), namespace, name);
            };
            let before = self.states.admin_companions_of(&tenant).lock().applied(name, key.clone(), observed);
            return self.admin_touched(&tenant, before.into_iter().chain([key]).collect());
        }
        // Somebody has taken its owner away.
        let Some((key, observed)) = object.observe() else {
            return self.no_companion(object.kind(), namespace, name);
        };
        let state = self.states.state(namespace);
        let before = state.lock().companions.applied(name, key.clone(), observed);
        self.touched(&state, before.into_iter().chain([key]).collect());
    }

    fn no_companion(&self, kind: Kind, namespace: &str, name: &str) {
        if *namespace == *self.states.admin().resources {
            for (tenant, store) in self.states.all_admin_companions() {
                let gone = store.lock().gone(kind, name);
                if gone.is_some() {
                    self.admin_touched(&tenant, gone.into_iter().collect());
                }
            }
            return;
        }
        let Some(state) = self.states.known(namespace) else { return };
        let gone = state.lock().companions.gone(kind, name);
        self.touched(&state, gone.into_iter().collect());
    }

    fn admin_touched(&self, tenant: &TenantId, keys: Vec<CompanionKey>) {
        for key in &keys {
            self.rules.add_after(self.admin.id(&key.rule), crate::rules::SETTLE);
        }
        if self.registry.get(tenant).is_none() {
            // A replica that was behind has made it for a tenant that is gone: the leader deletes it.
            self.tenants.add([Key::Tenant(tenant.clone())]);
        }
        for state in self.states.of(tenant) {
            {
                let mut data = state.lock();
                for key in &keys {
                    data.saw_companion(key);
                }
            }
            self.queue.add(state.ids(keys.iter().cloned()));
        }
    }

    fn touched(&self, state: &TenantState, keys: Vec<CompanionKey>) {
        {
            let mut data = state.lock();
            for key in &keys {
                data.saw_companion(key);
            }
        }
        for key in &keys {
            self.rules.add_after(state.rule_id(&key.rule), crate::rules::SETTLE);
        }
        self.queue.add(state.ids(keys));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outrigger_core::keys;
    use outrigger_runtime::pod::Pod;
    use outrigger_runtime::watch::Event;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_late_companion_of_a_tenant_that_is_gone_is_the_leaders_to_delete() {
        let states = Arc::new(TenantStates::default());
        let registry = Arc::new(Registry::new(String::new(), Vec::new()));
        let pause = (Duration::from_millis(100), Duration::from_secs(30));
        let watches = Watches {
            states: states.clone(),
            queue: Arc::new(Queue::new(pause.0, pause.1)),
            rules: Arc::new(Queue::new(pause.0, pause.1)),
            registry: registry.clone(),
            tenants: Arc::new(Queue::new(pause.0, pause.1)),
            admin: Arc::new(AdminRules::new(states, registry.clone())),
            me: "me".into(),
            unused: Arc::new(Queue::new(pause.0, pause.1)),
        };
        let companion = |tenant: &str| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": tenant, "namespace": keys::ADMIN_NAMESPACE,
                "uid": tenant, "resourceVersion": "9", "labels": {keys::TENANT: tenant, keys::WORKLOAD: "w"},
                "annotations": {keys::ADMIN_RULE: "r", keys::RULE_UID: "u"}}}))
            .unwrap()
        };
        let blue = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
            "metadata": {"name": "blue", "uid": "t"}, "spec": {}});
        registry.tenant(Change::Applied(serde_json::from_value(blue).unwrap()));
        let mut pods = watches.companions(Kind::Pod).sink();
        pods(Event::Applied(companion("blue")));
        assert_eq!(watches.tenants.len(), 0);
        pods(Event::Applied(companion("gone")));
        assert_eq!(watches.tenants.len(), 1);
    }
}
