//! What admission knows of the cluster: namespaces and rules, from watches. No request ever waits for the API server.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use outrigger_api::WorkloadRule;
use outrigger_core::ids::TenantId;
use outrigger_core::rule::Rule;
use parking_lot::RwLock;
use tokio::sync::watch;

/// The caches. They may be behind the API server; whoever finds something missing waits for a change.
#[derive(Debug)]
pub struct Caches {
    tenants: RwLock<HashMap<String, TenantId>>,
    rules: RwLock<HashMap<RuleKey, CachedRule>>,
    /// Counts changes.
    changes: watch::Sender<u64>,
}

/// Namespace and name.
type RuleKey = (String, String);

/// A rule as the API has it.
#[derive(Debug, Clone)]
pub struct CachedRule {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// Ready to be evaluated; `None` when it is not valid.
    pub rule: Option<Arc<Rule>>,
}

impl Default for Caches {
    fn default() -> Self {
        Self { tenants: RwLock::default(), rules: RwLock::default(), changes: watch::Sender::new(0) }
    }
}

impl Caches {
    /// Whose namespace it is.
    pub fn tenant(&self, namespace: &str) -> Option<TenantId> {
        self.tenants.read().get(namespace).cloned()
    }

    /// A rule.
    pub fn rule(&self, namespace: &str, name: &str) -> Option<CachedRule> {
        self.rules.read().get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Changes from now on.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// A namespace carries a tenant's label.
    pub fn set_tenant(&self, namespace: String, tenant: Option<TenantId>) {
        {
            let mut tenants = self.tenants.write();
            match tenant {
                Some(tenant) => tenants.insert(namespace, tenant),
                None => tenants.remove(&namespace),
            };
        }
        self.changed();
    }

    /// A rule exists and looks like this.
    pub fn set_rule(&self, rule: &WorkloadRule) {
        let key = (rule.namespace().unwrap_or_default(), rule.name_any());
        let uid = rule.metadata.uid.clone().unwrap_or_default();
        let generation = rule.metadata.generation.unwrap_or_default();
        let known = |cached: &CachedRule| cached.uid == uid && cached.generation == generation;
        // A rule's status changes far more often than its spec.
        if self.rules.read().get(&key).is_some_and(known) {
            return;
        }
        let rule = rule.compile().ok().map(Arc::new);
        self.rules.write().insert(key, CachedRule { uid, generation, rule });
        self.changed();
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Takes in the watch of namespaces that carry a tenant's label.
    pub fn namespaces(self: &Arc<Self>) -> impl FnMut(Event<Namespace>) + use<> {
        let this = self.clone();
        let mut listed = HashSet::new();
        let tenant = |namespace: &Namespace| TenantId::of_namespace(namespace.labels());
        move |event| match event {
            Event::Init => listed.clear(),
            Event::InitApply(namespace) => {
                listed.insert(namespace.name_any());
                this.set_tenant(namespace.name_any(), tenant(&namespace));
            }
            Event::Apply(namespace) => this.set_tenant(namespace.name_any(), tenant(&namespace)),
            Event::Delete(namespace) => this.set_tenant(namespace.name_any(), None),
            Event::InitDone => {
                this.tenants.write().retain(|namespace, _| listed.contains(namespace));
                this.changed();
            }
        }
    }

    /// Takes in the watch of rules.
    pub fn rules(self: &Arc<Self>) -> impl FnMut(Event<WorkloadRule>) + use<> {
        let this = self.clone();
        let mut listed = HashSet::new();
        move |event| match event {
            Event::Init => listed.clear(),
            Event::InitApply(rule) => {
                listed.insert((rule.namespace().unwrap_or_default(), rule.name_any()));
                this.set_rule(&rule);
            }
            Event::Apply(rule) => this.set_rule(&rule),
            Event::Delete(rule) => {
                this.rules.write().remove(&(rule.namespace().unwrap_or_default(), rule.name_any()));
                this.changed();
            }
            Event::InitDone => {
                this.rules.write().retain(|key, _| listed.contains(key));
                this.changed();
            }
        }
    }
}
